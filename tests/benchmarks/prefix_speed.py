"""What it saves that the rollouts of a query share their prompt: eight prompts prefilled against one that eight share.

    python tests/benchmarks/prefix_speed.py            # 1,024 tokens, the tiny router
    python tests/benchmarks/prefix_speed.py --quick    # a toy

Both go through the sampler engine: eight turns of one token each are asked for at once, of eight queries and of one.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import time
from typing import Any

import numpy as np
import speed_ours
import speed_work as work

from rw.kept_memory import keep_memory
from rw.sampler.engine import EngineConfig
from rw.sampler.interface import EpisodeId, TurnRequest

ROLLOUTS = 8
KINDS = ("apart", "shared")


def measure(shape: str, prompt: int, rounds: int) -> dict[str, Any]:
    """Seconds until all eight have their first token, by kind, in turns. The first round warms up and is left out."""
    config = EngineConfig(
        slots=ROLLOUTS,
        lengths=(prompt + 64,),
        decode_widths=(ROLLOUTS,),
        prefill_rows=(1, 4),
        prefill_chunk=min(prompt, 128),
        prefill_tokens=ROLLOUTS * prompt,
    )
    generation = speed_ours.Generation(work.SHAPES[shape], config)
    lots, vocab = np.random.default_rng(0), work.SHAPES[shape].vocab
    runs, seconds = itertools.count(), {kind: [] for kind in KINDS}

    async def first_tokens(kind: str) -> None:
        run, apart = next(runs), kind == "apart"
        texts = lots.integers(
            3, vocab, (ROLLOUTS, prompt), dtype=np.int32
        )  # new ones: the engine keeps what it can use
        episodes = [EpisodeId(run, f"q{i if apart else 0}", i) for i in range(ROLLOUTS)]
        asked = [TurnRequest(e, 0, texts[e.rollout if apart else 0], prompt, 1, ()) for e in episodes]
        await asyncio.gather(*(generation.engine.generate(request) for request in asked))
        for episode in episodes:
            await generation.engine.release(episode)

    for place in range(rounds + 1):
        for kind in KINDS:
            started = time.perf_counter()
            generation.loop.run_until_complete(first_tokens(kind))
            if place:
                seconds[kind].append(time.perf_counter() - started)
    generation.close()
    return {"shape": shape, "prompt": prompt, "seconds": seconds, "load": os.getloadavg()[0]}


def table(measured: dict[str, Any]) -> list[str]:
    """Markdown."""
    apart, shared = (measured["seconds"][kind] for kind in KINDS)
    ratios = [a / b for a, b in zip(apart, shared, strict=True)]
    cells = [statistics.median(apart), statistics.median(shared), statistics.median(ratios), min(ratios), max(ratios)]
    return [
        f"| {measured['prompt']:,}-token prompt, {measured['shape']} | 8 prefills, s | one for 8, s | ratio |",
        "| --- | --- | --- | --- |",
        "| first tokens of 8 rollouts | {:.3g} | {:.3g} | {:.1f} ({:.1f}–{:.1f}) |".format(*cells),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="tiny", choices=work.SHAPES)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="the toy router and 64 tokens, twice")
    known = parser.parse_args()
    if known.quick:
        known.shape, known.prompt, known.rounds = "toy", 64, 2
    measured = measure(known.shape, known.prompt, known.rounds)
    print(json.dumps({**measured, "table": table(measured)}))


if __name__ == "__main__":
    keep_memory()  # as `rw train` does
    main()
