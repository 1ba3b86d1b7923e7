"""Gradients of each term alone over 1, 2, 4 and 8 micro-batches of unequal rows, in single and in double precision."""

import dataclasses

import jax
import numpy as np
import pytest

from rw.core.advantages import AdvantageConfig
from rw.learner.batch import BatchConfig
from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.learner.step import TERMS, Learner, LearnerConfig
from rw.model.qwen3 import init_params

from .conftest import MODEL, make_groups, mode_candidates, relative_difference

pytestmark = pytest.mark.full


def gradients(params, reference_params, model, micro_batch, lengths, by_length):
    batch = BatchConfig(
        micro_batch=micro_batch, length_buckets=lengths, policy_buckets=(16, 64), logprob_chunk=16
    )
    config = LearnerConfig(batch=batch, advantage=AdvantageConfig(0.3), deterministic=not by_length)
    learner = Learner(model, Optimizer(OptimizerConfig()), reference_params, config)
    return learner.gradients(params, make_groups(0, count=4), TERMS, mode_candidates=mode_candidates)


def check(params, reference_params, model, tolerance):
    whole = gradients(params, reference_params, model, 16, (64,), by_length=False)
    for micro_batch, lengths in ((8, (64,)), (4, (32, 48, 64)), (2, (64, 128)), (2, (128,))):
        parts = gradients(params, reference_params, model, micro_batch, lengths, by_length=micro_batch == 4)
        for term in TERMS:
            difference = relative_difference(whole[term], parts[term])
            assert difference < tolerance, (term, micro_batch, lengths, difference)


def test_in_single_precision(params, reference_params):
    check(params, reference_params, MODEL, 1e-5)


def test_in_double_precision():
    model = dataclasses.replace(MODEL, param_dtype="float64", compute_dtype="float64")
    with jax.enable_x64(True):
        params, other = (init_params(jax.random.key(seed), model) for seed in (0, 1))
        assert all(leaf.dtype == np.float64 for leaf in params.values())
        reference_params = jax.tree.map(lambda p, q: p + 0.05 * q, params, other)
        check(params, reference_params, model, 1e-10)
