"""Attention heads that copy, set by hand in fresh parameters, so that a router from random weights need not learn it.

A pretrained router copies text that it reads: after `A B … A B` it expects what followed before. A tiny one finds this
out late or, with a large vocabulary, never. Three heads in two layers do it: in the first layer one head reads the
previous token and one the token before it, and each notes its code; in the second layer a head looks for the place
whose two notes are the present token and its predecessor, and copies the code of the token there. This is the
induction circuit that trained models are found to have. Nothing of any task is in it, and training may change it all.

The width is divided: one coordinate that is the same for all tokens, from which the first two heads, lacking biases,
get their fixed queries and keys; then three parts of equal size for a token's code and the two notes.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from rw.errors import ConfigError
from rw.model.config import ModelConfig
from rw.model.qwen3 import EMBEDDING, LAYER_PREFIX, Params

CODE_NORM = 2.65  # logits of about 27 for the copied token, against 21 for the sum of 151,936 others
_CONSTANT = 0.7 * CODE_NORM
_COPY_GAIN = 4.0  # of the copied code against the present token's own
_QUIET = 0.1  # of all other outputs at first, so that they do not drown the codes
_FAST, _SLOW = 0.25, 0.003  # radians a token: pairs that tell neighbours apart, pairs that hardly turn over 300 tokens
_POSITION_SHARPNESS, _MATCH_SHARPNESS = 4.0, 3.0
_ATTENTION = LAYER_PREFIX + "self_attn."


def wire_copying(params: Params, config: ModelConfig) -> Params:
    """Fresh parameters with the copying heads set; what they do not need stays random, but quiet.

    Long training at a high rate would undo this for rare tokens: AdamW moves every row of a tied embedding at full
    rate, and those that are never wanted all the same way, until their codes drown in what they share.

    Args:
        params: of `init_params`; left as they are.
        config: tied, with query and key norms, at least two layers, and two query heads to a key head.

    Raises:
        ConfigError: a model in which the heads have no room.
    """
    code = (config.d_model - 1) // 3  # coordinates of a token's code
    frequencies = config.rope_theta ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
    fast = (frequencies >= _FAST).astype(np.float32)
    slow = np.flatnonzero(frequencies <= _SLOW)[:code]
    _check_room(config, code, len(slow))
    wired = {name: np.array(array) for name, array in params.items()}
    wired[_ATTENTION + "o_proj.weight"] *= _QUIET
    wired[LAYER_PREFIX + "mlp.down_proj.weight"] *= _QUIET
    wired[EMBEDDING] = _codes(wired[EMBEDDING], code)
    _set_noting_heads(wired, config, code, frequencies, fast)
    _set_copying_head(wired, config, code, slow)
    return {name: jnp.asarray(array, params[name].dtype) for name, array in wired.items()}


def _check_room(config: ModelConfig, code: int, slow_pairs: int) -> None:
    needs = {
        "tied": config.tied,
        "qk_norm": config.qk_norm,
        "n_layers of at least 2": config.n_layers >= 2,
        "n_heads of at least 2 n_kv_heads": config.n_heads >= 2 * config.n_kv_heads,
        f"head_dim of at least (d_model - 1) // 3 = {code}": config.head_dim >= code,
        "rope_theta large enough for 8 slow pairs of head_dim": slow_pairs >= 8,
    }
    missing = [need for need, is_met in needs.items() if not is_met]
    if missing:
        raise ConfigError(f"heads that copy need a model with {', '.join(missing)}")


def _codes(embedding: np.ndarray, code: int) -> np.ndarray:
    """f32[V, D]: the constant, random codes of one length, and no notes. A tied head does not see the constant."""
    wired = np.zeros_like(embedding)
    directions = embedding[:, 1 : 1 + code]
    wired[:, 1 : 1 + code] = CODE_NORM * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    wired[:, 0] = _CONSTANT
    return wired


def _set_noting_heads(wired: Params, config: ModelConfig, code: int, angles: np.ndarray, fast: np.ndarray) -> None:
    """Heads 0 and 1 of the first layer read one and two tokens back: the query is the key, turned by so many tokens."""
    width, still = config.head_dim, np.zeros(config.head_dim // 2)
    query, key, value, output, norm = _layer(wired, 0)
    key[:, :width], value[:, :width], output[: 2 * width] = 0, 0, 0
    key[0, :width] = np.concatenate([fast, still])
    value[1 : 1 + code, :code] = np.eye(code)
    scale = math.hypot(CODE_NORM, _CONSTANT) / math.sqrt(config.d_model)  # undoes the norm before attention
    for head in (0, 1):
        back = (head + 1) * angles
        at = slice(head * width, (head + 1) * width)
        query[:, at] = 0
        query[0, at] = np.concatenate([fast * np.cos(back), -fast * np.sin(back)])
        note = 1 + (head + 1) * code
        output[head * width : head * width + code, note : note + code] = scale * np.eye(code)
    norm *= _POSITION_SHARPNESS


def _set_copying_head(wired: Params, config: ModelConfig, code: int, slow: np.ndarray) -> None:
    """Head 0 of the second layer: (token, note 1) as the query meets (note 1, note 2) as the key."""
    width, half = config.head_dim, config.head_dim // 2
    query, key, value, output, norm = _layer(wired, 1)
    query[:, :width], key[:, :width], value[:, :width], output[:width] = 0, 0, 0, 0
    coordinates = 1 + np.arange(len(slow))
    query[coordinates, slow] = key[coordinates + code, slow] = 1
    query[coordinates + code, slow + half] = key[coordinates + 2 * code, slow + half] = 1
    value[1 : 1 + code, :code] = np.eye(code)
    scale = math.hypot(CODE_NORM * math.sqrt(3), _CONSTANT) / math.sqrt(config.d_model)
    output[:code, 1 : 1 + code] = _COPY_GAIN * scale * np.eye(code)
    norm *= _MATCH_SHARPNESS


def _layer(wired: Params, layer: int) -> list[np.ndarray]:
    """Views of a layer's query, key, value and output projections and its query norm."""
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm")
    return [wired[f"{_ATTENTION}{name}.weight"][layer] for name in names]
