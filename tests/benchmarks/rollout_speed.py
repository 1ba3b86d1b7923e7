"""How long 256 trajectories take that mostly wait for Workers: in the sampler engine, and at best.

    python tests/benchmarks/rollout_speed.py                    # light and heavy, 32 and 64 slots: minutes
    python tests/benchmarks/rollout_speed.py --quick            # a few trajectories of a toy router: seconds

Each trajectory has 1 to 8 turns. After each but the last it calls a Worker over HTTP, on loopback, in a process of its
own, which answers after 3 s in the median, 12 s at the 95th percentile, and 60 s once in 100 calls. All of that is
scaled by `--scale`, and the router is small, so that a token takes about `--scale` times as long as a larger router's:
what is printed is seconds of the scaled run. The eight rollouts of a query begin with the same prompt.

In one run, on the same trajectories: the engine as it is used (nobody waits for another); the same engine with a
barrier after each turn, as batched samplers have it; the event simulation of both, with the times of a token in this
engine, measured just before; and the bound that no schedule can beat. The engine prefills, calls over HTTP and runs
Python; the simulation and the bound do not.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import rollout_simulation as simulation
import speed_ours
import speed_work as work
from slow_workers import SlowWorkers

from rw.kept_memory import keep_memory
from rw.sampler.engine import EngineConfig
from rw.sampler.interface import EpisodeId, TurnRequest

GROUP = 8  # rollouts of a query
LENGTHS = simulation.Lengths(prompt=64, observation=16)
DECODE_WIDTHS = (8, 32)
KV_BYTES = 2 << 30  # of the caches of all trajectories


@dataclasses.dataclass(frozen=True)
class Case:
    """A router and how much it says in a turn. `lengths` are the engine's, and must hold the longest trajectory."""

    shape: str
    tokens: int  # of a turn, in the median
    lengths: tuple[int, ...]


CASES = {
    "light": Case("small", 64, (256, 512, 1024, 2048)),  # Workers take most of the time
    "heavy": Case("tiny", 128, (256, 512, 1024, 2048, 4096)),  # sampling does
    "toy": Case("toy", 4, (256,)),
}


class Rollouts:
    """Trajectories in an engine: contexts, turns and calls. So many `episodes` at once; None: as many as slots."""

    def __init__(self, case: Case, slots: int, episodes: int | None = None):
        shape = work.SHAPES[case.shape]
        config = EngineConfig(
            slots=slots,
            lengths=case.lengths,
            decode_widths=tuple(sorted({min(width, slots) for width in DECODE_WIDTHS})),
            prefill_chunk=LENGTHS.observation + 8,  # holds an observation with the last sampled token
            kv_bytes=KV_BYTES,
        )
        self.generation = speed_ours.Generation(shape, config, episodes)
        self.run, self.engine = self.generation.loop.run_until_complete, self.generation.engine
        self._ids = np.random.default_rng(0).integers(3, shape.vocab, 1 << 16, dtype=np.int32)
        self._runs = itertools.count(1)

    def _text(self, place: int, tokens: int) -> np.ndarray:
        start = place * 977 % (len(self._ids) - tokens)
        return self._ids[start : start + tokens]

    def _prompt(self, run: int, index: int) -> np.ndarray:
        """New in every run: the engine keeps prompts that it may meet again."""
        return self._text(1009 * run + index // GROUP, LENGTHS.prompt)

    def token_times(self, slots: Sequence[int], contexts: Sequence[int], tokens: int) -> list[tuple[int, int, float]]:
        """(slots at work, context, seconds of one token of each): what so many tokens more take than one dispatch."""
        few = self.engine.config.steps_per_dispatch
        table = []
        for k, context in itertools.product(slots, contexts):
            run, seconds = next(self._runs), []
            for attempt, count in enumerate((few, few + tokens, few, few + tokens)):
                started = time.perf_counter()
                self.run(self._at_once(run, attempt, k, context, count))
                seconds.append(time.perf_counter() - started)
            more = max(min(seconds[1::2]) - min(seconds[::2]), 1e-6)  # on a busy machine it may come out negative
            table.append((k, context, more / tokens))
        return table

    async def _at_once(self, run: int, attempt: int, k: int, context: int, tokens: int) -> None:
        """A turn of `k` episodes, each with a context of its own: one that all share would be read faster. The engine
        keeps them from one attempt to the next, so that only the first prefills."""
        episodes = [EpisodeId(run, f"q{i}", attempt) for i in range(k)]
        texts = [self._text(1009 * run + i, context) for i in range(k)]
        requests = [TurnRequest(e, 0, t, context, tokens, ()) for e, t in zip(episodes, texts, strict=True)]
        await asyncio.gather(*map(self.engine.generate, requests))
        for episode in episodes:
            await self.engine.release(episode)

    async def asynchronous(self, trajectories: Sequence[simulation.Trajectory], workers: SlowWorkers) -> list[float]:
        """Seconds at which each trajectory ended, in the order of their ends."""
        started, run = time.perf_counter(), next(self._runs)

        async def one(index: int) -> float:
            context = self._prompt(run, index)
            for place, turn in enumerate(trajectories[index]):
                context = await self._turn(run, index, place, turn, context)
                if turn.worker_s is not None:
                    await workers.wait(turn.worker_s)
            await self.engine.release(_episode(run, index))
            return time.perf_counter() - started

        return sorted(await asyncio.gather(*map(one, range(len(trajectories)))))

    async def turn_barrier(self, trajectories: Sequence[simulation.Trajectory], workers: SlowWorkers) -> float:
        """Seconds of all trajectories, where all turns of a round, and then all its calls, end before the next."""
        started, run = time.perf_counter(), next(self._runs)
        contexts = {i: self._prompt(run, i) for i in range(len(trajectories))}
        for place in range(max(map(len, trajectories))):
            alive = [i for i in contexts if len(trajectories[i]) > place]
            turns = [self._turn(run, i, place, trajectories[i][place], contexts[i]) for i in alive]
            contexts = dict(zip(alive, await asyncio.gather(*turns), strict=True))
            calls = [trajectories[i][place].worker_s for i in alive]
            await asyncio.gather(*(workers.wait(seconds) for seconds in calls if seconds is not None))
        for index in range(len(trajectories)):
            await self.engine.release(_episode(run, index))
        return time.perf_counter() - started

    async def _turn(self, run: int, index: int, place: int, turn: simulation.Turn, context: np.ndarray) -> np.ndarray:
        """The context of the next turn."""
        request = TurnRequest(_episode(run, index), place, context, LENGTHS.prompt, turn.tokens, ())
        sampled = await self.engine.generate(request)
        return np.concatenate([context, sampled.tokens, self._text(index + place, LENGTHS.observation)])


def _episode(run: int, index: int) -> EpisodeId:
    return EpisodeId(run, f"q{index // GROUP}", index % GROUP)


def measure(name: str, slots: int, count: int, scale: float, seed: int) -> dict[str, Any]:
    """One case with one number of slots: everything that is compared."""
    case = CASES[name]
    trajectories = simulation.drawn(count, case.tokens, scale, seed)
    rollouts = Rollouts(case, slots, count)
    at_work = sorted({k for k in (1, 4, 8, 16, 32, 64) if k <= slots})
    contexts = [length // 2 for length in case.lengths[:-1]] or [LENGTHS.prompt]
    table = rollouts.token_times(at_work, contexts, tokens=case.tokens)
    step = simulation.table_time(table)
    workers = SlowWorkers()
    try:
        rollouts.engine.stats()
        ends = rollouts.run(rollouts.asynchronous(trajectories, workers))
        counters = rollouts.engine.stats()
        barrier_s = rollouts.run(rollouts.turn_barrier(trajectories, workers))
    finally:
        rollouts.run(workers.close())
        rollouts.generation.close()
    simulated = simulation.asynchronous(trajectories, step, slots, LENGTHS)
    return {
        "case": name,
        "slots": slots,
        "trajectories": count,
        "scale": scale,
        "seed": seed,
        "table": table,
        "engine_s": ends[-1],
        "engine_95_s": ends[int(0.95 * len(ends)) - 1],
        "barrier_s": barrier_s,
        "simulated_s": simulated[-1],
        "simulated_barrier_s": simulation.turn_barrier(trajectories, step, slots, LENGTHS),
        "critical_path_s": simulation.critical_path(trajectories, step, LENGTHS),
        "bound_s": simulation.lower_bound(trajectories, step, slots, LENGTHS),
        "counters": counters,
        "load": os.getloadavg()[0],
    }


HEADS = {
    "case": "case",
    "slots": "slots",
    "engine_s": "engine, s",
    "simulated_s": "simulated, s",
    "bound_s": "bound, s",
    "critical_path_s": "longest alone, s",
    "barrier_s": "barrier, s",
}


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown: seconds of the scaled run, and the two ratios that matter."""
    heads = [
        *HEADS.values(),
        "engine / simulated",
        "barrier / engine",
        "ms a token, most slots",
        "rows idle",
        "prefilled twice",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for row in rows:
        cells = [row[key] if isinstance(row[key], str | int) else f"{row[key]:.1f}" for key in HEADS]
        counters = row["counters"]
        token_ms = 1e3 * statistics.median(s for k, _, s in row["table"] if k == max(k for k, _, _ in row["table"]))
        cells += [f"{row['engine_s'] / row['simulated_s']:.2f}", f"{row['barrier_s'] / row['engine_s']:.1f}"]
        cells += [f"{token_ms:.2f}", f"{1 - counters['active_row_share']:.0%}", f"{counters['reprefilled_tokens']:,}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def main() -> None:
    known = parse()
    rows = []
    for name, slots, seed in itertools.product(known.cases, known.slots, range(known.seeds)):
        rows.append(measure(name, slots, known.trajectories, known.scale, seed))
        print("\n".join(table(rows[-1:])[0 if len(rows) == 1 else 2 :]), flush=True)
    first = rows[0]
    said = f"{first['trajectories']} trajectories, seconds and Workers scaled by {first['scale']:.3g}"
    print(json.dumps({"rows": rows, "table": [said, "", *table(rows)]}))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=lambda text: text.split(","), default=["light", "heavy"])
    parser.add_argument("--slots", type=lambda text: [int(n) for n in text.split(",")], default=[32, 64])
    parser.add_argument("--trajectories", type=int, default=256)
    parser.add_argument("--scale", type=float, default=1 / 6, help="seconds of ours for one of theirs")
    parser.add_argument("--seeds", type=int, default=1, help="so many draws of trajectories")
    parser.add_argument("--quick", action="store_true", help="a toy: 16 trajectories, 4 slots")
    known = parser.parse_args()
    if known.quick:
        known.cases, known.slots, known.trajectories, known.scale = ["toy"], [4], 16, 0.01
    return known


if __name__ == "__main__":
    keep_memory()  # as `rw train` does
    main()
