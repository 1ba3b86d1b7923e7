"""Two arms on the questions that both answered: the difference of their accuracies and costs, paired by question.

Pure functions of arms; nothing here knows a file or a plot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rw.errors import DataError
from rw.evaluation.accuracies import Weights, plain
from rw.evaluation.aggregate import is_lost
from rw.evaluation.bootstrap import ADDED_TO_PAIRS, stratified_interval
from rw.evaluation.domains import Stratum, average_weights, domain_weights, domains_of, is_held_out, stratum_of
from rw.evaluation.intervals import Interval, mean_interval
from rw.evaluation.outcomes import ArmResult, Outcome

Pair = tuple[Outcome, Outcome]


def difference(first: ArmResult, second: ArmResult, with_domains: bool = False) -> dict[str, Any]:
    """{"average", "cost_usd", "questions", "only_first", "only_second"} of the first arm minus the second, as plain
    JSON values: differences of accuracy by the stratified paired bootstrap, of mean cost in USD by a normal interval.

    Args:
        with_domains: adds "domains" and "held_out", by name.

    Raises:
        DataError: the arms have no question in common, or questions of one id are not the same ones.
    """
    pairs = common(first, second)
    grouped = by_stratum(pairs)
    found = list(grouped)
    differences = {stratum: _differences(members) for stratum, members in grouped.items()}
    result: dict[str, Any] = {
        "average": plain(_over(differences, average_weights(found))),
        "cost_usd": plain(_cost_difference(pairs)),
        "questions": len(pairs),
        "only_first": len(first.outcomes) - len(pairs),
        "only_second": len(second.outcomes) - len(pairs),
    }
    if with_domains:
        result["domains"] = {d: plain(_over(differences, domain_weights(found, d))) for d in domains_of(found)}
        result["held_out"] = {s.dataset: plain(_over(differences, {s: 1.0})) for s in found if is_held_out(s)}
    return result


def common(first: ArmResult, second: ArmResult) -> list[Pair]:
    """The outcomes of the questions that both answered, in the order of the first.

    Raises:
        DataError: there is none, though one has some; a question is answered twice; or their questions come from
            different draws.
    """
    check_draws(first, second)
    theirs = _by_query(second)
    pairs = [(outcome, theirs[query_id]) for query_id, outcome in _by_query(first).items() if query_id in theirs]
    if not pairs and (first.outcomes or second.outcomes):
        raise DataError(
            f"arms {first.arm!r} and {second.arm!r} have no question in common ({len(first.outcomes)} and "
            f"{len(second.outcomes)} questions): compare evaluations of the same questions"
        )
    for one, other in pairs:
        if one.kind != other.kind or (one.dataset and other.dataset and stratum_of(one) != stratum_of(other)):
            raise DataError(
                f"question {one.query_id!r} is of {one.kind or one.dataset!r} in arm {first.arm!r} and of "
                f"{other.kind or other.dataset!r} in {second.arm!r}: they are different questions under one id"
            )
    return pairs


def check_draws(first: ArmResult, second: ArmResult) -> None:
    """Raises DataError where equal ids stand for different questions: those of a simulated world are places in a draw,
    those of files belong to the files."""
    of_a_draw = first.about.get("source") == "simulated"
    for key in ("source", "held_out_files", *(("split", "draw_seed") if of_a_draw else ("files",))):
        values = [arm.about.get(key) for arm in (first, second)]
        if None not in values and values[0] != values[1]:
            raise DataError(
                f"arms {first.arm!r} and {second.arm!r} answer questions of another {key} ({values[0]} and "
                f"{values[1]}): compare evaluations of the same draw"
                + (", which --config.seed or --config.evaluation.test_seed decides" if key == "draw_seed" else "")
            )


def check_texts(first: Mapping[str, str], second: Mapping[str, str], names: Sequence[str]) -> None:
    """Raises DataError, naming a question, where an id that both know stands for different texts."""
    for query_id, text in first.items():
        if second.get(query_id, text) != text:
            raise DataError(
                f"question {query_id!r} has another text in {names[1]} than in {names[0]}: they are different draws or "
                "versions of the questions"
            )


def by_stratum(pairs: Sequence[Pair]) -> dict[Stratum, list[Pair]]:
    """The pairs of each set, named by the arm that knows its set."""
    found: dict[Stratum, list[Pair]] = {}
    for one, other in pairs:
        found.setdefault(stratum_of(one if one.dataset else other), []).append((one, other))
    return found


def _differences(pairs: Sequence[Pair]) -> np.ndarray:
    return np.array([one.value - other.value for one, other in pairs])


def _over(differences: Mapping[Stratum, np.ndarray], weights: Weights) -> Interval | None:
    return stratified_interval([differences[s] for s in weights], list(weights.values()), ADDED_TO_PAIRS)


def _cost_difference(pairs: Sequence[Pair]) -> Interval | None:
    """Over the questions whose cost is known and whole under both arms."""
    known = [
        one.cost_usd - other.cost_usd
        for one, other in pairs
        if one.cost_usd is not None and other.cost_usd is not None and not (is_lost(one) or is_lost(other))
    ]
    return mean_interval(known)


def _by_query(arm: ArmResult) -> dict[str, Outcome]:
    answers: dict[str, Outcome] = {}
    for outcome in arm.outcomes:
        if outcome.query_id in answers:
            raise DataError(f"arm {arm.arm!r} answers question {outcome.query_id!r} twice")
        answers[outcome.query_id] = outcome
    return answers
