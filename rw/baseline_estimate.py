"""What `rw baselines` may cost, and who confirms it before it is spent.

Pure arithmetic on the config, its questions and what the workdir holds already; calls no Worker and writes nothing.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rw.arms import conditions
from rw.dry_run import (
    amount,
    count_tokens,
    judge_caps,
    notes,
    phase_tables,
    read_measured,
    warm_start_is_there,
    warm_start_phase,
)
from rw.errors import ConfigError, DataError
from rw.estimate import NOTHING, Estimate, Phase, Range, WorkerTerms, estimate
from rw.evaluation.baselines import PREFIX, PROMPTED
from rw.evaluation.outcomes import arm_path, read_arm
from rw.evaluation.table import print_one, terminal
from rw.questions import draw_of_generalisation, draw_of_test
from rw.run_config import RunConfig
from rw.types import Mode, Query
from rw.worker_pool import is_replay_alone, worker_endpoints
from rw.workers.pricing import PriceTable
from rw.workers.request import worst_case_usd


@dataclasses.dataclass(frozen=True)
class Work:
    """What is to be done: questions of matrices that no file holds, and arms that make calls of their own."""

    missing: dict[str, Sequence[Query]]  # by split
    episodes: Sequence[str]  # names of baselines
    test_questions: int

    @property
    def is_done(self) -> bool:
        """Whether nobody need be asked."""
        return not self.missing and not self.episodes


def episodes_left(
    config: RunConfig,
    workdir_path: str,
    names: Sequence[str],
    test: Sequence[Query],
    trained_on: Mapping[str, Any] | None,
) -> list[str]:
    """Those of these baselines that the workdir does not hold for these questions under this config.

    Args:
        trained_on: what learned routers' headers say of what they know; None where that is not known yet.
    """
    wanted = {
        **draw_of_test(config),
        **draw_of_generalisation(config),
        "queries": len(test),
        "seed": config.seed,
        "conditions": conditions(config),
    }

    def is_kept(name: str) -> bool:
        try:
            about = read_arm(arm_path(workdir_path, f"{PREFIX}{name}")).about
        except DataError:
            return False
        if name != "knn_multi":
            more = {}
        elif trained_on is not None:
            more = trained_on
        else:
            return False
        return all(about.get(key) == value for key, value in {**wanted, **more}.items())

    return [name for name in names if not is_kept(name)]


@dataclasses.dataclass(frozen=True)
class Costs:
    """The estimate, and what it rests on in sentences; `shortfalls` are caps that cannot be enough."""

    found: Estimate
    sentences: Sequence[str]
    shortfalls: Sequence[str]


def costs_of(config: RunConfig, workdir_path: str, work: Work) -> Costs:
    """Calls and USD of the work."""
    endpoints = worker_endpoints(config)
    prices = PriceTable.from_endpoints(endpoints)
    measured = read_measured(workdir_path, config.warmstart.policy == "drills")
    lengths, content = count_tokens(config)
    terms = [
        WorkerTerms(
            worker.id,
            prices[worker.id],
            worker.max_output_tokens,
            *measured.usd_by_worker.get(worker.id, (None, 0)),
        )
        for worker in endpoints
    ]
    shows_previous = config.protocol.multi_previous == "reply"
    each = [estimate([], [one], lengths, shows_previous).rollout_usd[Mode.SINGLE] for one in terms]
    question_usd = sum(each, NOTHING)  # every Worker once
    phases = []
    for split, queries in work.missing.items():
        rollouts = len(queries) * len(terms)
        phases.append(
            (Phase(f"matrix of {split} questions", 0, rollouts), _times(rollouts), question_usd * len(queries))
        )
    if "knn_multi" in work.episodes:
        phases.append(_two_calls(estimate([], terms, lengths, shows_previous), work.test_questions))
    routers = estimate(
        _router_phases(config, workdir_path, work), terms, lengths, shows_previous, measured.calls_by_mode
    )
    found = dataclasses.replace(routers, phases=[*phases, *routers.phases])
    reserved = {worker.id: worst_case_usd(prices, worker, content) for worker in endpoints}
    shortfalls, remarks = judge_caps(config, found, reserved)
    resumed = "What the journal of a run that was stopped holds is not paid again."
    return Costs(found, [*notes(config, lengths, measured, terms), resumed, *remarks], shortfalls)


def show(costs: Costs, nothing_sent: bool) -> None:
    """Prints the tables, and what they rest on."""
    console = terminal()
    for table in phase_tables(costs.found):
        print_one(table, console)
    for sentence in (*costs.sentences, *costs.shortfalls):
        console.print(sentence, markup=False, soft_wrap=True)
    if nothing_sent:
        console.print("Nothing was sent and nothing was spent.", markup=False, soft_wrap=True)


def confirm(config: RunConfig, costs: Costs, yes: bool) -> None:
    """Asks on the terminal whether this may be spent; says nothing where nobody is paid.

    Raises:
        ConfigError: it was declined, or nobody is there to say it.
    """
    usd = costs.found.usd
    if config.workers.kind != "http" or is_replay_alone(config) or usd.worst == 0 or yes:
        return
    said = f"typically {amount(usd.typical)} USD, at most {amount(usd.worst)} USD"
    if not sys.stdin.isatty():
        raise ConfigError(
            f"this may cost {said}, and nobody is here to confirm it: give --yes, or --dry-run to see more"
        )
    try:
        answer = input(f"This may cost {said}. Spend it? [y/N] ")
    except (EOFError, KeyboardInterrupt):
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise ConfigError("it was not confirmed, and nothing was sent")


def _router_phases(config: RunConfig, workdir_path: str, work: Work) -> list[Phase]:
    """Those of the untrained router: its mode free or the only one of the config, and each mode forced."""
    names = [name for name in work.episodes if name in PROMPTED]
    count, only = work.test_questions, config.schedule.mode
    phases = []
    if names and not warm_start_is_there(config, workdir_path):
        phases.append(warm_start_phase(config))
    for name in names:
        mode = PROMPTED[name] or only
        phases.append(Phase(name, 0, count) if mode is None else Phase(name, count, 0, mode=mode))
    return phases


def _two_calls(all_modes: Estimate, questions: int) -> tuple[Phase, Range, Range]:
    """A multi rollout of two calls a question; the most that a mode allows would be twice as many."""
    usd = all_modes.rollout_usd[Mode.MULTI]
    calls = all_modes.rollout_calls[Mode.MULTI]
    two = Range(usd.low * 2 / calls.low, usd.typical * 2 / calls.typical, usd.worst * 2 / calls.worst)
    return Phase("knn_multi", questions, 0, mode=Mode.MULTI), _times(2 * questions), two * questions


def _times(calls: int) -> Range:
    return Range(calls, calls, calls)
