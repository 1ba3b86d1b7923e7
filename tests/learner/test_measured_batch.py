"""Micro-batch sizes chosen by their rate: which are tried, which is taken, and that real ones are timed."""

import numpy as np
import pytest

from rw.core.losses import LossConfig
from rw.learner.batch import BatchConfig, held_tokens
from rw.learner.measured_batch import candidates, choose, full_micro_batch, measure
from rw.model.config import ModelConfig

BATCH = BatchConfig(micro_batch=0, length_buckets=(8, 16, 32), policy_buckets=(4, 8))


@pytest.mark.parametrize(
    "ways, rows, sizes", [(1, 8, [1, 2, 4, 8]), (4, 11, [4, 8]), (4, 3, [4]), (3, 24, [3, 6, 12, 24])]
)
def test_candidates_divide_over_the_devices_and_hold_no_more_than_a_batch(ways, rows, sizes):
    assert candidates(ways, rows) == sizes


@pytest.mark.parametrize(
    "rates, most, chosen, tried",
    [
        ({1: 10, 2: 20, 4: 30, 8: 31, 16: 20, 32: 90}, 99, 32, [1, 2, 4, 8, 16, 32]),  # 16 alone is slower: go on
        ({1: 10, 2: 30, 4: 20, 8: 20, 16: 90}, 99, 2, [1, 2, 4, 8]),  # two in a row are slower
        ({1: 10, 2: 30, 4: 30.5, 8: 30.8}, 99, 2, [1, 2, 4, 8]),  # as good as the best, and smaller
        ({1: 10, 2: 20, 4: 30}, 2, 2, [1, 2]),  # 4 does not fit
        ({4: 10, 8: 20}, 0, 4, [4]),  # nothing fits: the smallest is taken
    ],
)
def test_the_smallest_near_the_best_rate_is_chosen(rates, most, chosen, tried):
    timed = []
    choice = choose(list(rates), lambda size: timed.append(size) or rates[size], lambda size: size <= most)
    assert choice.micro_batch == chosen and timed == tried
    assert choice.tokens_per_s == {size: rates[size] for size in tried}


def test_rows_that_are_timed_have_no_padding():
    micro = full_micro_batch(BatchConfig(micro_batch=2, length_buckets=(8, 16, 32), policy_buckets=(4, 8)), 50)
    assert micro.tokens.shape == (2, 16) and held_tokens(micro) == 32
    assert micro.predictors.shape == (2, 4) and np.all(np.asarray(micro.policy.segments) > 0)


def test_sizes_are_timed_on_the_model():
    model = ModelConfig(50, 8, 1, 2, 1, 4, 8, rope_theta=1e4, remat="none")
    choice = measure(model, BATCH, LossConfig(), None, [2, 4], lambda size: False)
    assert choice.micro_batch == 2 and list(choice.tokens_per_s) == [2] and choice.tokens_per_s[2] > 0
