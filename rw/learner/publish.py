"""Publishing: the trained parameters as weights for the sampler. Knows no sampler and no step."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rw.model.config import ModelConfig
from rw.model.qwen3 import unstack
from rw.sharding import on_own_devices, sampler_shardings
from rw.types import PublishedWeights


def publish(params: Any, model_config: ModelConfig, version: int) -> PublishedWeights:
    """The parameters in the sampler's layout and the compute dtype, under `version` (the step that made them).

    The arrays are copies: the next step donates the buffers of `params`, and must not take the sampler's weights away.
    From a mesh they come whole over data and fsdp, since a decode step has no time to gather them, and split over
    tensor; each process has those on its own devices. Every process of a job must call this.
    """
    sharding = jax.tree.leaves(params)[0].sharding
    if not isinstance(sharding, jax.NamedSharding):
        return PublishedWeights(version=version, params=_unstacked_copy(params, model_config))
    layout = jax.eval_shape(partial(unstack, config=model_config), params)
    program = jax.jit(
        _copy_unstacked, static_argnames="model_config", out_shardings=sampler_shardings(sharding.mesh, layout)
    )
    return PublishedWeights(version=version, params=on_own_devices(program(params, model_config)))


def _copy_unstacked(params: Any, model_config: ModelConfig) -> Any:
    # An output that is an input unchanged would share its buffer.
    return jax.tree.map(jnp.copy, unstack(params, model_config))


_unstacked_copy = partial(jax.jit, static_argnames="model_config")(_copy_unstacked)
