"""Publishing: the trained parameters as weights for the sampler. Knows no sampler and no step."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rw.model.config import ModelConfig
from rw.model.qwen3 import unstack
from rw.types import PublishedWeights


def publish(params: Any, model_config: ModelConfig, version: int) -> PublishedWeights:
    """The parameters in the sampler's layout and the compute dtype, under `version` (the step that made them).

    The arrays are copies: the next step donates the buffers of `params`, and must not take the sampler's weights away.
    """
    return PublishedWeights(version=version, params=_unstacked_copy(params, model_config))


@partial(jax.jit, static_argnames="model_config")
def _unstacked_copy(params: Any, model_config: ModelConfig) -> Any:
    # An output that is an input unchanged would share its buffer.
    return jax.tree.map(jnp.copy, unstack(params, model_config))
