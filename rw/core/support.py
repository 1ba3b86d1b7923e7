"""The support term (Eqs. 12 and 19): keeps every mode's average probability above a floor while exploration fades.

The term is the log of a mean over the batch, so micro-batches cannot simply add it up: the scores of all queries come
first, forward only, and the term's slope in each of them is a constant of the pass that takes the gradient.

Axes: U unique queries of the batch, forced, free and excluded alike; M modes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

SUPPORT_EPSILON = 1e-12  # inside the logarithm


def candidate_probabilities(scores):
    """p̃(m | x): softmax over the candidate modes of their summed log-probs `scores` f32[U, M]. RouteWeaver, Eq. 19."""
    return jax.nn.softmax(jnp.asarray(scores), axis=-1)


def mode_support(scores):
    """p̄_m f32[M]: the mean of p̃(m | x) over the batch's unique queries; zeros for no query. RouteWeaver, Eq. 19."""
    probabilities = candidate_probabilities(scores)
    return jnp.sum(probabilities, axis=0) / max(probabilities.shape[0], 1)


def floor_penalty(mode_support, support_floor):
    """(1/M) Σ_m max(0, log δ - log(p̄_m + 1e-12)), a scalar. RouteWeaver, Eq. 12."""
    gap = jnp.log(jnp.asarray(support_floor, mode_support.dtype)) - jnp.log(mode_support + SUPPORT_EPSILON)
    return jnp.mean(jnp.where(is_below_floor(mode_support, support_floor), gap, 0))


def is_below_floor(mode_support, support_floor):
    """bool[M]: the modes that the term pulls up."""
    return mode_support + SUPPORT_EPSILON < support_floor


@jax.named_scope("support")
def support_loss(scores, support_floor):
    """L_support without its coefficient λ_b. RouteWeaver, Eqs. 12 and 19.

    Args:
        scores: f32[U, M], summed log-probs of the content tokens of each candidate declaration, at temperature 1.
        support_floor: δ.
    Returns:
        (loss f32[], mode_support f32[M]); a loss of 0 for no query.
    """
    support = mode_support(scores)
    if jnp.shape(scores)[0] == 0:
        return jnp.zeros((), support.dtype), support
    return floor_penalty(support, support_floor), support
