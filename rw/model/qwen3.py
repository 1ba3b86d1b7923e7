"""Qwen3: Linen modules that own shapes and initial values, and the functions that the rest of rw calls.

Parameters leave this file as a flat dict, one array per Hugging Face name with the layer index replaced by a leading
axis L (`model.layers.self_attn.q_proj.weight`: [L, D, H·hd]); projections map from their second-last axis to the last.
The modules hold no state besides them: the cache is an argument and a return value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.ad_checkpoint import checkpoint_name

from rw.model import cache as kv
from rw.model.attention import BUILT_IN, attend, attend_pages
from rw.model.config import SAVED_ATTENTION, ModelConfig, wide
from rw.sharding import constrain, whole_weight

LAYER_PREFIX = "model.layers."
EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"

# Without rematerialisation a scan first writes zeros for what the backward pass keeps, and copies each layer's part
# there and back: up to this depth layers stand one after the other, though that takes longer to compile.
MOST_UNROLLED = 8

Params = dict[str, jax.Array]


class UnstackedParams(NamedTuple):
    """The sampler's layout: what is not in a layer by its full name, and one dict a layer by the name within it.

    Decoding from stacked arrays would copy every layer's slice at each dispatch.
    """

    top: Params
    layers: list[Params]


class LayerInputs(NamedTuple):
    """What all layers read besides the hidden states."""

    cos: Any  # f32[B, T, 1, hd]
    sin: Any  # f32[B, T, 1, hd]
    positions: Any  # i32[B, T], where a cache is written
    query_index: Any  # i32[B, T]
    key_index: Any  # i32[B, S], or None beside a cache in pages
    segments: Any  # i32[B, T] or None
    prefixes: Any  # i32[B, T] or None

    def of_queries(self, places) -> LayerInputs:
        """The same where only the tokens at places i32[B, P] ask: what is read of keys stays whole."""
        queries = {name: getattr(self, name) for name in ("cos", "sin", "query_index", "segments", "prefixes")}
        return self._replace(**{name: None if x is None else _take(x, places) for name, x in queries.items()})


class Linear(nn.Module):
    """x @ weight in the compute dtype; the products of a projection are summed in float32."""

    config: ModelConfig
    features: int
    scale: float = 1.0

    @nn.compact
    def __call__(self, x):
        std = self.scale / math.sqrt(x.shape[-1])
        shape = (x.shape[-1], self.features)
        weight = self.param("weight", nn.initializers.normal(std), shape, jnp.dtype(self.config.param_dtype))
        # As a matrix: with two axes to sum over, the weight's gradient took three times as long on CPU.
        product = x.reshape(-1, x.shape[-1]) @ whole_weight(weight.astype(self.config.compute_dtype), self.name)
        return product.reshape(*x.shape[:-1], self.features)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis, computed in float32."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x):
        dtype = jnp.dtype(self.config.compute_dtype)
        weight = self.param("weight", nn.initializers.ones, x.shape[-1:], jnp.dtype(self.config.param_dtype))
        x = x.astype(wide(dtype))
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.config.norm_eps)
        # The weight is rounded as published weights are, so that sampler and learner multiply by the same numbers.
        return (x * weight.astype(dtype).astype(x.dtype)).astype(dtype)


class SelfAttention(nn.Module):
    """Grouped-query attention with a norm of each head's query and key before the rotation."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x, inputs: LayerInputs, layer_cache, places=None):
        c = self.config
        asking, asked = (x, inputs) if places is None else (_take(x, places), inputs.of_queries(places))
        query = _split_heads(Linear(c, c.n_heads * c.head_dim, name="q_proj")(asking), c.head_dim)  # [B, T, H, hd]
        key = _split_heads(Linear(c, c.n_kv_heads * c.head_dim, name="k_proj")(x), c.head_dim)  # [B, T, N, hd]
        value = _split_heads(Linear(c, c.n_kv_heads * c.head_dim, name="v_proj")(x), c.head_dim)
        if c.qk_norm:
            query, key = RMSNorm(c, name="q_norm")(query), RMSNorm(c, name="k_norm")(key)
        query, key = rotate(query, asked.cos, asked.sin), rotate(key, inputs.cos, inputs.sin)
        query, key, value = (constrain(x, "batch", "length", "heads", "width") for x in (query, key, value))
        if layer_cache is not None:
            layer_cache = kv.write(layer_cache, key, value, inputs.positions)
        if isinstance(layer_cache, kv.PagedLayer):
            out = attend_pages(query, layer_cache, asked.query_index)
        else:
            own = key.transpose(0, 2, 1, 3), value.transpose(0, 2, 3, 1)
            keys, values = own if layer_cache is None else kv.attended(layer_cache)
            segments = (asked.segments, inputs.segments)
            whole_rows = layer_cache is None and places is None
            options = {"backend": c.attention, "chunk": c.attention_chunk, "whole_rows": whole_rows}
            options["query_prefixes"] = asked.prefixes
            out = attend(query, keys, values, asked.query_index, inputs.key_index, *segments, **options)
        residual_scale = 1 / math.sqrt(2 * c.n_layers)
        out = constrain(out.reshape(*asking.shape[:-1], c.n_heads * c.head_dim), "batch", "length", "heads")
        out = checkpoint_name(out, SAVED_ATTENTION)
        return Linear(c, c.d_model, residual_scale, name="o_proj")(out), layer_cache


class MLP(nn.Module):
    """SwiGLU."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x):
        c = self.config
        gate, up = Linear(c, c.d_ff, name="gate_proj")(x), Linear(c, c.d_ff, name="up_proj")(x)
        gate, up = constrain(gate, "batch", "length", "mlp"), constrain(up, "batch", "length", "mlp")
        return Linear(c, c.d_model, 1 / math.sqrt(2 * c.n_layers), name="down_proj")(nn.silu(gate) * up)


class DecoderLayer(nn.Module):
    """One pre-norm block; returns (hidden, the layer's cache or None), the shape of a scan body.

    On a mesh the residual stream, and so what the backward pass keeps of a layer, is split by length over `tensor`:
    norms and sums run on the parts; rows are whole only where heads or features are split instead. With `places`
    i32[B, P] it goes on with the tokens at those alone: [B, P, D].
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, hidden, inputs: LayerInputs, layer_cache=None, places=None):
        normed = _whole_rows(RMSNorm(self.config, name="input_layernorm")(hidden))
        attended, layer_cache = SelfAttention(self.config, name="self_attn")(normed, inputs, layer_cache, places)
        hidden = (hidden if places is None else _take(hidden, places)) + _split_rows(attended)
        normed = _whole_rows(RMSNorm(self.config, name="post_attention_layernorm")(hidden))
        hidden = hidden + _split_rows(MLP(self.config, name="mlp")(normed))
        return _split_rows(hidden), layer_cache


class Embedding(nn.Module):
    """Rows of a [V, D] table in the compute dtype.

    They start with std 1/√D: at Qwen3-4B's width that is its own 0.02, and at any width a tied head's first logits have
    variance 1. A narrow model that started with 0.02 would lose the tokens' identity beneath what its blocks write to
    the residual stream, and would learn to copy one much later.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, tokens):
        shape = (self.config.vocab_size, self.config.d_model)
        init = nn.initializers.normal(1 / math.sqrt(self.config.d_model))
        weight = self.param("weight", init, shape, jnp.dtype(self.config.param_dtype))
        # First where the table lies, each device its own features of its ids, for rows of all fsdp: otherwise the
        # compiler would gather the whole table, or the whole batch.
        with jax.named_scope("embed"):
            hidden = constrain(weight[constrain(tokens, "rows", "length")], "rows", "length", "embed")
            return _split_rows(hidden.astype(self.config.compute_dtype))


class Backbone(nn.Module):
    """Embedding, L scanned layers and the final norm."""

    config: ModelConfig

    @nn.compact
    def __call__(self, tokens, inputs: LayerInputs):
        c = self.config
        hidden = Embedding(c, name="embed_tokens")(tokens)
        scanned = nn.scan(
            _rematerialised(c),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,
            length=c.n_layers,
        )
        hidden, _ = scanned(c, name="layers")(hidden, inputs)
        return _whole_rows(RMSNorm(c, name="norm")(hidden))


class Qwen3(nn.Module):
    """All parameters of a model. The head is applied by `logprobs`, on the tokens that need it."""

    config: ModelConfig

    @nn.compact
    def __call__(self, tokens, inputs: LayerInputs):
        hidden = Backbone(self.config, name="model")(tokens, inputs)
        if not self.config.tied and self.is_initializing():
            Linear(self.config, self.config.vocab_size, name="lm_head")(hidden)
        return hidden


def init_params(key, config: ModelConfig, shardings: Mapping[str, jax.sharding.Sharding] | None = None) -> Params:
    """Random parameters in `param_dtype`: std 1/√fan_in, less where a projection writes to the residual stream.

    `shardings`, one a name, say where they are made, each device only its part. The values do not depend on them.
    """
    if shardings is None:
        return _init(key, config)
    return jax.jit(_random_params, static_argnames="config", out_shardings=dict(shardings))(key, config)


def shapes_of(config: ModelConfig) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape and dtype of every parameter, without making any."""
    return jax.eval_shape(lambda: _random_params(jax.random.key(0), config))


def _random_params(key, config: ModelConfig) -> Params:
    tokens = jnp.zeros((1, 1), jnp.int32)
    variables = Qwen3(config).init(key, tokens, _layer_inputs(config, tokens, tokens))
    return flatten_dict(variables["params"], sep=".")


_init = partial(jax.jit, static_argnames="config")(_random_params)


def hidden_states(
    params, config: ModelConfig, tokens, positions, cache=None, segment_mask=None, prefixes=None, places=None
):
    """Final hidden states of every token, normed and ready for the head.

    Without a cache a row attends to itself: causal by place in the row, padding (negative positions) never read. With
    a cache the tokens are first stored at their positions, then each attends to the positions up to its own; padding
    (negative positions, or beyond the capacity) is dropped. Positions of a row start at 0 on its first real token;
    what is computed for padding has no meaning, but is finite.

    Args:
        params: stacked (a flat dict), whose layers are scanned where there is no cache, unless they are few and nothing
            is rematerialised; or unstacked (`unstack`), which a cache wants.
        tokens, positions: i32[B, T].
        cache: from `cache.init_cache`, or in pages, which `attend_pages` reads whatever config.attention names, or
            None. Donate it to the surrounding jit.
        segment_mask: i32[B, T] sequence ids of packed rows, or None: tokens of different ids do not see each other.
        prefixes: i32[B, T] or None: with `segment_mask`, the id of a sequence before its own in the row that each token
            sees besides; its own where it has none. Positions go on behind the prefix, so restart in each continuation.
        places: i32[B, P] or None: the tokens of each row, by their place in it, whose states are asked for. The last
            layer computes no others, unless it is scanned or its attention is a kernel of whole rows.

    Returns:
        (hidden [B, T, D] or [B, P, D] in the compute dtype, the cache or None).
    """
    inputs = _layer_inputs(config, tokens, positions, cache, segment_mask, prefixes)
    scans = config.remat != "none" or config.n_layers > MOST_UNROLLED
    if cache is None and scans and not isinstance(params, UnstackedParams):
        hidden = Qwen3(config).apply(_variables(params), tokens, inputs)
        return hidden if places is None else _take(hidden, places), None
    if not isinstance(params, UnstackedParams):
        params = unstack(params, config, dtype=config.param_dtype)
    hidden = Embedding(config).apply(_variables({"weight": params.top[EMBEDDING]}), tokens)
    in_layer = places if config.attention in BUILT_IN else None
    new_cache = []
    for layer, layer_params in enumerate(params.layers):
        layer_cache = None if cache is None else cache[layer]
        asked = in_layer if layer == config.n_layers - 1 else None
        hidden, layer_cache = DecoderLayer(config).apply(_variables(layer_params), hidden, inputs, layer_cache, asked)
        new_cache.append(layer_cache)
    if places is not None and in_layer is None:
        hidden = _take(hidden, places)
    hidden = _whole_rows(RMSNorm(config).apply(_variables({"weight": params.top[FINAL_NORM]}), hidden))
    return hidden, None if cache is None else new_cache


def unstack(params: Params, config: ModelConfig, dtype=None) -> UnstackedParams:
    """Stacked parameters in the sampler's layout and `dtype` or the compute dtype. Once per published version."""
    dtype = jnp.dtype(dtype or config.compute_dtype)
    stacks = {name.removeprefix(LAYER_PREFIX): x for name, x in params.items() if name.startswith(LAYER_PREFIX)}
    top = {name: x.astype(dtype) for name, x in params.items() if not name.startswith(LAYER_PREFIX)}
    layers = {name: _apart(x, config.n_layers) for name, x in stacks.items()}
    return UnstackedParams(top, [{n: x[i].astype(dtype) for n, x in layers.items()} for i in range(config.n_layers)])


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _apart(stack, count: int):
    """The entries of a stack. Its gradient is one stack of theirs; that of indexing would add up as many of zeros."""
    return tuple(stack[i] for i in range(count))


_apart.defvjp(lambda stack, count: (_apart(stack, count), None), lambda count, _, parts: (jnp.stack(parts),))


def rotary(positions, config: ModelConfig):
    """cos, sin f32[B, T, 1, hd] of the rotation at positions i32[B, T]; the frequencies repeat over the two halves."""
    # On the host and rounded once: at position 10,000 one unit in a frequency's last place moves logits by 5e-5, and
    # every program must turn by the same angle.
    frequencies = (config.rope_theta ** -(np.arange(0, config.head_dim, 2) / config.head_dim)).astype(np.float32)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    angles = jnp.concatenate([angles, angles], axis=-1)[:, :, None]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x, cos, sin):
    """Rotary embedding of x [B, T, heads, hd]: feature i turns with feature i + hd/2, in float32."""
    exact = x.astype(wide(x.dtype))
    first, second = jnp.split(exact, 2, axis=-1)
    turned = jnp.concatenate([-second, first], axis=-1)
    return (exact * cos + turned * sin).astype(x.dtype)


def _layer_inputs(config, tokens, positions, cache=None, segments=None, prefixes=None) -> LayerInputs:
    cos, sin = rotary(positions, config)
    if cache is None:
        # Order is the place in the row: positions may restart in packed rows, and trailing padding may hold any.
        index = jnp.where(positions < 0, -1, jnp.arange(tokens.shape[1], dtype=jnp.int32))
        return LayerInputs(cos, sin, positions, index, index, segments, prefixes)
    if segments is not None:
        raise ValueError("segment_mask packs rows of a forward pass without a cache; a cache holds one sequence a row")
    if isinstance(cache[0], kv.PagedLayer):
        return LayerInputs(cos, sin, positions, positions, None, None, None)
    key_index = jnp.broadcast_to(jnp.arange(kv.capacity(cache), dtype=jnp.int32), (tokens.shape[0], kv.capacity(cache)))
    return LayerInputs(cos, sin, positions, positions, key_index, None, None)


def _take(x, places):
    """[B, P, …] of x [B, T, …]: the entries at places i32[B, P] of each row."""
    return jnp.take_along_axis(x, places.reshape(*places.shape, *[1] * (x.ndim - 2)), axis=1)


def _split_heads(x, head_dim: int):
    return x.reshape(*x.shape[:-1], -1, head_dim)


def _whole_rows(x):
    return constrain(x, "batch", "length", "width")


def _split_rows(x):
    return constrain(x, "batch", "sequence", "width")


def _rematerialised(config: ModelConfig):
    if config.remat == "none":
        return DecoderLayer
    if config.remat == "attention_saveable":
        policy = jax.checkpoint_policies.save_only_these_names(SAVED_ATTENTION)
    else:
        policy = getattr(jax.checkpoint_policies, config.remat)
    return nn.remat(DecoderLayer, policy=policy, prevent_cse=False)  # inside a scan nothing can be merged anyway


def _variables(params: Params):
    return {"params": unflatten_dict(params, sep=".")}
