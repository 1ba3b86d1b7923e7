"""The device programs of the sampler engine. Each is compiled once per shape bucket; none knows episodes or turns.

The pool holds pages: of each layer the keys of a few consecutive tokens, [pages, N, hd, page], and their values,
[pages, N, page, hd]. A dispatch gathers the pages of the rows it works on into a work cache no longer than they need,
computes there, and puts the pages that it wrote to back: the cost of a step follows the rows and lengths at work, not
what is allocated, and a dispatch that fails leaves the pool as it was. What depends on the size of the pool is compiled
for one layer and called for each.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rw.model import cache as kv
from rw.model.config import ModelConfig
from rw.model.logprobs import logits
from rw.model.qwen3 import UnstackedParams, hidden_states
from rw.sampler.interface import SamplingConfig
from rw.sampler.keys import token_key, turn_key_from_words
from rw.sampler.pages import SCRATCH
from rw.sampler.sampling import sample

Layer = tuple[jax.Array, jax.Array]  # keys and values


class DecodeRows(NamedTuple):
    """The rows of a decode dispatch; padding has position -1."""

    tokens: jax.Array  # i32[W], the last known token, not yet in the cache
    positions: jax.Array  # i32[W], its position
    words: jax.Array  # u32[W, 4], step, query, rollout, turn
    offsets: jax.Array  # i32[W], tokens that the turn has sampled already
    limits: jax.Array  # i32[W], tokens that it may still sample
    firsts: jax.Array  # i32[W], the page of the row that its first new token lies in


@jax.jit
def gather(layer: Layer, tables: jax.Array) -> Layer:
    """The pages i32[W, P] of each row, one after another, as one layer of a work cache."""
    keys, values = (jnp.take(array, tables, axis=0, mode="clip") for array in layer)  # [W, P, N, …]
    width, pages, heads, head_dim, page = keys.shape
    keys = keys.transpose(0, 2, 3, 1, 4).reshape(width, heads, head_dim, pages * page)
    return keys, values.transpose(0, 2, 1, 3, 4).reshape(width, heads, pages * page, head_dim)


@partial(jax.jit, donate_argnames="layer")
def put(layer: Layer, new: Layer, pages: jax.Array) -> Layer:
    """The pages i32[W, M] replaced by `new`: keys [W, N, hd, M · page], values [W, N, M · page, hd]. The scratch page
    is only ever replaced by zeros."""
    count = pages.shape[1]

    def put_array(array, source, axis):
        size = list(array.shape)
        size[0] = 1

        def body(i, array):
            row, place = i // count, i % count
            start = [row, 0, 0, 0]
            start[axis] = place * size[axis]
            block = lax.dynamic_slice(source, start, size)
            block = jnp.where(pages[row, place] == SCRATCH, 0, block)
            return lax.dynamic_update_slice(array, block, [pages[row, place], 0, 0, 0])

        return lax.fori_loop(0, pages.size, body, array)

    return put_array(layer[0], new[0], kv.KEY_AXIS), put_array(layer[1], new[1], kv.VALUE_AXIS)


@partial(jax.jit, donate_argnames="layer")
def copy(layer: Layer, sources: jax.Array, targets: jax.Array) -> Layer:
    """Copies pages `sources` i32[N] to pages `targets` i32[N], none of them a source."""

    def copy_array(array):
        def body(i, array):
            block = lax.dynamic_slice_in_dim(array, sources[i], 1)
            return lax.dynamic_update_slice_in_dim(array, block, targets[i], 0)

        return lax.fori_loop(0, sources.shape[0], body, array)

    return copy_array(layer[0]), copy_array(layer[1])


@partial(jax.jit, static_argnames="pages")
def grow(layer: Layer, pages: int) -> Layer:
    """A layer of the pool with room for `pages`."""
    return tuple(jnp.pad(array, [(0, pages - array.shape[0]), (0, 0), (0, 0), (0, 0)]) for array in layer)


def _cut(work: kv.Cache, firsts: jax.Array, page: int, count: int) -> kv.Cache:
    """Of each row the `count` pages from page `firsts` i32[W] on."""

    def rows(array, axis):
        return jax.vmap(lambda row, first: lax.dynamic_slice_in_dim(row, first * page, count * page, axis - 1))(
            array, firsts
        )

    return [(rows(keys, kv.KEY_AXIS), rows(values, kv.VALUE_AXIS)) for keys, values in work]


@partial(jax.jit, static_argnames=("config", "page", "count"), donate_argnames="work")
def prefill(
    params: UnstackedParams,
    work: kv.Cache,
    tokens: jax.Array,
    positions: jax.Array,
    firsts: jax.Array,
    config: ModelConfig,
    page: int,
    count: int,
) -> tuple[kv.Cache, kv.Cache]:
    """Puts tokens i32[R, C] at positions i32[R, C] (-1: padding) into the work cache; no logits are computed.

    Returns:
        the work cache, and of each row the `count` pages of `page` tokens from page `firsts` i32[R] on, which hold
        what is new.
    """
    work = hidden_states(params, config, tokens, positions, work)[1]
    return work, _cut(work, firsts, page, count)


@partial(
    jax.jit,
    static_argnames=("config", "sampling", "vocab_size", "end_tokens", "steps", "page", "count"),
    donate_argnames="work",
)
def decode(
    params: UnstackedParams,
    work: kv.Cache,
    base_key: jax.Array,
    rows: DecodeRows,
    config: ModelConfig,
    sampling: SamplingConfig,
    vocab_size: int,
    end_tokens: tuple[int, ...],
    steps: int,
    page: int,
    count: int,
) -> tuple[kv.Cache, kv.Cache, jax.Array, jax.Array, jax.Array]:
    """Samples up to `steps` tokens for every row.

    A row stops by itself behind an end token and at its limit, and the dispatch where every row has. Stop tags are not
    known here: the host drops what a row samples beyond one. Token i of a turn is drawn with its key folded by i.

    Returns:
        the work cache and the pages that hold what is new, as `prefill`; ids i32[W, steps] and log-probs
        f32[W, steps], 0 behind a row's end; and the steps that were computed.
    """
    turn_keys = jax.vmap(turn_key_from_words, (None, 0))(base_key, rows.words)

    def some_row_goes_on(carry):
        i, _, _, goes_on, _, _ = carry
        return (i < steps) & goes_on.any()

    def step(carry):
        i, work, tokens, goes_on, all_ids, all_logprobs = carry
        positions = jnp.where(goes_on, rows.positions + i, -1)
        hidden, work = hidden_states(params, config, tokens[:, None], positions[:, None], work)
        row_logits = logits(params, config, hidden[:, 0])
        keys = jax.vmap(token_key)(turn_keys, rows.offsets + i)
        ids, logprobs = sample(row_logits, keys, sampling.temperature, sampling.top_p, sampling.greedy, vocab_size)
        all_ids = all_ids.at[:, i].set(jnp.where(goes_on, ids, 0))
        all_logprobs = all_logprobs.at[:, i].set(jnp.where(goes_on, logprobs, 0.0))
        is_end = (ids[:, None] == jnp.array(end_tokens, jnp.int32)).any(-1)
        return i + 1, work, ids, goes_on & ~is_end & (i + 1 < rows.limits), all_ids, all_logprobs

    width = rows.tokens.shape[0]
    nothing = jnp.zeros((width, steps), jnp.int32), jnp.zeros((width, steps), jnp.float32)
    start = jnp.int32(0), work, rows.tokens, rows.positions >= 0, *nothing
    done, work, _, _, ids, logprobs = lax.while_loop(some_row_goes_on, step, start)
    return work, _cut(work, rows.firsts, page, count), ids, logprobs, done


PROGRAMS = (gather, put, copy, grow, prefill, decode)


def compiled_programs() -> int:
    """How many programs this process has compiled so far, over all shape buckets."""
    return sum(program._cache_size() for program in PROGRAMS)
