"""The learner's state from its first step on, and the fingerprint of a parameter tree. Knows no files."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rw.learner.optimizer import Optimizer
from rw.sharding import param_shardings, replicated
from rw.types import TrainState


def init_state(params: Any, optimizer: Optimizer, seed: int) -> TrainState:
    """State before the first step. It holds copies of `params`: a step gives the state's own buffers away.

    Args:
        params: parameter tree, one array per name; on a mesh, the state lies as they do.
        optimizer: gives the zero moments.
        seed: the run's seed, which becomes the base key (never advanced; whoever needs randomness folds into it).
    """

    def make(params: Any) -> TrainState:
        return TrainState(
            params=jax.tree.map(jnp.copy, params),
            opt_state=optimizer.init(params),
            step=jnp.zeros((), jnp.int32),
            data_batch_index=jnp.zeros((), jnp.int32),
            rng=jnp.asarray(jax.random.PRNGKey(seed)),
            nonfinite_skips=jnp.zeros((2,), jnp.int32),
        )

    first = jax.tree.leaves(params)[0]
    sharding = first.sharding
    if not isinstance(sharding, jax.NamedSharding):
        # Beside parameters that are bound to a device the first update would bind the rest, and compile again.
        return jax.device_put(make(params), sharding) if first.committed else make(params)
    # Compiled zeros would forget how the parameters lie.
    shapes = jax.eval_shape(make, params)
    shardings = jax.tree.map(lambda _: replicated(sharding.mesh), shapes)._replace(
        params=param_shardings(sharding.mesh, shapes.params),
        opt_state=param_shardings(sharding.mesh, shapes.opt_state),
    )
    return jax.jit(make, out_shardings=shardings)(params)


def fingerprint(params: Any) -> str:
    """A digest (hex) of names, dtypes, shapes and bits of all leaves: equal trees agree, however they are sharded.

    The bits are summed where they lie, so that nothing of a large model is moved: each word times an odd number that
    depends on its place, modulo 2^32, twice. Against mistakes, not against malice.
    """
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        sums = np.asarray(_sums_of_bits(leaf))
        digest.update(f"{jax.tree_util.keystr(path)} {leaf.dtype.name} {leaf.shape} {sums.tolist()}\n".encode())
    return digest.hexdigest()


@jax.jit
def _sums_of_bits(x: jax.Array) -> jax.Array:
    """u32[2]: two sums over all words, which do not depend on the order of addition."""
    width = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}[x.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(x, width).astype(jnp.uint32)
    sums = []
    for multiplier in (2654435761, 2246822519):
        place = jnp.zeros((), jnp.uint32)
        for axis, size in enumerate(bits.shape):
            place = place * np.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
        place = (place * np.uint32(multiplier)) ^ (place >> 15)
        sums.append(jnp.sum(bits * (2 * place + 1), dtype=jnp.uint32))
    return jnp.stack(sums)
