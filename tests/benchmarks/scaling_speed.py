"""How the speed of rollouts goes with the slots at work, the context they hold, and the number of trajectories.

    python tests/benchmarks/scaling_speed.py            # slots 1..256, contexts 256..16k, trajectories 32..1,024
    python tests/benchmarks/scaling_speed.py --quick    # a toy

All through the sampler engine. Trajectories are those of `rollout_speed.py`, and so are their Workers.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from typing import Any

import rollout_simulation as simulation
from rollout_speed import LENGTHS, Case, Rollouts
from slow_workers import SlowWorkers

from rw.kept_memory import keep_memory

SLOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (256, 512, 1024, 2048, 4096, 8192, 16384)
TRAJECTORIES = (32, 64, 128, 256, 512, 1024)
CONTEXT_SLOTS = 8
ROOM = 256  # tokens beyond a context, for what is sampled
SCALE = 1 / 20  # of Workers' seconds
HEADS = {
    "slots": "slots at work",
    "context": f"context, {CONTEXT_SLOTS} slots",
    "token_ms": "ms a token",
    "tokens_s": "tokens/s",
    "trajectories": "trajectories",
    "makespan_s": "makespan, s",
    "slowest_workers_s": "Workers of the slowest, s",
    "cpu_s": "CPU s",
}


def with_slots(shape: str, slots: Sequence[int], tokens: int) -> list[dict[str, Any]]:
    """Tokens a second of so many slots at a context of 128."""
    rollouts = Rollouts(Case(shape, tokens, (128 + ROOM,)), max(slots))
    times = rollouts.token_times(slots, [128], tokens)
    rollouts.generation.close()
    return [{"slots": k, "token_ms": 1e3 * seconds, "tokens_s": k / seconds} for k, _, seconds in times]


def with_context(shape: str, contexts: Sequence[int], slots: int, tokens: int) -> list[dict[str, Any]]:
    """Tokens a second of `slots` slots that hold so many tokens each."""
    rollouts = Rollouts(Case(shape, tokens, tuple(context + ROOM for context in contexts)), slots)
    times = rollouts.token_times([slots], contexts, tokens)
    rollouts.generation.close()
    return [{"context": c, "token_ms": 1e3 * seconds, "tokens_s": slots / seconds} for _, c, seconds in times]


def with_trajectories(shape: str, counts: Sequence[int], slots: int, tokens: int, scale: float) -> list[dict[str, Any]]:
    """Makespans of so many trajectories, and of the longest of them alone."""
    longest = LENGTHS.prompt + simulation.MOST_TURNS * (3 * tokens + LENGTHS.observation)
    rollouts = Rollouts(Case(shape, tokens, (longest // 4, longest)), slots, max(counts))
    workers, rows = SlowWorkers(), []
    for count in counts:
        trajectories = simulation.drawn(count, tokens, scale, seed=0)
        path = max(sum(turn.worker_s or 0 for turn in trajectory) for trajectory in trajectories)
        started = time.process_time()
        ends = rollouts.run(rollouts.asynchronous(trajectories, workers))
        sampled = sum(turn.tokens for trajectory in trajectories for turn in trajectory)
        row = {"trajectories": count, "makespan_s": ends[-1], "slowest_workers_s": path, "tokens_s": sampled / ends[-1]}
        rows.append({**row, "cpu_s": time.process_time() - started})
    rollouts.run(workers.close())
    rollouts.generation.close()
    return rows


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown of rows with the same keys."""
    lines = ["| " + " | ".join(HEADS[name] for name in rows[0]) + " |", "|" + " --- |" * len(rows[0])]
    for row in rows:
        lines.append("| " + " | ".join(f"{v:,}" if isinstance(v, int) else _short(v) for v in row.values()) + " |")
    return lines


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="tiny", help="of speed_work.py, for slots and contexts")
    parser.add_argument("--quick", action="store_true", help="a toy: three values of each")
    known = parser.parse_args()
    if known.quick:
        parts = {
            "slots": with_slots("toy", (1, 4), 16),
            "contexts": with_context("toy", (64, 128), 2, 16),
            "trajectories": with_trajectories("toy", (4, 8), 4, 4, 0.01),
        }
    else:
        parts = {
            "slots": with_slots(known.shape, SLOTS, 64),
            "contexts": with_context(known.shape, CONTEXTS, CONTEXT_SLOTS, 64),
            "trajectories": with_trajectories("small", TRAJECTORIES, 64, 16, SCALE),
        }
    lines = [line for rows in parts.values() for line in [*table(rows), ""]]
    print(json.dumps({**parts, "load": os.getloadavg()[0], "table": lines}))


if __name__ == "__main__":
    keep_memory()  # as `rw train` does
    main()
