"""Hugging Face's arrays in memory against ours, the plain way: what the reader and writer of files are held against."""

import jax.numpy as jnp
import numpy as np

from rw.model.hf import is_turned
from rw.model.qwen3 import LAYER_PREFIX


def from_hf(arrays, config):
    """Our stacked parameters, in `param_dtype`."""
    first = f"{LAYER_PREFIX}0."
    params = {name: turned(name, x) for name, x in arrays.items() if not name.startswith(LAYER_PREFIX)}
    for name in [name.removeprefix(first) for name in arrays if name.startswith(first)]:
        layers = [turned(name, arrays[f"{LAYER_PREFIX}{layer}.{name}"]) for layer in range(config.n_layers)]
        params[LAYER_PREFIX + name] = np.stack(layers)
    return {name: np.asarray(x, dtype=jnp.dtype(config.param_dtype)) for name, x in params.items()}


def to_hf(params):
    """Hugging Face's arrays from our stacked ones, of gradients too: the inverse of `from_hf`."""
    arrays = {}
    for name, x in params.items():
        if name.startswith(LAYER_PREFIX):
            inner = name.removeprefix(LAYER_PREFIX)
            arrays |= {f"{LAYER_PREFIX}{layer}.{inner}": turned(inner, x[layer]) for layer in range(x.shape[0])}
        else:
            arrays[name] = turned(name, x)
    return arrays


def turned(name, array):
    """Projections are [out, in] there and [in, out] here."""
    array = np.asarray(array)
    return array.T if is_turned(name, array.ndim) else array
