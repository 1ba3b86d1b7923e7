"""The device programs of the sampler engine. Each is compiled once per shape bucket; none knows episodes or turns.

The pool holds pages: of each layer the keys of a few consecutive tokens, [pages, N, hd, page], and their values,
[pages, N, page, hd]. A dispatch gathers the pages of the rows it works on into a work cache no larger than they need,
in one of two layouts (`work`), computes there, and puts back the pages that it wrote to: the cost of a step follows the
rows and lengths at work, not what is allocated, and a dispatch that fails leaves the pool as it was. What depends on
the size of the pool is compiled for one layer and called for each.
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


class InRows(NamedTuple):
    """Where the new tokens of contiguous rows lie."""

    firsts: jax.Array  # i32[W], the page of the row that its first new token lies in


class InPages(NamedTuple):
    """Where rows and their new tokens lie in a work cache of pages."""

    tables: jax.Array  # i32[W, C], the place of each page of a row
    places: jax.Array  # i32[W, M], those of the pages that hold new tokens


@jax.jit
def gather(layer: Layer, pages: jax.Array) -> Layer:
    """One layer of a work cache: the pages i32[P] as they are, or those i32[W, P] of each row one after another."""
    keys, values = (jnp.take(array, pages, axis=0, mode="clip") for array in layer)  # [P, N, …] or [W, P, N, …]
    if pages.ndim == 1:
        return keys, values
    width, pages, heads, head_dim, page = keys.shape
    keys = keys.transpose(0, 2, 3, 1, 4).reshape(width, heads, head_dim, pages * page)
    return keys, values.transpose(0, 2, 1, 3, 4).reshape(width, heads, pages * page, head_dim)


@partial(jax.jit, donate_argnames="layer")
def put(layer: Layer, new: Layer, pages: jax.Array) -> Layer:
    """The pages i32[n] replaced by `new`: keys [n, N, hd, page], values [n, N, page, hd]. The scratch page is only ever
    replaced by zeros."""

    def put_array(array, source):
        def body(i, array):
            block = jnp.where(pages[i] == SCRATCH, 0, lax.dynamic_slice_in_dim(source, i, 1))
            return lax.dynamic_update_slice_in_dim(array, block, pages[i], 0)

        return lax.fori_loop(0, pages.size, body, array)

    return put_array(layer[0], new[0]), put_array(layer[1], new[1])


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


def _cache(work: kv.Cache, places: InRows | InPages) -> kv.Cache:
    """The work cache as the model takes it."""
    return work if isinstance(places, InRows) else [kv.PagedLayer(*layer[:2], places.tables) for layer in work]


def _cut(work: kv.Cache, places: InRows | InPages, page: int, count: int) -> kv.Cache:
    """The pages that hold new tokens, `count` of each row, one after another."""
    if isinstance(places, InPages):
        return [tuple(jnp.take(array, places.places.reshape(-1), axis=0) for array in layer[:2]) for layer in work]

    def pages(array, axis):
        def of_row(row, first):
            new = lax.dynamic_slice_in_dim(row, first * page, count * page, axis - 1)
            new = new.reshape(*new.shape[: axis - 1], count, page, *new.shape[axis:])
            return jnp.moveaxis(new, axis - 1, 0)

        new = jax.vmap(of_row)(array, places.firsts)
        return new.reshape(-1, *new.shape[2:])

    return [(pages(keys, kv.KEY_AXIS), pages(values, kv.VALUE_AXIS)) for keys, values in work]


@partial(jax.jit, static_argnames=("config", "page", "count"), donate_argnames="work")
def prefill(
    params: UnstackedParams,
    work: kv.Cache,
    tokens: jax.Array,
    positions: jax.Array,
    places: InRows | InPages,
    config: ModelConfig,
    page: int,
    count: int,
) -> tuple[kv.Cache, kv.Cache]:
    """Puts tokens i32[R, C] at positions i32[R, C] (-1: padding) into the work cache; no logits are computed.

    Returns:
        the work cache, and the pages that hold what is new, `count` of `page` tokens for each row.
    """
    work = hidden_states(params, config, tokens, positions, _cache(work, places))[1]
    return [layer[:2] for layer in work], _cut(work, places, page, count)


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
    places: InRows | InPages,
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
    start = jnp.int32(0), _cache(work, places), rows.tokens, rows.positions >= 0, *nothing
    done, work, _, _, ids, logprobs = lax.while_loop(some_row_goes_on, step, start)
    return [layer[:2] for layer in work], _cut(work, places, page, count), ids, logprobs, done


PROGRAMS = (gather, put, copy, grow, prefill, decode)


def compiled_programs() -> int:
    """How many programs this process has compiled so far, over all shape buckets."""
    return sum(program._cache_size() for program in PROGRAMS)
