import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rw.core.support import candidate_probabilities, mode_support, support_loss

FLOOR = 0.05
SCORES = hnp.arrays(np.float64, (6, 3), elements=st.floats(-15, 0))


@jax.jit
def loss_of(scores):
    return support_loss(scores, FLOOR)[0]


value_and_grad = jax.jit(jax.value_and_grad(loss_of))


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


def test_a_mode_of_no_probability_has_a_finite_penalty():
    value, gradient = value_and_grad(jnp.array([[0.0, -1e4, -1e4]]))
    assert float(value) == pytest.approx(2 / 3 * math.log(FLOOR / 1e-12), rel=1e-5)
    assert np.all(np.isfinite(gradient))


def test_no_query_gives_no_loss():
    loss, support = support_loss(jnp.zeros((0, 3)), FLOOR)
    assert float(loss) == 0.0 and not np.any(support)
