"""Matrix factorisation: a router that scores a Worker by the product of its vector and the question's.

After RouteLLM (Ong et al., 2024), here for any number of Workers and with a question's vector given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

RANK = 32
STEPS = 200
LEARNING_RATE = 1e-2
WEIGHT_DECAY = 3.0  # questions are few, and far less learns them by heart


def matrix_factorisation(vectors: np.ndarray, scores: np.ndarray, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """Learns from pairs of Workers of which one did better, as the Bradley-Terry model: P(a beats b) = σ(δ_a - δ_b).

    δ_w(x) = <v_w, P x> + b_w with a question's vector x, a projection P shared by all and a vector v_w of each Worker.

    Args:
        vectors: f32[N, D].
        scores: f64[N, W]; a pair weighs as much as its scores differ.

    Returns:
        δ of questions f32[Q, D] as f64[Q, W].
    """
    margin = np.maximum(scores[:, :, None] - scores[:, None, :], 0)  # f64[N, W, W], by how much a did better than b
    data = {
        "questions": jnp.asarray(vectors, jnp.float32),
        "weights": jnp.asarray(margin / max(margin.sum(), 1e-9), jnp.float32),
    }
    keys = jax.random.split(jax.random.key(seed), 2)
    params = {
        "projection": jax.random.normal(keys[0], (vectors.shape[1], RANK)) / np.sqrt(RANK),
        "workers": jax.random.normal(keys[1], (scores.shape[1], RANK)) / np.sqrt(RANK),
        "bias": jnp.zeros(scores.shape[1]),
    }
    params = fitted(pairwise_loss, STEPS, WEIGHT_DECAY, params, data)
    return lambda asked: np.asarray(deltas(params, jnp.asarray(asked, jnp.float32)), float)


def deltas(params: dict[str, jax.Array], questions: jax.Array) -> jax.Array:
    """δ of every Worker, f32[N, W]."""
    return (questions @ params["projection"]) @ params["workers"].T + params["bias"]


def pairwise_loss(params: dict[str, jax.Array], data: dict[str, jax.Array]) -> jax.Array:
    """Negative log-likelihood of which Worker of a pair did better, weighted."""
    utilities = deltas(params, data["questions"])
    return -(data["weights"] * jax.nn.log_sigmoid(utilities[:, :, None] - utilities[:, None, :])).sum()


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def fitted(loss: Callable, steps: int, weight_decay: float, params: dict, data: dict) -> dict[str, jax.Array]:
    """The parameters after so many updates by AdamW on all questions at once; `loss` is one of (params, data)."""
    optimizer = optax.adamw(LEARNING_RATE, weight_decay=weight_decay)

    def update(carry, _):
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params, data), state, params)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(update, (params, optimizer.init(params)), length=steps)[0][0]
