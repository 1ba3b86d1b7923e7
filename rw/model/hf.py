"""Names and orientation of Hugging Face's Qwen3 arrays against ours. Knows arrays in memory and no files."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from rw.errors import CheckpointError
from rw.model.config import ModelConfig
from rw.model.qwen3 import EMBEDDING, HEAD, LAYER_PREFIX, init_params


def from_hf(arrays: Mapping[str, np.ndarray], config: ModelConfig) -> dict[str, np.ndarray]:
    """Our stacked parameters from Hugging Face's arrays, in `param_dtype`; raises CheckpointError on a misfit."""
    layer_names = sorted({_split_layer(name)[1] for name in arrays if name.startswith(LAYER_PREFIX)})
    params = {name: _turn(name, x) for name, x in arrays.items() if not name.startswith(LAYER_PREFIX)}
    if config.tied:
        params.pop(HEAD, None)  # some files carry the embedding a second time under the head's name
    for name in layer_names:
        try:
            layers = [_turn(name, arrays[f"{LAYER_PREFIX}{layer}.{name}"]) for layer in range(config.n_layers)]
        except KeyError as missing:
            raise CheckpointError(f"weights lack {missing.args[0]}, which {config.n_layers} layers need") from None
        params[LAYER_PREFIX + name] = np.stack(layers)
    _check(params, config)
    return {name: np.asarray(x, dtype=jnp.dtype(config.param_dtype)) for name, x in params.items()}


def to_hf(params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Hugging Face's arrays from our stacked parameters: the inverse of `from_hf`, also for gradients."""
    arrays = {}
    for name, x in params.items():
        if name.startswith(LAYER_PREFIX):
            inner = name.removeprefix(LAYER_PREFIX)
            arrays |= {f"{LAYER_PREFIX}{layer}.{inner}": _turn(inner, x[layer]) for layer in range(x.shape[0])}
        else:
            arrays[name] = _turn(name, x)
    return arrays


def _split_layer(name: str) -> tuple[int, str]:
    layer, _, inner = name.removeprefix(LAYER_PREFIX).partition(".")
    return int(layer), inner


def _turn(name: str, array):
    """Hugging Face's projections are [out, in], ours [in, out]; the embedding and the norms are the same in both."""
    array = np.asarray(array)
    return array.T if is_turned(name, array.ndim) else array


def _check(params: Mapping[str, np.ndarray], config: ModelConfig) -> None:
    expected = expected_shapes(config)
    for name in sorted(set(expected) | set(params)):
        if name not in params:
            raise CheckpointError(f"weights lack {name}, which the model config needs")
        if name not in expected:
            raise CheckpointError(f"weights hold {name}, which the model config has no place for")
        if params[name].shape != expected[name]:
            raise CheckpointError(f"{name} has shape {params[name].shape}, the model config needs {expected[name]}")


def is_turned(name: str, axes: int) -> bool:
    """Whether an array of that many axes without layers has them the other way round here: all projections do."""
    return axes == 2 and name != EMBEDDING


def hf_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every array by Hugging Face's name, in the order in which it has them: embedding, layers, norm, head."""
    top, layers = {}, {}
    for name, shape in expected_shapes(config).items():
        (layers if name.startswith(LAYER_PREFIX) else top)[name] = shape
    shapes = {EMBEDDING: top.pop(EMBEDDING)}
    for layer in range(config.n_layers):
        for name, shape in layers.items():
            inner = shape[:0:-1] if is_turned(name, len(shape) - 1) else shape[1:]
            shapes[f"{LAYER_PREFIX}{layer}.{name.removeprefix(LAYER_PREFIX)}"] = inner
    return shapes | {name: shape[::-1] if is_turned(name, len(shape)) else shape for name, shape in top.items()}


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every stacked parameter, without making any."""
    shapes = jax.eval_shape(lambda: init_params(jax.random.key(0), config))
    return {name: leaf.shape for name, leaf in shapes.items()}
