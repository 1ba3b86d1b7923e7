"""Everything that the results of an evaluation say in numbers, as plain JSON values.

Made from arms alone: those of one directory, and arms of others that they are compared with.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from rw.evaluation import pairs
from rw.evaluation.arm_names import kind, ordered, title
from rw.evaluation.arm_numbers import numbers
from rw.evaluation.domains import aggregation_words, domains_of, is_held_out, is_the_papers, strata
from rw.evaluation.outcomes import ArmResult

REFERENCES = ("trained", "warm_start")  # what other arms are compared with first, where it is there


def results_summary(run: str, arms: Mapping[str, ArmResult], others: Mapping[str, ArmResult]) -> dict[str, Any]:
    """Numbers of each arm, and paired differences: of any two arms on average, of the reference arm and each other one
    by domain too, and of the arms here and those elsewhere.

    Args:
        run: the directory's name.
        others: arms of other directories, by the name that tells them apart.

    Raises:
        DataError: arms that cannot be compared.
    """
    order = ordered(arms)
    shown = {name: {"title": title(name), **numbers(arms[name])} for name in order}
    reference = _reference(shown)
    found = list(strata(outcome for arm in arms.values() for outcome in arm.outcomes))
    return {
        "run": run,
        "arms": shown,
        "reference": reference,
        "domains": domains_of(found),
        "sets": [f"{s.domain}/{s.dataset}" for s in found if not is_held_out(s)],
        "held_out": [s.dataset for s in found if is_held_out(s)],
        "aggregation": aggregation_words(found),
        "is_the_papers_test": is_the_papers(found),
        "sources": sorted({str(arm.about.get("source")) for arm in arms.values()}),
        "differences": _all_differences(arms, order),
        "against_reference": {
            name: pairs.difference(arms[name], arms[reference], with_domains=True)
            for name in order
            if name != reference
        },
        "against": [_against(arms, order, reference, name, other) for name, other in others.items()],
    }


def _reference(shown: Mapping[str, Mapping[str, Any]]) -> str:
    """The arm that others are compared with first: the router, or else the best of the fixed Workers, or of all."""
    for name in REFERENCES:
        if name in shown:
            return name
    fixed = [name for name in shown if kind(name) == "fixed Worker"] or list(shown)
    return max(fixed, key=lambda name: (shown[name]["accuracies"]["average"] or {"mean": -1.0})["mean"])


def _all_differences(arms: Mapping[str, ArmResult], order: Sequence[str]) -> list[dict[str, Any]]:
    """Of each two arms, the one that stands first minus the other."""
    return [
        {"first": one, "second": other, **pairs.difference(arms[one], arms[other])}
        for one, other in itertools.combinations(order, 2)
    ]


def _against(
    arms: Mapping[str, ArmResult], order: Sequence[str], reference: str, name: str, other: ArmResult
) -> dict[str, Any]:
    """An arm of another directory, and what the arm of its name here, and the reference arm, have more than it."""
    here = [arm for arm in order if arm in (other.arm, reference)]
    return {
        "name": name,
        **numbers(other),
        "minus": {arm: pairs.difference(arms[arm], other, with_domains=True) for arm in here},
    }
