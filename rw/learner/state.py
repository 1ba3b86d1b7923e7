"""The learner's state from its first step on, and the fingerprint of a parameter tree. Knows no files."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rw.learner.optimizer import Optimizer
from rw.types import TrainState


def init_state(params: Any, optimizer: Optimizer, seed: int) -> TrainState:
    """State before the first step. The state owns `params`: a step donates them, so pass a copy where others use them.

    Args:
        params: parameter tree, one array per name.
        optimizer: its `init` gives moments with the sharding of the parameters.
        seed: the run's seed, which becomes the base key (never advanced; whoever needs randomness folds into it).
    """
    return TrainState(
        params=params,
        opt_state=jax.jit(optimizer.init)(params),
        step=jnp.zeros((), jnp.int32),
        data_batch_index=jnp.zeros((), jnp.int32),
        rng=jnp.asarray(jax.random.PRNGKey(seed)),
        nonfinite_skips=jnp.zeros((2,), jnp.int32),
    )


def fingerprint(params: Any) -> str:
    """sha256 (hex) over names, dtypes, shapes and bytes of all leaves: equal trees, and only those, agree."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        array = np.ascontiguousarray(jax.device_get(leaf))
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype.name} {array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
