"""95 % intervals of what a sample of questions shows: a share, a mean, and a difference of two shares of one sample.

Closed formulas on host numbers. Nothing here knows an arm, a router or a file.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

Z = 1.959963984540054  # normal quantile of a two-sided 95 % interval


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % limits; they are None where the sample does not give any."""

    mean: float
    low: float | None
    high: float | None
    n: int  # of the sample

    def as_dict(self) -> dict[str, float | int | None]:
        """As reports keep it."""
        return dataclasses.asdict(self)


def wilson(successes: int, n: int) -> Interval | None:
    """The share `successes / n` with Wilson's score interval; None for an empty sample.

    Unlike the normal interval it stays inside [0, 1] and has a width at 0 and at n. (Wilson 1927.)
    """
    if n == 0:
        return None
    share = successes / n
    centre = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return Interval(share, min(max(centre - half, 0.0), share), max(min(centre + half, 1.0), share), n)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """The mean with its normal interval; None for an empty sample, without limits for a single value."""
    values = np.asarray(values, np.float64)
    if values.size == 0:
        return None
    mean = float(values.mean())
    if values.size == 1:
        return Interval(mean, None, None, 1)
    half = Z * float(values.std(ddof=1)) / math.sqrt(values.size)
    return Interval(mean, mean - half, mean + half, int(values.size))


def paired_difference(first: Sequence[bool], second: Sequence[bool]) -> Interval | None:
    """Share of `first` minus share of `second`, where both answer the same questions in the same order.

    Newcombe's square-and-add interval for paired shares (1998, his method 10): the Wilson limits of both shares, put
    together by the correlation of the pairs. One formula for any size: a normal interval of the paired differences has
    no width where no pair differs, this one has. None for an empty sample.

    Raises:
        ValueError: the two differ in length.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} answers are not pairs")
    a, b = np.asarray(first, bool), np.asarray(second, bool)
    n = a.size
    if n == 0:
        return None
    p, q = wilson(int(a.sum()), n), wilson(int(b.sum()), n)
    correlation = _correlation(int((a & b).sum()), int((a & ~b).sum()), int((~a & b).sum()), int((~a & ~b).sum()))
    difference = p.mean - q.mean
    below = _combined(p.mean - p.low, q.high - q.mean, correlation)
    above = _combined(p.high - p.mean, q.mean - q.low, correlation)
    return Interval(difference, difference - below, difference + above, n)


def _correlation(both: int, only_first: int, only_second: int, neither: int) -> float:
    """φ of the four-fold table, with the continuity correction that the method has for positive correlations."""
    margins = (both + only_first) * (only_second + neither) * (both + only_second) * (only_first + neither)
    if margins == 0:
        return 0.0
    product = both * neither - only_first * only_second
    if product > 0:
        product = max(product - (both + only_first + only_second + neither) / 2, 0.0)
    return product / math.sqrt(margins)


def _combined(a: float, b: float, correlation: float) -> float:
    return math.sqrt(max(a * a - 2 * correlation * a * b + b * b, 0.0))
