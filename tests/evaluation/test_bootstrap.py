"""Stratified and paired bootstrap intervals cover what they should."""

import numpy as np
import pytest

from rw.evaluation.bootstrap import ADDED_TO_ONE, ADDED_TO_PAIRS, stratified_interval

TRIALS = 1000
FIVE = [0.2] * 5
# Probability of each set's pairs: right under the first arm alone, under the second alone; the rest agree.
PAIRED = {
    "forty questions a set, correlated pairs": ([40] * 5, FIVE, [(0.15, 0.05)] * 5),
    "independent arms": ([40] * 5, FIVE, [(0.25, 0.25)] * 5),
    "extreme shares": ([40] * 5, FIVE, [(0.04, 0.01)] * 5),
    "sets that differ": ([40] * 5, FIVE, [(0.3, 0.05), (0.02, 0.02), (0.1, 0.2), (0.0, 0.03), (0.15, 0.15)]),
    "few questions": ([10] * 5, FIVE, [(0.2, 0.05)] * 5),
    "the paper's nine sets": (
        [120, 120, 120, 120, 100, 120, 120, 120, 120],
        [1 / 10, 1 / 10, 1 / 15, 1 / 15, 1 / 15, 1 / 5, 1 / 5, 1 / 10, 1 / 10],
        [(0.15, 0.07)] * 9,
    ),
}


def coverage(sizes, weights, shares, kinds, added):
    """Share of TRIALS samples whose interval holds the true weighted mean."""
    random = np.random.default_rng(7)
    truth = sum(weight * np.dot(share, kinds) for weight, share in zip(weights, shares, strict=True))
    held = 0
    for _ in range(TRIALS):
        values = [random.choice(kinds, n, p=share) for n, share in zip(sizes, shares, strict=True)]
        found = stratified_interval(values, weights, added, draws=1000, seed=int(random.integers(2**31)))
        held += found.low - 1e-12 <= truth <= found.high + 1e-12
    return held / TRIALS


FAST = ("forty questions a set, correlated pairs", "extreme shares", "few questions")


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.full) for name in PAIRED]
)
def test_the_paired_interval_covers_the_known_difference(name):
    sizes, weights, pairs = PAIRED[name]
    shares = [(second, 1 - first - second, first) for first, second in pairs]
    assert 0.93 <= coverage(sizes, weights, shares, [-1.0, 0.0, 1.0], ADDED_TO_PAIRS) <= 0.97


@pytest.mark.parametrize("right", [pytest.param(0.5, marks=pytest.mark.full), 0.75])
def test_the_interval_of_an_average_covers_it(right):
    assert 0.93 <= coverage([40] * 5, FIVE, [(1 - right, right)] * 5, [0.0, 1.0], ADDED_TO_ONE) <= 0.97


def test_pairing_makes_the_interval_narrower_than_independent_arms():
    random = np.random.default_rng(0)
    hard = random.random(200)
    first, second = (hard < 0.6).astype(float), (hard < 0.5).astype(float)
    paired = stratified_interval([first - second], [1.0], ADDED_TO_PAIRS)
    apart = stratified_interval([first - random.permutation(second)], [1.0], ADDED_TO_PAIRS)
    assert paired.high - paired.low < 0.6 * (apart.high - apart.low)


def test_equal_arms_have_an_interval_around_nothing_that_is_no_point():
    found = stratified_interval([np.zeros(40)] * 5, FIVE, ADDED_TO_PAIRS)
    assert found.mean == 0 and found.low < 0 < found.high < 0.03


def test_the_same_values_get_the_same_interval_and_weights_count():
    values = [np.array([0.0, 1.0, 1.0]), np.array([0.0, 0.0, 1.0, 0.0])]
    first = stratified_interval(values, [0.5, 0.5], ADDED_TO_ONE)
    assert first == stratified_interval(values, [0.5, 0.5], ADDED_TO_ONE)
    assert first.mean == pytest.approx((2 / 3 + 1 / 4) / 2) and first.n == 7
    assert 0 <= first.low < first.mean < first.high <= 1


def test_small_and_empty_samples():
    assert stratified_interval([np.array([])], [1.0]) is None
    one = stratified_interval([np.array([0.5])], [1.0])
    assert (one.mean, one.low, one.high) == (0.5, None, None)
    kept = stratified_interval([np.array([]), np.array([1.0, 3.0])], [0.5, 1.0])
    assert kept.mean == 2.0 and 1.0 <= kept.low < 2.0 < kept.high <= 3.0
