"""What the runs of a sweep came to: one result a point, and the means of those that differ in their seed alone.

A point is read from its run's directory, finished or not; of one that was never started nothing is known. Knows no
process, no text and no plot.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rw.evaluation.accuracies import accuracies
from rw.evaluation.aggregate import WORDS, accuracy, is_lost, mean_cost, mode_shares
from rw.evaluation.aggregate import summary as summarise
from rw.evaluation.history import History, read_history
from rw.evaluation.intervals import Interval, wilson
from rw.types import Status

SEED = "seed"
FINISHED, RUNNING, STOPPED, FAILED, WAITING = "finished", "running", "stopped", "failed", "waiting"


@dataclasses.dataclass(frozen=True)
class Measured:
    """The numbers of a run's trained router; intervals are 95 %, costs USD a question at the frozen prices."""

    split: str  # of which questions: test, or validation where the run has no test
    accuracy: Interval | None
    average: Interval | None  # over domains, as the paper aggregates; test only
    cost_usd: Interval | None
    mode_shares: Mapping[str, float]
    invalid: float | None  # share
    lost: float | None  # questions lost to infrastructure, which count as wrong


@dataclasses.dataclass(frozen=True)
class PointResult:
    """One point of a sweep."""

    name: str
    values: Mapping[str, Any]  # what the sweep sets
    status: str
    steps: int  # made
    total_steps: int  # to make
    measured: Measured | None
    exit_code: int | None = None  # of its last try
    last_words: str = ""  # of a try that did not end well

    def as_dict(self) -> dict[str, Any]:
        """As the summary keeps it."""
        return dataclasses.asdict(self)


def measured_run(workdir: str | os.PathLike[str]) -> tuple[Measured | None, int, bool]:
    """(numbers, steps made, whether all that its config asks for is there) of a run; (None, 0, False) where none is.

    Raises:
        DataError: a file of its evaluation is damaged.
        WorkdirError: its files cannot be read.
    """
    if not (pathlib.Path(workdir) / "config.json").is_file():
        return None, 0, False
    history = read_history(workdir)
    whole = bool(summarise(history.arms, history.rows, history.identity)["finished"])
    return _of_test(history) or _of_validation(history), history.steps, whole


def _of_test(history: History) -> Measured | None:
    trained = history.arms.get("trained")
    if trained is None or not trained.outcomes:
        return None
    outcomes = trained.outcomes
    average = accuracies(outcomes)["average"]
    return Measured(
        split="test",
        accuracy=accuracy(outcomes),
        average=None if average is None else Interval(**average),
        cost_usd=mean_cost(outcomes),
        mode_shares=mode_shares(outcomes),
        invalid=sum(outcome.status == Status.TERMINAL_INVALID for outcome in outcomes) / len(outcomes),
        lost=float(sum(map(is_lost, outcomes))),
    )


def _of_validation(history: History) -> Measured | None:
    rows = [row for row in history.rows if all(_is_number(row.get(f"eval/{key}")) for key in ("accuracy", "questions"))]
    if not rows:
        return None
    best = rows[-1].get("eval/best_step")
    row = next((row for row in rows if row["step"] == best), rows[-1])
    questions = int(row["eval/questions"])
    cost = row.get("eval/cost_usd")
    return Measured(
        split="validation",
        accuracy=wilson(round(row["eval/accuracy"] * questions), questions),
        average=None,
        cost_usd=Interval(cost, None, None, questions) if isinstance(cost, float) else None,
        mode_shares={word: row.get(f"eval/mode_share/{word}", 0.0) for word in (*WORDS, "none")},
        invalid=row.get("eval/invalid"),
        lost=row.get("eval/excluded", 0.0) * questions,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


@dataclasses.dataclass(frozen=True)
class Setting:
    """All points that differ in nothing but their seed: means over the finished ones, and their range."""

    values: Mapping[str, Any]  # without the seed
    points: tuple[PointResult, ...]  # finished and measured
    missing: int  # points of this setting that are not

    def over_seeds(self, metric: str) -> tuple[float, float, float] | None:
        """(mean, lowest, highest) over the seeds of `accuracy`, `cost_usd` or a mode; None where it is not known."""
        found = [value for point in self.points if (value := point_metric(point, metric)) is not None]
        if not found:
            return None
        low, high = min(found), max(found)
        return min(max(sum(found) / len(found), low), high), low, high  # three times 0.7 has a mean below 0.7


def point_metric(point: PointResult, metric: str) -> float | None:
    """`accuracy`, `average`, `cost_usd` or the share of a mode, of one point; None where it is not known."""
    if point.measured is None:
        return None
    if metric in WORDS:
        return point.measured.mode_shares.get(metric)
    interval = getattr(point.measured, metric)
    return None if interval is None else interval.mean


def settings(results: Sequence[PointResult]) -> list[Setting]:
    """The points by what they set besides the seed, in the order in which the sweep has them."""
    grouped: dict[str, list[PointResult]] = {}
    for point in results:
        values = {key: value for key, value in point.values.items() if key != SEED}
        grouped.setdefault(json.dumps(values, sort_keys=True, default=str), []).append(point)
    found = []
    for members in grouped.values():
        known = tuple(point for point in members if point.status == FINISHED and point.measured is not None)
        values = {key: value for key, value in members[0].values.items() if key != SEED}
        found.append(Setting(values, known, len(members) - len(known)))
    return found
