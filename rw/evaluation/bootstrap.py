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


def stratified_interval(
    values: Sequence[np.ndarray], weights: Sequence[float], draws: int = DRAWS, seed: int = SEED
) -> Interval | None:
    """The weighted sum of the strata's means with its percentile-bootstrap interval.

    For an accuracy, values are what each question counts; for a paired difference, what it counts under one arm minus
    what it counts under the other, which is the paired bootstrap. A stratum of n questions is drawn from n times. The
    spread of such draws is too small by sqrt((n - 1) / n) in each stratum (Hesterberg 2015, "What Teachers Should Know
    About the Bootstrap", on narrowness bias), so deviations from the stratum's mean are widened by its inverse.

    Args:
        values: f64[n] a stratum.
        weights: one a stratum.
        draws: of the bootstrap.
        seed: of the draws; the same values get the same interval at any time.

    Returns:
        None without a question; without limits where every stratum has but one.
    """
    kept = [(np.asarray(v, np.float64), weight) for v, weight in zip(values, weights, strict=True) if len(v)]
    if not kept:
        return None
    n = sum(len(v) for v, _ in kept)
    mean = float(sum(weight * v.mean() for v, weight in kept))
    if all(len(v) == 1 for v, _ in kept):
        return Interval(mean, None, None, n)
    random = np.random.default_rng(seed)
    sums = sum(weight * resampled_means(v, draws, random) for v, weight in kept)
    low, high = np.quantile(sums, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(mean, min(float(low), mean), max(float(high), mean), n)


def resampled_means(values: np.ndarray, draws: int, random: np.random.Generator) -> np.ndarray:
    """f64[draws]: means of samples of the values' own size, drawn with replacement and widened as above."""
    n, mean = len(values), values.mean()
    kinds, counts = np.unique(values, return_counts=True)
    if len(kinds) == 1:
        return np.full(draws, mean)
    means = random.multinomial(n, counts / n, size=draws) @ kinds / n
    return mean + (means - mean) * np.sqrt(n / (n - 1))
