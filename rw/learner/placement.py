"""Where a learner's arrays lie: on one device, or split over a mesh."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import numpy as np

from rw.errors import ConfigError
from rw.learner.batch import BatchConfig
from rw.sharding import batch_sharding, param_shardings


class Placement:
    """Puts host trees where the programs expect them. Without a mesh everything lies on the default device."""

    def __init__(self, mesh: jax.sharding.Mesh | None, params: Any, config: BatchConfig):
        """`params`: the parameters, or any tree of their names and shapes.

        Raises:
            ConfigError: the rows of a micro-batch, or an axis of a parameter, cannot be split evenly over the mesh.
        """
        self.mesh = mesh
        self.shardings = None if mesh is None else param_shardings(mesh, params)
        self.ways = ways = 1 if mesh is None else mesh.shape["data"] * mesh.shape["fsdp"]  # over which rows are split
        if config.micro_batch % ways:
            raise ConfigError(
                f"batch.micro_batch={config.micro_batch} does not divide over data·fsdp = {ways} devices; it must be a "
                f"multiple of {ways}, or these one of {[n for n in range(1, ways) if config.micro_batch % n == 0]}"
            )

    def batch(self, tree: Any) -> Any:
        """Host arrays with a leading batch axis. Of several processes each has all of them and places its own part."""
        if self.mesh is None:
            return jax.device_put(tree)
        sharding = batch_sharding(self.mesh)
        if not self.mesh.is_multi_process:
            return jax.device_put(tree, sharding)
        return jax.tree.map(lambda x: jax.make_array_from_callback(np.shape(x), sharding, lambda at: x[at]), tree)

    def params(self, tree: Any) -> Any:
        """Parameters, or a tree like them."""
        return tree if self.shardings is None else jax.device_put(tree, self.shardings)

    def scope(self) -> contextlib.AbstractContextManager:
        """Within it the model's activations are pinned to the mesh."""
        return contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)
