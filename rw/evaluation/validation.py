"""Validation while training: the numbers of one validation, and which router was the best so far. Knows no files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rw.evaluation.aggregate import mean_cost
from rw.evaluation.outcomes import Outcome
from rw.types import Mode, Status

MODES = (*(mode.word for mode in Mode), "none")


def validation_metrics(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Numbers of one validation, `eval/…`; shares are of all questions, those lost to infrastructure included.

    `accuracy` and `accuracy/{kind}`, `mode_share/{mode}` and `mode_share/{kind}/{mode}` (`none`: no mode was declared),
    `invalid` and `excluded` (lost to infrastructure, counted as wrong), `cost_usd` (mean, over those whose cost is
    known and that infrastructure did not cut short), `questions`.
    """
    kinds = sorted({outcome.kind for outcome in outcomes})
    row = {
        "eval/questions": float(len(outcomes)),
        "eval/accuracy": _share(outcome.correct for outcome in outcomes),
        "eval/invalid": _share(outcome.status == Status.TERMINAL_INVALID for outcome in outcomes),
        "eval/excluded": _share(outcome.status == Status.INFRASTRUCTURE_FAILURE for outcome in outcomes),
    }
    if cost := mean_cost(outcomes):
        row["eval/cost_usd"] = cost.mean
    row |= {f"eval/mode_share/{word}": _share((o.mode or "none") == word for o in outcomes) for word in MODES}
    for kind in kinds:
        members = [outcome for outcome in outcomes if outcome.kind == kind]
        row[f"eval/accuracy/{kind}"] = _share(outcome.correct for outcome in members)
        row |= {f"eval/mode_share/{kind}/{word}": _share((o.mode or "none") == word for o in members) for word in MODES}
    return row


def best_validation(rows: Iterable[Mapping[str, Any]]) -> tuple[int, float] | None:
    """(step, accuracy) of the best validated router; the earliest of equals; None where nothing was validated."""
    best = None
    for row in rows:
        accuracy = measured_accuracy(row)
        if accuracy is not None and (best is None or accuracy > best[1]):
            best = (int(row["step"]), accuracy)
    return best


def measured_accuracy(row: Mapping[str, Any]) -> float | None:
    """Accuracy on the questions that infrastructure did not lose, by which the best router is chosen: an outage says
    nothing about the router that was being validated. None where nothing is left, or the row is of no validation."""
    left = 1.0 - row.get("eval/excluded", 0.0)
    return float(row["eval/accuracy"] / left) if "eval/accuracy" in row and left > 1e-9 else None


def _share(flags: Iterable[bool]) -> float:
    flags = list(flags)
    return sum(flags) / len(flags) if flags else 0.0
