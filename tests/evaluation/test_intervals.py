"""Intervals against published examples and hand-worked values."""

import numpy as np
import pytest

from rw.evaluation.intervals import Interval, Z, mean_interval, paired_difference, wilson


def pairs(both, only_first, only_second, neither):
    first = [True] * (both + only_first) + [False] * (only_second + neither)
    second = [True] * both + [False] * only_first + [True] * only_second + [False] * neither
    return first, second


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_is_that_of_newcombes_examples(successes, n, low, high):
    interval = wilson(successes, n)
    assert interval.mean == successes / n and interval.n == n
    assert (interval.low, interval.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_wilson_of_all_is_the_mirror_of_none():
    none, every = wilson(0, 12), wilson(12, 12)
    assert none.low == 0 and every.high == 1
    assert every.low == pytest.approx(1 - none.high)


def test_an_empty_sample_has_no_interval():
    assert wilson(0, 0) is None and mean_interval([]) is None and paired_difference([], []) is None


def test_mean_interval_by_hand():
    interval = mean_interval([1.0, 2.0, 3.0, 6.0])  # deviations -2, -1, 0, 3: variance 14 / 3
    half = Z * np.sqrt(14 / 3 / 4)
    assert interval == Interval(3.0, pytest.approx(3 - half), pytest.approx(3 + half), 4)


def test_one_value_has_a_mean_but_no_limits():
    assert mean_interval([5.0]) == Interval(5.0, None, None, 1)


def test_paired_difference_is_that_of_newcombes_example():
    interval = paired_difference(*pairs(36, 12, 2, 0))
    assert interval.mean == pytest.approx(0.2) and interval.n == 50
    assert (interval.low, interval.high) == (pytest.approx(0.0569, abs=5e-5), pytest.approx(0.3404, abs=5e-5))


def test_paired_difference_changes_sign_with_the_order():
    first, second = pairs(20, 9, 4, 7)
    ours, theirs = paired_difference(first, second), paired_difference(second, first)
    assert (ours.mean, ours.low, ours.high) == pytest.approx((-theirs.mean, -theirs.high, -theirs.low))


def test_pairs_that_never_differ_still_leave_doubt():
    interval = paired_difference(*pairs(30, 0, 0, 20))
    assert interval.mean == 0 and interval.low < 0 < interval.high
    assert interval.high < wilson(30, 50).high - 0.6  # pairing makes it narrower than either share alone


def test_pairing_matters_at_equal_shares():
    """The same two shares: answers that agree leave less doubt about the difference than answers that oppose."""
    agreeing, opposing = paired_difference(*pairs(28, 2, 2, 18)), paired_difference(*pairs(10, 20, 20, 0))
    assert agreeing.mean == opposing.mean == 0
    assert agreeing.high < opposing.high / 2


def test_paired_difference_covers_what_it_should():
    random = np.random.default_rng(0)
    covered = []
    for _ in range(400):
        hard = random.random(120) < 0.5  # makes pairs alike
        first = random.random(120) < np.where(hard, 0.5, 0.9)
        second = random.random(120) < np.where(hard, 0.3, 0.8)
        interval = paired_difference(first, second)
        covered.append(interval.low <= 0.15 <= interval.high)
    assert 0.92 <= np.mean(covered) <= 0.99


def test_answers_that_are_no_pairs_are_refused():
    with pytest.raises(ValueError, match="3 and 2 answers"):
        paired_difference([True] * 3, [True] * 2)
