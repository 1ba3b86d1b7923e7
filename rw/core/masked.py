"""Sums and means over masked arrays, safe whatever the masked slots hold.

A masked slot may hold NaN or inf (padding, an excluded rollout, a token that was never sampled). It must be replaced
before any arithmetic: `0 * nan` is NaN, and so is the gradient of an expression whose NaN is masked only afterwards.
"""

from __future__ import annotations

import jax.numpy as jnp


def fill(values, mask, value=0.0):
    """`values` with `value` in the slots outside `mask`; the gradient there is 0. Shapes broadcast."""
    return jnp.where(mask, values, jnp.asarray(value, jnp.result_type(values)))


def divide(total, count):
    """`total / count`, and 0 where `count` is 0: an empty term is skipped, never 0/0. Shapes broadcast."""
    total = jnp.asarray(total)
    count = jnp.asarray(count, total.dtype)
    return jnp.where(count > 0, fill(total, count > 0) / fill(count, count > 0, 1), 0)


def masked_sum(values, mask, axis=None):
    """Sum of `values` over the slots of `mask`; 0 for an empty mask."""
    return jnp.sum(fill(values, mask), axis=axis)


def masked_mean(values, mask, axis=None):
    """Mean of `values` over the slots of `mask`; 0 for an empty mask. `mask` broadcasts to the shape of `values`."""
    values = jnp.asarray(values)
    shape = jnp.broadcast_shapes(values.shape, jnp.shape(mask))
    count = jnp.sum(jnp.broadcast_to(mask, shape), axis=axis, dtype=values.dtype)
    return divide(masked_sum(values, mask, axis), count)
