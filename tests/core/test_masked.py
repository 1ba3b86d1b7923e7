import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rw.core.masked import divide, fill, masked_mean, masked_sum

HOLES = pytest.mark.parametrize("hole", [np.nan, np.inf, -np.inf, 1e30])


@HOLES
def test_masked_slots_change_neither_sum_nor_mean_nor_their_gradients(hole):
    values = jnp.array([1.0, hole, 3.0, hole])
    mask = jnp.array([True, False, True, False])
    assert float(masked_sum(values, mask)) == 4.0
    assert float(masked_mean(values, mask)) == 2.0
    np.testing.assert_array_equal(jax.grad(lambda v: masked_mean(v, mask))(values), [0.5, 0.0, 0.5, 0.0])


@HOLES
def test_filling_first_keeps_the_gradient_of_what_follows_clean(hole):
    mask = jnp.array([True, False])
    gradient = jax.grad(lambda v: jnp.sum(jnp.exp(fill(v, mask)) ** 2))(jnp.array([0.0, hole]))
    np.testing.assert_array_equal(gradient, [2.0, 0.0])


def test_empty_mask_gives_zero_with_zero_gradient():
    values, mask = jnp.array([np.nan, 2.0]), jnp.zeros(2, bool)
    value, gradient = jax.value_and_grad(lambda v: masked_mean(v, mask))(values)
    assert float(value) == 0.0
    np.testing.assert_array_equal(gradient, [0.0, 0.0])


def test_mean_along_an_axis_counts_each_row_by_itself():
    values = jnp.array([[1.0, 2.0, 6.0], [5.0, 0.0, 0.0]])
    mask = jnp.array([[True, True, True], [True, False, False]])
    np.testing.assert_array_equal(masked_mean(values, mask, axis=1), [3.0, 5.0])


def test_mask_broadcasts_over_components():
    values = jnp.array([[1.0, 10.0], [3.0, 30.0], [5.0, 50.0]])
    mask = jnp.array([[True], [True], [False]])
    np.testing.assert_array_equal(masked_mean(values, mask, axis=0), [2.0, 20.0])
    assert float(masked_mean(values, mask)) == 11.0


def test_divide_skips_empty_terms_even_where_the_total_is_nan():
    np.testing.assert_array_equal(divide(jnp.array([6.0, np.nan, 0.0]), jnp.array([3, 0, 0])), [2.0, 0.0, 0.0])
