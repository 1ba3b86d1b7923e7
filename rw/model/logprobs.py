"""The head: log-probabilities of given tokens, in chunks, and plain logits. Never an array of [B, T, V]."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rw.model.config import ModelConfig, wide
from rw.model.qwen3 import EMBEDDING, HEAD, UnstackedParams
from rw.sharding import constrain, whole_weight

CHUNK = 128  # tokens of every row whose logits exist at a time


@jax.named_scope("head")
def logits(params, config: ModelConfig, hidden):
    """f32[..., V] of hidden [..., D], for the few tokens of a decode step; compute-dtype products summed in float32."""
    head = _head(params, config)
    rows = hidden.astype(config.compute_dtype).reshape(-1, head.shape[0])
    product = jnp.dot(rows, head, preferred_element_type=wide(head.dtype))
    return product.reshape(*hidden.shape[:-1], head.shape[1])


@jax.named_scope("head")
def token_logprobs(params, config: ModelConfig, hidden, targets, temperature=1.0, chunk=CHUNK, with_entropy=False):
    """log softmax(logits / temperature) of each target over the whole vocabulary, never above 0.

    Pass gathered policy tokens only: hidden[..., p, :] is the state *before* targets[..., p]. Logits exist for `chunk`
    tokens a row at a time and are computed again in the backward pass.

    Args:
        hidden: [..., P, D]. targets: i32[..., P], any id in range where the result is not used.
        temperature: the sampling temperature, above 0.
        with_entropy: also return the entropy of each token's distribution at that temperature, in nats.

    Returns:
        f32[..., P], or with entropy a pair of them.
    """
    lead, count = targets.shape[:-1], targets.shape[-1]
    pad = -count % chunk if count > chunk else 0
    size = min(chunk, count)
    hidden = jnp.pad(hidden, [(0, 0)] * len(lead) + [(0, pad), (0, 0)])
    targets = jnp.pad(targets, [(0, 0)] * len(lead) + [(0, pad)])
    parts = (count + pad) // max(size, 1)
    hidden = jnp.moveaxis(hidden.reshape(*lead, parts, size, hidden.shape[-1]), len(lead), 0)
    targets = jnp.moveaxis(targets.reshape(*lead, parts, size), len(lead), 0)

    @jax.checkpoint
    def one_chunk(part):
        return _chunk_logprobs(params, config, *part, temperature, with_entropy)

    result = jax.lax.map(one_chunk, (hidden, targets))  # f32[parts, ..., size], one or two
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, len(lead)).reshape(*lead, count + pad)[..., :count], result)


def _chunk_logprobs(params, config, hidden, targets, temperature, with_entropy):
    scaled = logits(params, config, hidden) / temperature
    if scaled.ndim == 3:
        scaled = constrain(scaled, "batch", "length", "vocab")
    log_total = jax.nn.logsumexp(scaled, axis=-1)
    # A masked sum instead of a gather: it splits over a sharded vocabulary, and its gradient is no scatter.
    is_target = jax.lax.broadcasted_iota(jnp.int32, scaled.shape, scaled.ndim - 1) == targets[..., None]
    logprobs = jnp.where(is_target, scaled, 0.0).sum(-1) - log_total
    logprobs = logprobs - jax.lax.stop_gradient(jnp.maximum(logprobs, 0.0))  # rounding may pass 0; the gradient stays
    if not with_entropy:
        return logprobs
    entropy = log_total - (jax.nn.softmax(scaled, axis=-1) * scaled).sum(-1)
    return logprobs, entropy


def _head(params, config: ModelConfig):
    """[D, V] in the compute dtype; a tied head is the embedding itself, never a copy that could go stale."""
    top = params.top if isinstance(params, UnstackedParams) else params
    if config.tied:
        return whole_weight(top[EMBEDDING].astype(config.compute_dtype), "embed_tokens").T
    return whole_weight(top[HEAD].astype(config.compute_dtype), "lm_head")
