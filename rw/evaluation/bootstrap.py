"""95 % intervals of means over several sets, and of their differences between two arms: a stratified bootstrap.

Sets are drawn from apart, so that each keeps its number of questions; two arms are drawn from in pairs, by question.
Host numbers only: nothing here knows an arm, a domain or a file.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rw.evaluation.intervals import Interval

DRAWS = 4000
SEED = 20_260_101
LEVEL = 0.95
# Values that questions may take, and how many of each are added over all strata together before drawing.
ADDED_TO_ONE = ((0.0, 1.0), (1.0, 1.0))
ADDED_TO_PAIRS = ((-1.0, 0.5), (0.0, 1.0), (1.0, 0.5))
NOTHING_ADDED = ()


def stratified_interval(
    values: Sequence[np.ndarray],
    weights: Sequence[float],
    added: Sequence[tuple[float, float]] = NOTHING_ADDED,
    draws: int = DRAWS,
    seed: int = SEED,
) -> Interval | None:
    """The weighted sum of the strata's means with its percentile-bootstrap interval.

    For an accuracy, values are what each question counts; for a paired difference, what it counts under one arm minus
    what it counts under the other, which is the paired bootstrap. A stratum of n questions is drawn from n times. Plain
    draws cover too little in two ways, and both are mended here:

    * Their spread is too small by sqrt((n - 1) / n) in each stratum, so deviations from its mean are widened by the
      inverse (narrowness bias; Hesterberg 2015, "What Teachers Should Know About the Bootstrap").
    * Shares near 0 or 1 show no spread at all where no question differs. As for the simple intervals, two questions are
      added, spread evenly over the strata: for pairs half a question in each cell of the four-fold table (Agresti and
      Min 2005), for one arm one right and one wrong (after Agresti and Coull 1998). The mean stays what was measured.

    Args:
        values: f64[n] a stratum.
        weights: one a stratum.
        added: (value, how many) of ADDED_TO_ONE for values in [0, 1], of ADDED_TO_PAIRS for their differences, none for
            values without limits.
        draws: of the bootstrap.
        seed: of the draws; the same values get the same interval at any time.

    Returns:
        None without a question; without limits where nothing is added and every stratum has but one.
    """
    kept = [(np.asarray(v, np.float64), weight) for v, weight in zip(values, weights, strict=True) if len(v)]
    if not kept:
        return None
    n = sum(len(v) for v, _ in kept)
    mean = float(sum(weight * v.mean() for v, weight in kept))
    if not added and all(len(v) == 1 for v, _ in kept):
        return Interval(mean, None, None, n)
    random = np.random.default_rng(seed)
    shares = [(value, count / len(kept)) for value, count in added]
    sums = sum(weight * resampled_means(v, shares, draws, random) for v, weight in kept)
    low, high = np.quantile(sums, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(mean, min(float(low), mean), max(float(high), mean), n)


def resampled_means(
    values: np.ndarray, added: Sequence[tuple[float, float]], draws: int, random: np.random.Generator
) -> np.ndarray:
    """f64[draws]: means of samples of the values' own size, drawn with replacement from them and what is added, with
    deviations widened as above. A mean of values in [0, 1] may leave these limits by the widening; it is clipped."""
    n = len(values)
    kinds, place = np.unique([*values, *(value for value, _ in added)], return_inverse=True)
    counts = np.bincount(place, weights=[*np.ones(n), *(count for _, count in added)])
    shares = counts / counts.sum()
    mean = float(shares @ kinds)
    if len(kinds) == 1 or n == 1 and not added:
        return np.full(draws, mean)
    means = random.multinomial(n, shares, size=draws) @ kinds / n
    return np.clip(mean + (means - mean) * np.sqrt(n / max(n - 1, 1)), kinds[0], kinds[-1])
