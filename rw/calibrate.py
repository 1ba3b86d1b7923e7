"""`rw calibrate --config FILE --checkpoint PATH`: what a trajectory costs, for the efficiency reward (C_ref of Eq. 5).

As RouteWeaver, Appendix C.1, found its own: 128 training queries × 8 rollouts of the router as it is after cold start,
with the decoding of training. The paper does not say how modes are chosen there; we force them, a third of the queries
each, as cold start does, because its number is more than any single call can cost at its prices and limits. The result
goes to <workdir>/reference_cost.json, which `reward.reference_cost_file` names.

Rollouts are journaled: the same command continues one that was stopped, and pays for no call twice.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import itertools
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from rw import progress
from rw.arms import conditions
from rw.cli import Arguments, run_entry
from rw.cluster import ALONE, Membership, placed
from rw.config import as_dict, load_config
from rw.core.schedule import forced_modes
from rw.dry_run import dry_run_calibration
from rw.errors import ConfigError, DataError
from rw.evaluation.reference_cost import describe, read_reference_cost, write_reference_cost
from rw.initial import read_router
from rw.interruptible import run_interruptible
from rw.learner.checkpoint import config_fingerprint
from rw.learner.publish import publish
from rw.learner.state import fingerprint
from rw.memory import check_memory, evaluation_memory
from rw.parts import Parts
from rw.processes import joined
from rw.questions import QueryBatches, query_batches
from rw.run_config import RunConfig
from rw.sampler.engine import SamplerEngine
from rw.saved_router import RouterPlace, find_router
from rw.types import Group, Query

FILE = "reference_cost.json"
SCOPE = "calibration"
BATCHES_SEARCHED = 20  # times as many as would do if no question came twice


def main(argv: Sequence[str] | None = None) -> int:
    """`rw calibrate`; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    return run_entry("calibrate", argv, _calibrate, _dry_run, _add_flags)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="PATH", help="a run's directory, saved parameters, or Hugging Face's")
    add("--step", type=int, metavar="N", help="of a run: its router of that step (default: the best, or the last)")
    add("--queries", type=int, default=128, metavar="N", help="training questions (default: the paper's 128)")
    add("--rollouts", type=int, default=8, metavar="K", help="of each (default: the paper's 8)")


def _calibrate(given: Arguments) -> int:
    flags = given.flags
    config = calibration_config(load_config(given.config, given.overrides), flags.rollouts)
    place = find_router(flags.checkpoint, flags.step)
    return calibrate(config, given.workdir, place, flags.queries, placed(flags))


def _dry_run(given: Arguments) -> int:
    flags = given.flags
    find_router(flags.checkpoint, flags.step)
    config = calibration_config(load_config(given.config, given.overrides), flags.rollouts)
    check_queries(config, flags.queries)
    return dry_run_calibration(config, given.workdir, flags.queries)


def calibration_config(config: RunConfig, rollouts_per_query: int) -> RunConfig:
    """The config of a run without anything held out, which a calibration does not ask."""
    evaluation = dataclasses.replace(config.evaluation, every=0, test_queries=0)
    return dataclasses.replace(config, evaluation=evaluation, rollouts_per_query=rollouts_per_query)


def calibrate(
    config: RunConfig, workdir_path: str, router: RouterPlace, queries: int = 128, place: Membership = ALONE
) -> int:
    """Measures C_ref in `workdir_path`, which nobody else may use meanwhile; returns the exit code.

    Args:
        place: this process's in a job of several, which must all be started alike.

    Raises:
        RwError: before anything is spent, where config, workdir or router cannot be used.
    """
    check_queries(config, queries)
    after_stop = "the same command continues the calibration"
    with joined(place) as processes:
        body = functools.partial(run, router=router, queries=queries)
        return run_interruptible(config, workdir_path, body, after_stop, processes, trains=False)


def check_queries(config: RunConfig, queries: int) -> None:
    """Raises ConfigError or DataError where there are not so many different training questions."""
    if queries < 1:
        raise ConfigError(f"--queries {queries} must be at least 1")
    training_queries(query_batches(config), config.queries_per_batch, queries)


async def run(parts: Parts, router: RouterPlace, queries: int) -> None:
    """Measures and writes, unless that was done."""
    asked = training_queries(parts.queries, parts.config.queries_per_batch, queries)
    path, about = parts.workdir.file(FILE), identity(parts, router, asked)
    if await parts.processes.of_first(path.exists):
        check_same(path, about)
        progress.say(f"{path} is there already: {cost_line(read_reference_cost(path))}")
        return
    await parts.device.run(check_memory, parts.config, None, evaluation_memory)
    found = describe(await roll_out(parts, router, asked), parts.config.reward.retry_cost)
    parts.interrupts.close()  # all is done; one that is stopped now must not end with another exit code than the first
    if parts.processes.is_first:
        write_reference_cost(path, {**found, **about})
        progress.say(progress.spent_line(parts.spent, parts.is_nominal))
        progress.say(f"{cost_line(found)}; train with it: --config.reward.reference_cost_file={path}")
    await parts.processes.exchange(None)  # whoever ends before the file is there could not learn that it never came
    parts.journals.discard(scope_of(queries))


async def roll_out(parts: Parts, router: RouterPlace, asked: Sequence[Query]) -> list[Group]:
    """The groups of all queries, each with its mode forced, sampled as in training."""
    config, only, queries = parts.config, parts.config.schedule.mode, len(asked)
    modes = list(forced_modes(config.seed, 0, queries)) if only is None else [only] * queries
    for query in asked:
        parts.protocol.check_fits(query)
    params, step = await parts.device.run(read_router, parts, router, "--checkpoint")
    parts.journals.identify(router=await parts.device.run(fingerprint, params))
    weights = await parts.device.run(publish, params, config.model, step or 0)
    engine_config = dataclasses.replace(config.engine, deterministic=config.deterministic)
    own = -(-queries // parts.processes.count) * config.rollouts_per_query
    episodes = min(config.rollout.concurrency, own)
    engine = SamplerEngine(
        parts.codec, config.model, config.sampling, engine_config, parts.device, config.seed, episodes
    )
    await engine.publish(weights)
    try:
        with parts.booked_as(SCOPE), progress.rollouts(SCOPE) as on_progress:
            return await parts.collect(
                engine,
                asked,
                modes,
                scope=scope_of(queries),
                rollouts_per_query=config.rollouts_per_query,
                step=0,
                policy_version=weights.version,
                on_progress=on_progress,
            )
    finally:
        await engine.close()


def scope_of(queries: int) -> str:
    """The journal: with another number of questions, other modes are assigned to them."""
    return f"{SCOPE}_{queries:06d}"


def training_queries(batches: QueryBatches, size: int, count: int) -> list[Query]:
    """The first `count` different questions that a run trains on, in its order.

    Raises:
        DataError: there are not so many.
    """
    found: dict[str, Query] = {}
    for b in range(BATCHES_SEARCHED * -(-count // size)):
        for query in batches(b, size):
            found.setdefault(query.prompt, query)
        if len(found) >= count:
            return list(itertools.islice(found.values(), count))
    raise DataError(f"--queries {count}: there are {len(found)} different questions to train on; take as many at most")


def identity(parts: Parts, router: RouterPlace, asked: Sequence[Query]) -> dict[str, Any]:
    """What a calibration depends on, beside what was measured."""
    config, only = parts.config, parts.config.schedule.mode
    return {
        "queries": len(asked),
        "questions": hashlib.sha256(json.dumps([query.prompt for query in asked]).encode()).hexdigest(),
        "rollouts_per_query": config.rollouts_per_query,
        "modes": "forced, balanced" if only is None else f"forced, {only.word} alone",
        "sampling": dataclasses.asdict(config.sampling),
        "seed": config.seed,
        "prices_usd_per_million": {w.id: [w.input_price, w.output_price] for w in parts.endpoints.values()},
        "retry_cost": config.reward.retry_cost,
        "conditions": conditions(config),
        "checkpoint": {"path": str(router.path), "about": router.about},
        "config_fingerprint": config_fingerprint(as_dict(config)),
    }


def check_same(path: pathlib.Path, about: dict[str, Any]) -> None:
    """Raises ConfigError where the file there was made otherwise. What an older file does not say is not held against
    it, nor are keys that rollouts do not depend on."""
    stored = read_reference_cost(path)
    known = [key for key in about if key in stored and key != "config_fingerprint"]
    if changed := [key for key in known if stored[key] != about[key]]:
        raise ConfigError(f"{path} was made with other {', '.join(changed)}; take another --workdir, or remove it")


def cost_line(found: dict[str, Any]) -> str:
    """The result in one line."""
    low, high = found["interval_95_usd"]
    lost, incomplete = found["infrastructure_failures"], found["incomplete_cost_records"]
    return (
        f"reference cost {found['reference_cost_usd']:.6g} USD (95 % interval {low:.3g} to {high:.3g}), the "
        f"{found['percentile']:g}th percentile of {found['counted']} of {found['rollouts']} rollouts; {lost} lost to "
        f"infrastructure, {incomplete} without a whole cost record"
    )


if __name__ == "__main__":
    sys.exit(main())
