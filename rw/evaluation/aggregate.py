"""What the arms of an evaluation and the rows of a run come to: shares, intervals, margins, and the summary of all.

Pure functions of records. A question lost to infrastructure counts as wrong in every accuracy and is counted beside.
Nothing here knows a file or a plot.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rw.errors import DataError
from rw.evaluation.intervals import Interval, mean_interval, paired_difference, wilson
from rw.evaluation.outcomes import ArmResult, Outcome
from rw.types import Mode, Status

WORDS = tuple(mode.word for mode in Mode)
NO_MODE_WORD = "none"


@dataclasses.dataclass(frozen=True)
class Identity:
    """What a run is called and was asked to do."""

    run: str  # name of its directory
    seed: int | None
    source: str | None  # of the questions
    steps: int | None  # that it is to make
    test_queries: int  # that are to be answered at its end; 0: none
    arms: tuple[str, ...]  # who is to answer them; `forced` and `scripted` stand for several
    config_fingerprint: str


def accuracy(outcomes: Sequence[Outcome]) -> Interval | None:
    """Share that is correct; None without questions."""
    return wilson(sum(outcome.correct for outcome in outcomes), len(outcomes))


def accuracy_by_kind(outcomes: Sequence[Outcome]) -> dict[str, Interval]:
    """Accuracy on each type of question."""
    return {kind: accuracy(members) for kind, members in by_kind(outcomes).items()}


def by_kind(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """The outcomes of each type of question, types in alphabetical order."""
    return {
        kind: [outcome for outcome in outcomes if outcome.kind == kind]
        for kind in sorted({outcome.kind for outcome in outcomes})
    }


def mode_shares(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Share of the questions answered in each mode; `none`: no mode was declared. {} without questions."""
    counts = Counter(outcome.mode or NO_MODE_WORD for outcome in outcomes)
    return {word: counts[word] / len(outcomes) for word in (*WORDS, NO_MODE_WORD)} if outcomes else {}


def majority_mode(outcomes: Sequence[Outcome]) -> str | None:
    """The mode declared most often, the first in the order of modes where several are; None where none was."""
    counts = Counter(outcome.mode for outcome in outcomes if outcome.mode is not None)
    return max(WORDS, key=lambda word: counts[word]) if counts else None


def mean_cost(outcomes: Sequence[Outcome]) -> Interval | None:
    """Mean Worker cost of a question in USD, over those whose cost is known and whole: not those that infrastructure
    cut short. Its `n` says how many these are."""
    return mean_interval([o.cost_usd for o in outcomes if o.cost_usd is not None and not is_lost(o)])


def is_lost(outcome: Outcome) -> bool:
    """Whether infrastructure prevented the answer."""
    return outcome.status == Status.INFRASTRUCTURE_FAILURE


def difference(first: ArmResult, second: ArmResult) -> Interval | None:
    """Accuracy of one arm minus that of another on the same questions, paired by question.

    Raises:
        DataError: the arms answer different questions, or one answers a question twice.
    """
    pairs = [_by_query(first), _by_query(second)]
    _check_same(first, second)
    return paired_difference(*([answers[query].correct for query in pairs[0]] for answers in pairs))


def check_same_questions(arms: Mapping[str, ArmResult]) -> None:
    """Raises DataError, naming both arms, where one answers other questions than `trained` (or else the first arm)."""
    if arms:
        first = arms.get("trained", next(iter(arms.values())))
        for arm in arms.values():
            _check_same(first, arm)


def best_of(arms: Mapping[str, ArmResult], prefix: str) -> str | None:
    """Among the arms whose name begins so, the one with most right answers (the first of equals); None without any.

    It is chosen on the very questions it is compared on, which makes it a hard bar rather than a fair guess.
    """
    names = [name for name in arms if name.startswith(prefix)]
    return max(names, key=lambda name: sum(o.correct for o in arms[name].outcomes)) if names else None


def summary(arms: Mapping[str, ArmResult], rows: Sequence[Mapping[str, Any]], identity: Identity) -> dict[str, Any]:
    """Everything a report says in numbers, as plain JSON values; intervals are {"mean", "low", "high", "n"}.

    Args:
        arms: by name; what is absent leaves null, or no entry, where it would stand.
        rows: of the run, in order of step.

    Raises:
        DataError: arms that cannot be compared, since their questions differ.
    """
    check_same_questions(arms)
    steps = max((int(row["step"]) for row in rows), default=0)
    return {
        **_accuracies(arms),
        **_modes(arms),
        "cost_usd_mean": {name: _plain(mean_cost(arm.outcomes)) for name, arm in arms.items()},
        "margins": _margins(arms),
        "invalid": {name: _invalid_share(arm.outcomes) for name, arm in arms.items()},
        "infrastructure": {name: sum(map(is_lost, arm.outcomes)) for name, arm in arms.items()},
        **_test(arms, rows),
        "source": identity.source,
        "seed": identity.seed,
        "steps": steps,
        "config_fingerprint": identity.config_fingerprint,
        "run": identity.run,
        "finished": identity.steps is not None
        and steps >= identity.steps
        and (identity.test_queries == 0 or all(_is_answered(arm, arms) for arm in identity.arms)),
    }


def _is_answered(arm: str, arms: Mapping[str, ArmResult]) -> bool:
    """Whether an arm, or each (any, of those whose number is not known here) that its name stands for, is there."""
    if arm == "forced":
        return all(f"forced_{word}" in arms for word in WORDS)
    return arm in arms or any(name.startswith(f"{arm}_") for name in arms)


def _accuracies(arms: Mapping[str, ArmResult]) -> dict[str, Any]:
    found = {name: _plain(accuracy(arm.outcomes)) for name, arm in arms.items()}
    best = best_of(arms, "scripted_")
    return {
        "accuracy_trained": found.get("trained"),
        "accuracy_warm_start": found.get("warm_start"),
        "accuracy_forced": {word: found.get(f"forced_{word}") for word in WORDS},
        "accuracy_scripted": {name: value for name, value in found.items() if name.startswith("scripted_")},
        "accuracy_best_scripted": None if best is None else {**found[best], "arm": best},
        "accuracy_random": found.get("random"),
        "accuracy_oracle": found.get("oracle"),
        "accuracy_knn": found.get("knn"),
        "accuracy_by_type": {
            name: {kind: value.as_dict() for kind, value in accuracy_by_kind(arm.outcomes).items()}
            for name, arm in arms.items()
        },
    }


def _modes(arms: Mapping[str, ArmResult]) -> dict[str, Any]:
    trained = arms.get("trained")
    return {
        "mode_share": _shares_of(trained),
        "mode_share_warm_start": _shares_of(arms.get("warm_start")),
        "mode_share_by_arm": {name: mode_shares(arm.outcomes) for name, arm in arms.items()},
        "majority_mode": None
        if trained is None
        else {kind: majority_mode(members) for kind, members in by_kind(trained.outcomes).items()},
    }


def _shares_of(arm: ArmResult | None) -> dict[str, Any] | None:
    if arm is None:
        return None
    kinds = by_kind(arm.outcomes)
    by_type = {kind: mode_shares(members) for kind, members in kinds.items()}
    return {"overall": mode_shares(arm.outcomes), "by_type": by_type}


def _margins(arms: Mapping[str, ArmResult]) -> dict[str, Any]:
    against = {
        "trained_minus_best_forced": best_of(arms, "forced_"),
        "trained_minus_best_scripted": best_of(arms, "scripted_"),
        "trained_minus_warm_start": "warm_start" if "warm_start" in arms else None,
    }
    return {
        name: _plain(difference(arms["trained"], arms[other])) if other and "trained" in arms else None
        for name, other in against.items()
    }


def _test(arms: Mapping[str, ArmResult], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many questions of which draw, and which step's router answered them."""
    arm = arms.get("trained", next(iter(arms.values()), None))
    best = [row["eval/best_step"] for row in rows if isinstance(row.get("eval/best_step"), int | float)]
    answered_by = arms["trained"].about.get("step") if "trained" in arms else None
    return {
        "test_queries": 0 if arm is None else len(arm.outcomes),
        "test_draw_seed": None if arm is None else arm.about.get("draw_seed"),
        "best_step": answered_by if answered_by is not None else int(best[-1]) if best else None,
    }


def _invalid_share(outcomes: Sequence[Outcome]) -> float | None:
    if not outcomes:
        return None
    return sum(outcome.status == Status.TERMINAL_INVALID for outcome in outcomes) / len(outcomes)


def _plain(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else interval.as_dict()


def _by_query(arm: ArmResult) -> dict[str, Outcome]:
    answers = {outcome.query_id: outcome for outcome in arm.outcomes}
    if len(answers) < len(arm.outcomes):
        twice = next(query for query, count in Counter(o.query_id for o in arm.outcomes).items() if count > 1)
        raise DataError(f"arm {arm.arm!r} answers question {twice!r} twice")
    return answers


def _check_same(first: ArmResult, second: ArmResult) -> None:
    ours, theirs = set(_by_query(first)), set(_by_query(second))
    if ours != theirs:
        example = min(ours ^ theirs)
        raise DataError(
            f"arms {first.arm!r} and {second.arm!r} answer different questions ({len(ours)} and {len(theirs)}, "
            f"{len(ours & theirs)} in common; {example!r} is in one only): evaluate both on one draw"
        )
    for key in ("split", "source", "draw_seed", "files"):  # a question's id is its place in a draw
        values = [arm.about.get(key) for arm in (first, second)]
        if values[0] != values[1]:
            raise DataError(
                f"arms {first.arm!r} and {second.arm!r} answer questions of another {key} ({values[0]} and "
                f"{values[1]}): evaluate both on one draw"
            )
