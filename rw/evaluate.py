"""`rw evaluate --config FILE --checkpoint PATH`: what a saved router earns on test questions and held-out sets.

Greedy, one rollout a question, through training's episodes, Workers and budgets. Beside it the same router answers with
each mode forced, so that the mode it chose can be held against the others. The working directory is its own: that of
the training run is only read, and need not be there.

Every arm is kept as soon as it is whole; the same command continues a stopped evaluation and pays for no call twice.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from rw import cli, progress
from rw.arms import Arms, evaluated_arms
from rw.cluster import ALONE, Membership, placed
from rw.config import as_dict, load_config
from rw.dry_run import dry_run_evaluation
from rw.errors import ConfigError, WorkdirError
from rw.evaluation.outcomes import named_arms
from rw.evaluation.results import print_results, write_results
from rw.final_evaluation import published_router, routed_arms, router_arms
from rw.greedy import GreedyRouter
from rw.initial import random_params, read_router, saved_params
from rw.interruptible import run_interruptible
from rw.learner.checkpoint import config_changes
from rw.learner.exported import checkpoint_steps
from rw.memory import check_memory, evaluation_memory
from rw.parts import Parts
from rw.processes import joined
from rw.run_config import RunConfig
from rw.saved_router import RouterPlace, find_router
from rw.typed_values import did_you_mean
from rw.types import Mode, PublishedWeights
from rw.warmstart import warm_start

WARM_START = "warm_start"
DEFAULT_ARMS = ("trained", "forced")
KNOWN_ARMS = (*DEFAULT_ARMS, *(f"forced_{mode.word}" for mode in Mode), WARM_START)


@dataclasses.dataclass(frozen=True)
class Asked:
    """What an evaluation is to do."""

    checkpoint: str  # as it was given
    place: RouterPlace  # where that is
    arms: tuple[str, ...] = DEFAULT_ARMS  # of KNOWN_ARMS
    against: tuple[str, ...] = ()  # WORKDIR or WORKDIR:ARM, which the results compare with

    def __post_init__(self):
        for arm in self.arms:
            if arm not in KNOWN_ARMS:
                hint = did_you_mean(arm, KNOWN_ARMS, cutoff=0.4) or f"; there are {', '.join(KNOWN_ARMS)}"
                raise ConfigError(f"unknown arm {arm!r} of --arms{hint}")
        if not self.arms:
            raise ConfigError(f"--arms is empty; name some of {', '.join(KNOWN_ARMS)}")
        for reference in self.against:
            named_arms(reference)  # refuses what the results could not be compared with


def main(argv: Sequence[str] | None = None) -> int:
    """`rw evaluate`; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    return cli.run_entry("evaluate", argv, _evaluate, _dry_run, _add_flags)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="PATH", help="a run's directory, saved parameters, or Hugging Face's")
    add("--step", type=int, metavar="N", help="of a run: its router of that step (default: the best, or the last)")
    add("--arms", default=",".join(DEFAULT_ARMS), metavar="A,B", help=f"of {', '.join(KNOWN_ARMS)}")
    add("--against", nargs="+", default=[], metavar="WORKDIR[:ARM]", help="compare with these runs, too")


def _asked(given: cli.Arguments) -> Asked:
    flags = given.flags
    arms = tuple(filter(None, (arm.strip() for arm in flags.arms.split(","))))
    return Asked(flags.checkpoint, find_router(flags.checkpoint, flags.step), arms, tuple(flags.against))


def _evaluate(given: cli.Arguments) -> int:
    config = load_config(given.config, given.overrides)
    return evaluate(config, given.workdir, _asked(given), placed(given.flags))


def _dry_run(given: cli.Arguments) -> int:
    config, asked = load_config(given.config, given.overrides), _asked(given)
    modes = routed_arms(asked.arms)
    free = sum(mode is None for mode in modes.values()) + (WARM_START in asked.arms)
    return dry_run_evaluation(config, given.workdir, free, [mode for mode in modes.values() if mode is not None])


def evaluate(config: RunConfig, workdir_path: str, asked: Asked, place: Membership = ALONE) -> int:
    """Evaluates in `workdir_path`, which nobody else may use meanwhile; returns the exit code. Works in notebooks too.

    Args:
        place: this process's in a job of several, which must all be started alike; nothing may have asked jax for its
            devices before.

    Raises:
        RwError: before anything is spent, where config, workdir or checkpoint cannot be used.
    """
    check_workdir(workdir_path)
    after_stop = "the same command continues the evaluation"
    with joined(place) as processes:
        body = functools.partial(run, asked=asked)
        return run_interruptible(config, workdir_path, body, after_stop, processes, trains=False)


def check_workdir(path: str) -> None:
    """Raises WorkdirError where a training run has that directory: its own evaluation is there."""
    if (pathlib.Path(path) / "metrics.jsonl").exists() or checkpoint_steps(pathlib.Path(path) / "checkpoints"):
        raise WorkdirError(f"{path} is the working directory of a training run; take another --workdir")


async def run(parts: Parts, asked: Asked) -> None:
    """All arms, then the results of all that the directory has."""
    await parts.device.run(check_memory, parts.config, None, evaluation_memory)
    arms = evaluated_arms(parts)
    parts.journals.identify(run=arms.conditions)  # whatever else a config says of training
    if parts.processes.is_first:
        parts.workdir.write_config(as_dict(parts.config))
    router = GreedyRouter(parts, len(arms.queries))
    try:
        await answer_all(arms, router, asked)
    finally:
        await router.close()
    parts.interrupts.close()  # all is done; one that is stopped now must not end with another exit code than the first
    if parts.processes.is_first:
        progress.say(progress.spent_line(parts.spent, parts.is_nominal))
        print_results(write_results(parts.workdir.path, against=asked.against))
    await parts.processes.exchange(None)  # whoever ends before the results are there could not learn they never came


async def answer_all(arms: Arms, router: GreedyRouter, asked: Asked) -> None:
    """The arms of the checkpoint's router, then that of the initial one."""
    parts, place = arms.parts, asked.place
    progress.say(f"router: {asked.checkpoint}, {place.about}; {len(arms.queries)} questions")
    say_differences(place, parts.config)
    params, step = await parts.device.run(read_router, parts, place, "--checkpoint")
    weights, about = await published_router(arms, params, step, asked.checkpoint, place.about)
    del params  # a router as it is read and another one need not fit together
    of_checkpoint = {"router": about["router"]}
    arms.set_aside(lambda arm: of_checkpoint if arm in KNOWN_ARMS and arm != WARM_START else {})
    await router_arms(arms, router, routed_arms(asked.arms), weights, about)
    del weights
    if WARM_START in asked.arms:
        await router_arms(arms, router, {WARM_START: None}, *await _initial(arms, place))


async def _initial(arms: Arms, place: RouterPlace) -> tuple[PublishedWeights, dict[str, Any]]:
    """The router that the config begins from.

    Raises:
        ConfigError: it would have to be trained first.
    """
    parts, init = arms.parts, arms.parts.config.init
    if init.source == "random":
        return await published_router(arms, await parts.device.run(random_params, parts), 0, "", "random parameters")
    if init.source == "params":
        return await published_router(arms, await parts.device.run(saved_params, parts), 0, init.path, "init.path")
    if init.path and pathlib.Path(init.path).exists():
        return await published_router(arms, await warm_start(parts), 0, init.path, "the warm start of the config")
    kept = next((path for path in reference_places(place) if path.exists()), None)
    if kept is None:
        raise ConfigError(
            "the initial router of this config is a warm start that is not there: set --config.init.path to one that "
            "`rw warmstart` made, or leave warm_start out of --arms"
        )
    found = RouterPlace(kept, "the initial router of the checkpoint's run", run_config=place.run_config)
    params, _ = await parts.device.run(read_router, parts, found, "--checkpoint")
    return await published_router(arms, params, 0, str(kept), found.about)


def reference_places(place: RouterPlace) -> list[pathlib.Path]:
    """Where the run that made a router keeps its initial one; nowhere for a router that is of no run."""
    return [parent / "reference" for parent in place.path.absolute().parents[:2]] if place.run_config else []


def say_differences(place: RouterPlace, config: RunConfig) -> None:
    """Tells what the router was trained under and is not evaluated under."""
    trained = (place.run_config or {}).get("protocol") or {}
    protocol = {name: value for name, value in dataclasses.asdict(config.protocol).items() if name in trained}
    if changes := config_changes({"protocol": {name: trained[name] for name in protocol}}, {"protocol": protocol}):
        progress.say(f"trained with another protocol than it is evaluated with: {'; '.join(changes)}")


if __name__ == "__main__":
    sys.exit(main())
