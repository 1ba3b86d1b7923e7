"""The learner's state from its first step on, and the fingerprint of a parameter tree. Knows no files."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rw.learner.optimizer import Optimizer
from rw.types import TrainState


def init_state(params: Any, optimizer: Optimizer, seed: int) -> TrainState:
    """State before the first step. It holds copies of `params`: a step gives the state's own buffers away.

    Args:
        params: parameter tree, one array per name; on a mesh, the state lies as they do.
        optimizer: gives the zero moments.
        seed: the run's seed, which becomes the base key (never advanced; whoever needs randomness folds into it).
    """
    state = TrainState(
        params=jax.tree.map(jnp.copy, params),
        opt_state=optimizer.init(params),  # not jitted: compiled zeros would forget the sharding of the parameters
        step=jnp.zeros((), jnp.int32),
        data_batch_index=jnp.zeros((), jnp.int32),
        rng=jnp.asarray(jax.random.PRNGKey(seed)),
        nonfinite_skips=jnp.zeros((2,), jnp.int32),
    )
    return jax.tree.map(partial(_with_mesh_of, jax.tree.leaves(params)[0]), state)


def _with_mesh_of(reference: jax.Array, leaf: jax.Array) -> jax.Array:
    """The leaf, replicated over the mesh of `reference` unless it already lies on one."""
    if not isinstance(reference.sharding, jax.NamedSharding) or isinstance(leaf.sharding, jax.NamedSharding):
        return leaf
    return jax.device_put(leaf, jax.NamedSharding(reference.sharding.mesh, jax.P()))


def fingerprint(params: Any) -> str:
    """sha256 (hex) over names, dtypes, shapes and bytes of all leaves: equal trees, and only those, agree."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        array = np.ascontiguousarray(jax.device_get(leaf))
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype.name} {array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
