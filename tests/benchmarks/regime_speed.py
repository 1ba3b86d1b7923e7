"""A training step in the regime `stream` against one in `collect`: seconds of each, and their ratio.

    python tests/benchmarks/regime_speed.py                    # the quickstart with slow Workers: a short update
    python tests/benchmarks/regime_speed.py --latency 0        # Workers answer at once: the device has no idle moment
    python tests/benchmarks/regime_speed.py --long-rows --latency 0.6       # the update is about a third of a step
    python tests/benchmarks/regime_speed.py --config.batch.packing=none                    # keys of the config, too

Two whole runs in one process, from the same router with the same queries and seeds: rollouts through the real engine
against simulated Workers over HTTP, update, publication. Their steps alternate, and which of the two begins changes, so
that a machine that is slower for a while is so for both. Medians with the least and the most; nothing fails for being
slow. The first steps, which compile, are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import dataclasses
import json
import pathlib
import statistics
import tempfile
from collections.abc import Sequence

from rw import progress
from rw.config import load_config
from rw.core.advantages import resolve
from rw.initial import initial_router
from rw.kept_memory import keep_memory
from rw.parts import open_parts
from rw.train import Trainer
from rw.workdir import Workdir

REGIMES = ("collect", "stream")
COLUMNS = ("perf/step_s", "perf/rollout_s", "perf/train_s", "sampler/idle_work_s", "sampler/idle_work_delay_s")
QUICKSTART = pathlib.Path(__file__).parents[2] / "configs" / "quickstart.py"
# Every router chooses its mode, the case in which streamed sums have two divisors; no evaluation, no checkpoint.
OVERRIDES = {
    "schedule.cold_batches": 0, "schedule.autonomous_from": 0, "evaluation.every": 0, "evaluation.test_queries": 0,
    "checkpoint.every": 1000, "log.tensorboard": False, "log.trajectories_every": 0,
}  # fmt: skip
# Every rollout padded to as many tokens as it has where Workers say much. Sampling takes what it took: of a larger
# router, too, the update is many times as much work as decoding.
LONG_ROWS = {
    "batch.packing": "none", "batch.micro_batch": 1, "batch.length_buckets": "128,2048", "batch.policy_buckets": "128,",
}  # fmt: skip


def main() -> None:
    """Prints a table, and one JSON line with its figures."""
    known, more = parse()
    rows = asyncio.run(measure(known, more))
    print(json.dumps(report(rows, known)))


def parse() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default=str(QUICKSTART))
    parser.add_argument("--latency", type=float, default=1.0, help="mean seconds of a Worker's answer")
    parser.add_argument("--long-rows", action="store_true", help="rollouts of 2,048 tokens, padded")
    parser.add_argument("--steps", type=int, default=6, help="of each regime that count")
    parser.add_argument("--warm", type=int, default=2, help="steps of each before")
    return parser.parse_known_args()


async def measure(known: argparse.Namespace, more: Sequence[str]) -> dict[str, list[dict[str, float]]]:
    """The metrics of each regime's steps that count."""
    given = [tuple(word.removeprefix("--config.").split("=", 1)) for word in more]
    own = OVERRIDES | (LONG_ROWS if known.long_rows else {})
    overrides = [*((key, str(value)) for key, value in own.items()), *given]
    overrides.append(("workers.latency_s", str(known.latency)))
    progress.be_quiet()
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        trainers = {}
        for regime in REGIMES:
            config = load_config(known.config, [*overrides, ("regime", regime)])
            workdir = stack.enter_context(Workdir(pathlib.Path(folder) / regime))
            parts = await stack.enter_async_context(open_parts(config, workdir))
            trainer = Trainer(parts, await initial_router(parts), resolve(config.advantage.function))
            trainers[regime] = await stack.enter_async_context(trainer)
            await trainer.resume()
        print("compiling every shape of both regimes, which takes minutes", flush=True)
        await compile_once(trainers)
        rows = {regime: [] for regime in REGIMES}
        for step in range(known.warm + known.steps):
            for regime in REGIMES if step % 2 else REGIMES[::-1]:
                await trainers[regime].step()
                row = trainers[regime].metrics.last_row
                if step >= known.warm:
                    rows[regime].append(row)
                seconds = "  ".join(f"{name.split('/')[1]} {row[name]:.2f}" for name in COLUMNS)
                early = f"{row['perf/early_reference']:.2f} {row['perf/early_gradient']:.2f}"
                print(f"step {step + 1} {regime:8} {seconds}  early {early}", flush=True)
    return rows


async def compile_once(trainers: dict[str, Trainer]) -> None:
    """All shapes before the first step; both regimes use the programs of one learner."""
    stream, collect = trainers["stream"], trainers["collect"]
    collect.learner = copy.copy(stream.learner)
    collect.learner.config = dataclasses.replace(stream.learner.config, regime="collect")
    await stream.parts.device.run(stream.learner.warm_up, stream.state)
    for trainer in trainers.values():
        await trainer.engine.warm_up()


def report(rows: dict[str, list[dict[str, float]]], known: argparse.Namespace) -> dict[str, object]:
    """Prints medians by regime; returns them with the ratios of steps that began alike."""
    found = {"latency_s": known.latency, "long_rows": known.long_rows, "steps": known.steps}
    for regime, steps in rows.items():
        for name in COLUMNS:
            values = [row[name] for row in steps]
            found[f"{regime}/{name}"] = [statistics.median(values), min(values), max(values)]
        said = "  ".join(f"{name.split('/')[1]} {found[f'{regime}/{name}'][0]:.2f}" for name in COLUMNS)
        print(f"{regime:8} {said}")
    pairs = zip(rows["collect"], rows["stream"], strict=True)
    ratios = [stream["perf/step_s"] / collect["perf/step_s"] for collect, stream in pairs]
    share = statistics.median(row["perf/train_s"] / row["perf/step_s"] for row in rows["collect"])
    found |= {"ratio": [statistics.median(ratios), min(ratios), max(ratios)], "update_share": share}
    print(
        f"stream / collect {found['ratio'][0]:.3f} ({min(ratios):.3f}-{max(ratios):.3f}); update {share:.2f} of a step"
    )
    return found


if __name__ == "__main__":
    keep_memory()  # as `rw train` does
    main()
