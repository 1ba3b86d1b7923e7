"""A router by dual contrastive learning: a question's vector is drawn to Workers that do well on it, and to like
questions.

After RouterDC (Chen et al., 2024), with a learned projection of given vectors in the place of a tuned encoder.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.cluster import KMeans

from rw.evaluation.factorised_router import fitted

WIDTH = 64
STEPS = 200
WEIGHT_DECAY = 1e-2
TEMPERATURE = 0.2
SAMPLE_WEIGHT = 0.2  # of the loss between questions
CLUSTERS = 8
QUESTIONS_A_CLUSTER = 8  # at least; fewer questions make fewer clusters


def router_dc(vectors: np.ndarray, scores: np.ndarray, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """Learns by sample-Worker and sample-sample contrastive loss.

    Positives of a question are the Workers with its best score, negatives those below it; a question on which all do
    alike has none and says nothing of Workers. Questions of one cluster (k-means of the given vectors) are positives of
    each other, all others negatives.

    Args:
        vectors: f32[N, D].
        scores: f64[N, W].

    Returns:
        Cosines of questions f32[Q, D] and Workers as f64[Q, W].
    """
    best = scores >= scores.max(1, keepdims=True) - 1e-9
    data = {
        "questions": jnp.asarray(vectors, jnp.float32),
        "positives": jnp.asarray(best & ~best.all(1, keepdims=True)),
        "negatives": jnp.asarray(~best),
        "same": jnp.asarray(_same_cluster(vectors, seed)),
    }
    keys = jax.random.split(jax.random.key(seed), 2)
    params = {
        "projection": jax.random.normal(keys[0], (vectors.shape[1], WIDTH)) / np.sqrt(WIDTH),
        "workers": jax.random.normal(keys[1], (scores.shape[1], WIDTH)),
    }
    params = fitted(dual_loss, STEPS, WEIGHT_DECAY, params, data)
    return lambda asked: np.asarray(likenesses(params, jnp.asarray(asked, jnp.float32)), float)


def dual_loss(params: dict[str, jax.Array], data: dict[str, jax.Array]) -> jax.Array:
    """Between questions and Workers, and between questions."""
    questions, same = projected(params, data["questions"]), data["same"]
    by_worker = likenesses(params, data["questions"]) / TEMPERATURE  # f32[N, W]
    by_question = questions @ questions.T / TEMPERATURE  # f32[N, N]
    others = ~jnp.eye(len(questions), dtype=bool)
    of_workers = contrast(by_worker, data["positives"], data["negatives"])
    return of_workers + SAMPLE_WEIGHT * contrast(by_question, same & others, ~same)


def likenesses(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Cosines of questions and Workers, f32[N, W]."""
    return projected(params, x) @ _unit(params["workers"]).T


def contrast(likeness: jax.Array, positives: jax.Array, negatives: jax.Array) -> jax.Array:
    """Mean of -log e^s / (e^s + Σ e^t) over all pairs: s of a positive, t of all negatives of its row; 0 without any.

    Args:
        likeness: f32[N, M].
        positives: bool[N, M].
        negatives: bool[N, M].
    """
    against = jax.nn.logsumexp(jnp.where(negatives, likeness, -1e9), axis=1, keepdims=True)
    each = jnp.logaddexp(likeness, against) - likeness
    return jnp.where(positives, each, 0.0).sum() / jnp.maximum(positives.sum(), 1)


def projected(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Questions as unit vectors, f32[N, WIDTH]."""
    return _unit(x @ params["projection"])


def _unit(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.maximum((x * x).sum(-1, keepdims=True), 1e-12))


def _same_cluster(vectors: np.ndarray, seed: int) -> np.ndarray:
    """Whether two questions are of one cluster, bool[N, N]."""
    clusters = max(1, min(CLUSTERS, len(vectors) // QUESTIONS_A_CLUSTER))
    labels = KMeans(clusters, n_init=1, random_state=seed).fit_predict(vectors)
    return labels[:, None] == labels[None, :]
