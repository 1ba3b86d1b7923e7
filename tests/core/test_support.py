import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rw.core.support import (
    candidate_probabilities,
    mode_support,
    support_linear,
    support_loss,
    support_weights,
)

FLOOR = 0.05
SCORES = hnp.arrays(np.float64, (6, 3), elements=st.floats(-15, 0))


@jax.jit
def loss_of(scores):
    return support_loss(scores, FLOOR)[0]


value_and_grad = jax.jit(jax.value_and_grad(loss_of))
linear_gradient = jax.jit(jax.grad(support_linear))


def oracle(scores):
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    mean = probabilities.mean(axis=0)
    return np.maximum(0, np.log(FLOOR) - np.log(mean + 1e-12)).sum() / 3, mean


def test_scores_become_probabilities_per_query_and_their_mean_per_mode():
    scores = np.log(np.array([[1.0, 1.0, 2.0], [6.0, 3.0, 1.0]]))
    np.testing.assert_allclose(candidate_probabilities(scores), [[0.25, 0.25, 0.5], [0.6, 0.3, 0.1]], rtol=1e-6)
    np.testing.assert_allclose(mode_support(scores), [0.425, 0.275, 0.3], rtol=1e-6)


def test_the_penalty_is_a_third_of_the_log_gap_of_each_mode_below_the_floor():
    scores = np.log(np.array([[0.98, 0.01, 0.01]]))
    loss, support = support_loss(scores, FLOOR)
    assert float(loss) == pytest.approx(2 / 3 * math.log(5), rel=1e-5)
    np.testing.assert_allclose(support, [0.98, 0.01, 0.01], rtol=1e-5)


def test_above_the_floor_there_is_neither_penalty_nor_gradient():
    value, gradient = value_and_grad(jnp.zeros((4, 3)))
    assert float(value) == 0.0 and not np.any(gradient)


def test_one_query_far_below_the_floor_is_fine_while_the_mean_is_above():
    assert float(loss_of(jnp.log(jnp.array([[0.998, 0.001, 0.001], [0.2, 0.4, 0.4]])))) == 0.0


@given(SCORES)
def test_agrees_with_a_numpy_oracle(scores):
    with jax.enable_x64(True):
        loss, support = support_loss(scores, FLOOR)
        jitted, _ = jax.jit(support_loss)(scores, FLOOR)
    want, want_support = oracle(scores)
    np.testing.assert_allclose(loss, want, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(support, want_support, rtol=1e-9)
    np.testing.assert_allclose(jitted, want, rtol=1e-9, atol=1e-12)


def test_gradient_agrees_with_finite_differences():
    scores = np.random.default_rng(0).normal(size=(5, 3)) * 0.3 + np.array([0.0, -4.0, -6.0])
    step = 1e-6
    with jax.enable_x64(True):
        gradient = np.asarray(value_and_grad(scores)[1])
        for index in np.ndindex(scores.shape):
            bump = np.zeros_like(scores)
            bump[index] = step
            slope = float(loss_of(scores + bump) - loss_of(scores - bump)) / (2 * step)
            assert gradient[index] == pytest.approx(slope, abs=1e-8)
    assert np.all(gradient[:, 1] < 0) and np.all(gradient[:, 0] > 0)  # rare modes are pulled up


@pytest.mark.parametrize("x64, dtype, tolerance", [(False, np.float32, 1e-5), (True, np.float64, 1e-12)])
@pytest.mark.parametrize("parts", [[7], [3, 4], [1, 2, 4], [1] * 7])
def test_micro_batches_in_two_passes_give_the_gradient_of_the_whole(x64, dtype, tolerance, parts):
    rng = np.random.default_rng(1)
    scores = (rng.normal(size=(7, 3)) + np.array([0.0, -4.0, -9.0])).astype(dtype)
    with jax.enable_x64(x64):
        whole = np.asarray(value_and_grad(scores)[1])
        weights = support_weights(mode_support(scores), FLOOR, unique_queries=7)
        pieces = [linear_gradient(part, weights) for part in np.split(scores, np.cumsum(parts)[:-1])]
    np.testing.assert_allclose(np.concatenate(pieces), whole, rtol=0, atol=tolerance)
    assert np.linalg.norm(whole) > 0.01


def test_weights_are_minus_one_over_3_u_p_below_the_floor_and_zero_above():
    weights = support_weights(np.array([0.9, 0.06, 0.04]), FLOOR, unique_queries=32)
    np.testing.assert_allclose(weights, [0, 0, -1 / (3 * 32 * 0.04)], rtol=1e-6)


def test_rows_that_pad_a_micro_batch_change_nothing():
    scores = jnp.array([[0.0, -4.0, -6.0], [0.5, -3.0, -7.0]])
    weights = support_weights(mode_support(scores), FLOOR, unique_queries=2)
    padded = jnp.concatenate([scores, jnp.full((2, 3), jnp.nan)])
    real = jnp.array([True, True, False, False])
    gradient = linear_gradient(padded, weights, real)
    np.testing.assert_array_equal(gradient[:2], linear_gradient(scores, weights))
    np.testing.assert_array_equal(gradient[2:], np.zeros((2, 3)))


def test_a_mode_of_no_probability_has_a_finite_penalty():
    value, gradient = value_and_grad(jnp.array([[0.0, -1e4, -1e4]]))
    assert float(value) == pytest.approx(2 / 3 * math.log(FLOOR / 1e-12), rel=1e-5)
    assert np.all(np.isfinite(gradient))


def test_no_query_gives_no_loss():
    loss, support = support_loss(jnp.zeros((0, 3)), FLOOR)
    assert float(loss) == 0.0 and not np.any(support)
