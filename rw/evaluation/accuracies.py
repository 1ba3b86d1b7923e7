"""Accuracy of an arm by set, by domain and on average, and of two arms the difference, each with its 95 % interval.

Pure functions of outcomes; nothing here knows a file or a plot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rw.evaluation.bootstrap import ADDED_TO_ONE, stratified_interval
from rw.evaluation.domains import (
    Stratum,
    average_weights,
    domain_weights,
    domains_of,
    is_held_out,
    strata,
)
from rw.evaluation.intervals import Interval, wilson
from rw.evaluation.outcomes import Outcome

Weights = Mapping[Stratum, float]


def accuracies(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """{"average", "domains", "sets", "held_out"}: intervals as plain JSON values; sets are named "domain/set".

    A set whose questions are right or wrong has Wilson's interval; graded scores, and means over several sets, have
    that of the stratified bootstrap. `average` is None where no question counts in it.
    """
    values = {stratum: np.array([o.value for o in members]) for stratum, members in strata(outcomes).items()}
    found = list(values)
    return {
        "average": plain(mean_over(values, average_weights(found))),
        "domains": {domain: plain(mean_over(values, domain_weights(found, domain))) for domain in domains_of(found)},
        "sets": {
            f"{stratum.domain}/{stratum.dataset}": plain(mean_over(values, {stratum: 1.0}))
            for stratum in found
            if not is_held_out(stratum)
        },
        "held_out": {
            stratum.dataset: plain(mean_over(values, {stratum: 1.0})) for stratum in found if is_held_out(stratum)
        },
    }


def mean_over(values: Mapping[Stratum, np.ndarray], weights: Weights) -> Interval | None:
    """The weighted mean of the strata's means with its interval; None without strata."""
    if len(weights) == 1:
        only = values[next(iter(weights))]
        if np.isin(only, (0.0, 1.0)).all():
            return wilson(int(only.sum()), len(only))
    return stratified_interval([values[stratum] for stratum in weights], list(weights.values()), ADDED_TO_ONE)


def plain(interval: Interval | None) -> dict[str, Any] | None:
    """An interval as reports keep it."""
    return None if interval is None else interval.as_dict()
