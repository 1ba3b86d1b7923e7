"""One token per row from its logits: temperature, exact top-p, or greedy. Pure jax; knows neither model nor tokenizer.

Top-p asks which tokens lie in the nucleus, and the plain way to know is to sort the vocabulary at every step, which
costs more than a small model's whole forward pass. We draw from the full distribution first and then ask of the few
drawn candidates alone whether they lie in the nucleus: the first one that does is an exact draw from it (rejection
sampling). Only a row without an accepted candidate is sorted.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rw.errors import ConfigError
from rw.sampler.interface import SamplingConfig

CANDIDATES = 4  # with top_p = 0.95 about one row in 10^5 finds none accepted


def check_sampling(sampling: SamplingConfig) -> None:
    """Raises ConfigError where a setting has no meaning."""
    if not sampling.temperature > 0:
        raise ConfigError(
            f"sampling.temperature={sampling.temperature!r}: must be above 0; for argmax set sampling.greedy"
        )
    if not 0 < sampling.top_p <= 1:
        raise ConfigError(f"sampling.top_p={sampling.top_p!r}: must be above 0 and at most 1; 1 keeps every token")


@jax.named_scope("sample")
def sample(
    logits: jax.Array, keys: jax.Array, temperature: float, top_p: float, greedy: bool, vocab_size: int
) -> tuple[jax.Array, jax.Array]:
    """Draws one token id per row and returns its log-probability.

    The nucleus is the set of tokens whose probability mass strictly above them is below `top_p` (tokens of equal
    probability stand or fall together; the most probable token is always in it).

    Args:
        logits: f32[W, V].
        keys: u32[W, 2], one key a row; a row's draw depends on nothing but its own logits and key.
        temperature: T > 0, a Python number.
        top_p: in (0, 1], a Python number; 1 keeps the whole vocabulary.
        greedy: takes the most probable token; keys are not used.
        vocab_size: ids from here on are padding of the model's vocabulary and are never drawn.

    Returns:
        ids i32[W] and log-probs f32[W]: log-softmax(logits / T) over all V entries, whatever top-p left out, because
        this is what the learner computes of the same token.
    """
    scaled = logits.astype(jnp.float32) / temperature
    real = scaled[:, :vocab_size]
    peak = jnp.max(real, axis=-1, keepdims=True)
    weights = jnp.exp(real - peak)  # f32[W, vocab_size], at most 1, unnormalised
    log_norm = peak[:, 0] + jnp.log(jnp.sum(weights, axis=-1))
    if vocab_size < scaled.shape[-1]:
        log_norm = jnp.logaddexp(log_norm, jax.nn.logsumexp(scaled[:, vocab_size:], axis=-1))
    if greedy:
        ids = jnp.argmax(real, axis=-1).astype(jnp.int32)
    else:
        ids = _draw_nucleus(real, weights, keys, top_p)
    logprobs = jnp.take_along_axis(real, ids[:, None], axis=-1)[:, 0] - log_norm
    # Rounding of the two terms can leave a certain token a few ulp above probability 1.
    return ids, jnp.minimum(logprobs, 0.0)


def _draw_nucleus(scaled: jax.Array, weights: jax.Array, keys: jax.Array, top_p: float) -> jax.Array:
    """i32[W]: one id per row from the nucleus of `weights` f32[W, v], whose order is that of `scaled` f32[W, v]."""
    count = 1 if top_p >= 1.0 else CANDIDATES
    uniforms = jax.vmap(lambda key: jax.random.uniform(_typed(key), (count + 1,)))(keys)
    candidates, total = _inverse_cdf(weights, uniforms[:, :count])
    if top_p >= 1.0:
        return candidates[:, 0]
    accepted = jnp.stack([_mass_above(scaled, weights, candidates[:, i]) for i in range(count)], axis=-1)
    accepted = accepted < top_p * total[:, None]
    first = jnp.argmax(accepted, axis=-1)
    ids = jnp.take_along_axis(candidates, first[:, None], axis=-1)[:, 0]
    found = jnp.any(accepted, axis=-1)

    def one_row(row: tuple[jax.Array, ...]) -> jax.Array:
        return jax.lax.cond(row[3], lambda r: r[2], lambda r: _sorted_draw(r[0], r[1], top_p), row)

    rows = (weights, uniforms[:, count], ids, found)
    return jax.lax.cond(jnp.all(found), lambda r: r[2], lambda r: jax.lax.map(one_row, r), rows)


def _typed(key: jax.Array) -> jax.Array:
    return jax.random.wrap_key_data(key, impl="threefry2x32")


def _mass_above(scaled: jax.Array, weights: jax.Array, ids: jax.Array) -> jax.Array:
    """f32[W]: the weight of the tokens that are strictly more probable than `ids` i32[W].

    The comparison is made on logits: exp may be computed twice with different rounding, and a most probable token
    that seems to lie below itself would never be accepted.
    """
    threshold = jnp.take_along_axis(scaled, ids[:, None], axis=-1)
    return jnp.sum(jnp.where(scaled > threshold, weights, 0.0), axis=-1)


def _inverse_cdf(weights: jax.Array, uniforms: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draws by inverting the cumulative weights, first over blocks, then inside the block that was hit.

    A cumulative sum over a vocabulary of 150k would be slow and, in float32, inexact; over about √V blocks of about √V
    entries it is neither.

    Args:
        weights: f32[W, v], not negative, each row with a positive entry.
        uniforms: f32[W, N] in [0, 1).

    Returns:
        ids i32[W, N], never an entry of weight 0, and the total weight f32[W].
    """
    rows, size = weights.shape
    width = _block_width(size)
    blocks = -(-size // width)
    table = jnp.pad(weights, ((0, 0), (0, blocks * width - size))).reshape(rows, blocks, width)
    sums = jnp.sum(table, axis=-1)
    upto = jnp.cumsum(sums, axis=-1)  # f32[W, blocks]
    target = uniforms * upto[:, -1:]
    block = jnp.sum(upto[:, None, :] <= target[:, :, None], axis=-1)  # i32[W, N]
    block = jnp.take_along_axis(_nearest_positive(sums), jnp.minimum(block, blocks - 1), axis=-1)
    before = jnp.where(block > 0, jnp.take_along_axis(upto, jnp.maximum(block - 1, 0), axis=-1), 0.0)
    inside = jnp.take_along_axis(table, block[:, :, None], axis=1)  # f32[W, N, width]
    place = jnp.sum(jnp.cumsum(inside, axis=-1) <= (target - before)[:, :, None], axis=-1)
    place = jnp.minimum(place, width - 1)[:, :, None]
    place = jnp.take_along_axis(_nearest_positive(inside), place, axis=-1)[:, :, 0]
    return (block * width + place).astype(jnp.int32), upto[:, -1]


def _nearest_positive(values: jax.Array) -> jax.Array:
    """i32[..., n]: for each place of `values` f32[..., n] the last positive entry up to it, else the first one after.

    A parallel cumulative sum may rise by one rounding where it adds a zero, and a draw may fall into that step.
    """
    place = jnp.where(values > 0.0, jnp.arange(values.shape[-1]), -1)
    return jnp.maximum(jax.lax.cummax(place, axis=place.ndim - 1), jnp.argmax(values > 0.0, axis=-1, keepdims=True))


def _block_width(size: int) -> int:
    width = 32
    while width * width < size:
        width *= 2
    return width


def _sorted_draw(weights: jax.Array, uniform: jax.Array, top_p: float) -> jax.Array:
    """i32[]: the exact draw for one row, weights f32[v] and uniform f32[] in [0, 1), by sorting it."""
    ordered = jnp.sort(weights)[::-1]
    above = jnp.cumsum(ordered) - ordered
    # The first token is kept even where top_p is so small that rounding would lose it.
    kept = (above < top_p * jnp.sum(ordered)) | (jnp.arange(weights.shape[0]) == 0)
    threshold = jnp.min(jnp.where(kept, ordered, jnp.inf))
    nucleus = jnp.where(weights >= threshold, weights, 0.0)
    return _inverse_cdf(nucleus[None, :], uniform[None, None])[0][0, 0]
