"""The device programs of the sampler engine. Each is compiled once per shape bucket; none knows episodes or turns.

The pool holds one cache row per slot and one more, the spare row, for what padding writes. A dispatch gathers the rows
it works on into a work cache no longer than they need, computes there, and stores the new columns back: the cost of a
step follows the rows and lengths at work, not those allocated, and a dispatch that fails leaves the pool as it was.
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
from rw.sampler.sampling import sample


class DecodeRows(NamedTuple):
    """The rows of a decode dispatch; padding has position -1."""

    tokens: jax.Array  # i32[W], the last known token, not yet in the cache
    positions: jax.Array  # i32[W], its position
    words: jax.Array  # u32[W, 4], step, query, rollout, turn
    offsets: jax.Array  # i32[W], tokens that the turn has sampled already


@partial(jax.jit, static_argnames="length")
def gather(pool: kv.Cache, rows: jax.Array, length: int) -> kv.Cache:
    """The first `length` positions of the rows i32[W], as a work cache."""
    # Slicing first makes XLA copy whole runs; the other order costs twice as much on CPU.
    return kv.take_rows(kv.resize(pool, length), rows)


@partial(jax.jit, static_argnames="count", donate_argnames="pool")
def store(pool: kv.Cache, work: kv.Cache, rows: jax.Array, starts: jax.Array, count: int) -> kv.Cache:
    """Copies `count` positions from `starts` i32[W] of each work row back to the pool's row.

    A range that would leave the work cache is moved to its end; what it then covers besides is unchanged.
    """
    starts = jnp.clip(starts, 0, kv.capacity(work) - count)

    def put(array, source, axis):
        def body(i, array):
            place = [0] * array.ndim
            place[axis] = starts[i]
            sizes = [1, *source.shape[1:]]
            sizes[axis] = count
            block = lax.dynamic_slice(source, [i, *place[1:]], sizes)
            return lax.dynamic_update_slice(array, block, [rows[i], *place[1:]])

        return lax.fori_loop(0, rows.shape[0], body, array)

    return [
        (put(keys, new_keys, kv.KEY_AXIS), put(values, new_values, kv.VALUE_AXIS))
        for (keys, values), (new_keys, new_values) in zip(pool, work, strict=True)
    ]


@partial(jax.jit, static_argnames="length", donate_argnames="pool")
def clone(pool: kv.Cache, sources: jax.Array, targets: jax.Array, length: int) -> kv.Cache:
    """Copies the first `length` positions of rows `sources` i32[N] to rows `targets` i32[N], none of them a source."""

    def copy(array, axis):
        def body(i, array):
            sizes = [1, *array.shape[1:]]
            sizes[axis] = length
            block = lax.dynamic_slice(array, [sources[i], 0, 0, 0], sizes)
            return lax.dynamic_update_slice(array, block, [targets[i], 0, 0, 0])

        return lax.fori_loop(0, sources.shape[0], body, array)

    return [(copy(keys, kv.KEY_AXIS), copy(values, kv.VALUE_AXIS)) for keys, values in pool]


@partial(jax.jit, static_argnames="capacity")
def grow(pool: kv.Cache, capacity: int) -> kv.Cache:
    """The pool with room for `capacity` positions a row."""
    return kv.resize(pool, capacity)


@partial(jax.jit, static_argnames="config", donate_argnames="work")
def prefill(
    params: UnstackedParams, work: kv.Cache, tokens: jax.Array, positions: jax.Array, config: ModelConfig
) -> kv.Cache:
    """Puts tokens i32[R, C] at positions i32[R, C] (-1: padding) into the work cache; no logits are computed."""
    return hidden_states(params, config, tokens, positions, work)[1]


@partial(jax.jit, static_argnames=("config", "sampling", "vocab_size", "steps"), donate_argnames="work")
def decode(
    params: UnstackedParams,
    work: kv.Cache,
    base_key: jax.Array,
    rows: DecodeRows,
    config: ModelConfig,
    sampling: SamplingConfig,
    vocab_size: int,
    steps: int,
) -> tuple[kv.Cache, jax.Array, jax.Array]:
    """Samples `steps` tokens for every row.

    Where a turn ends is not known here: the host drops what a row samples beyond it. Token i of a turn is drawn with
    the turn's key folded by i.

    Returns:
        the work cache, ids i32[W, steps], log-probs f32[W, steps].
    """
    turn_keys = jax.vmap(turn_key_from_words, (None, 0))(base_key, rows.words)

    def step(carry, i):
        work, tokens = carry
        positions = jnp.where(rows.positions < 0, -1, rows.positions + i)
        hidden, work = hidden_states(params, config, tokens[:, None], positions[:, None], work)
        row_logits = logits(params, config, hidden[:, 0])
        keys = jax.vmap(token_key)(turn_keys, rows.offsets + i)
        ids, logprobs = sample(row_logits, keys, sampling.temperature, sampling.top_p, sampling.greedy, vocab_size)
        return (work, ids), (ids, logprobs)

    (work, _), (ids, logprobs) = lax.scan(step, (work, rows.tokens), jnp.arange(steps, dtype=jnp.int32))
    return work, ids.T, logprobs.T


PROGRAMS = (gather, store, clone, grow, prefill, decode)


def compiled_programs() -> int:
    """How many programs this process has compiled so far, over all shape buckets."""
    return sum(program._cache_size() for program in PROGRAMS)
