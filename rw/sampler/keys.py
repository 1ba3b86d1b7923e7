"""Sampling keys: a pure function of what is sampled, never of when, where or beside what it is sampled.

Keys are folded from (step, query, rollout, turn, token). A key split off in the order of arrival would give other
samples as soon as a Worker answers late, and a resumed run could not meet the run it continues.
"""

from __future__ import annotations

import hashlib

import jax
import jax.numpy as jnp
import numpy as np

from rw.sampler.interface import TurnRequest

KEY_WORDS = 4  # step, query, rollout, turn


def base_key(seed: int) -> np.ndarray:
    """u32[2]: the key that all keys of a run are folded from, built on the host."""
    return np.array([(seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)


def query_word(query_id: str) -> int:
    """The first four bytes of sha256 of the UTF-8 query id, as an unsigned big-endian number."""
    return int.from_bytes(hashlib.sha256(query_id.encode()).digest()[:4], "big")


def turn_words(request: TurnRequest) -> np.ndarray:
    """u32[4]: what identifies a turn, for `turn_key_from_words`."""
    episode = request.episode
    words = (episode.step, query_word(episode.query_id), episode.rollout, request.turn)
    return np.array([word & 0xFFFFFFFF for word in words], np.uint32)


def turn_key_from_words(base: jax.Array, words: jax.Array) -> jax.Array:
    """u32[2]: the key of the turn named by `words` u32[4]; traceable: a batch is folded inside the decode step."""
    key = jax.random.wrap_key_data(base, impl="threefry2x32")
    for i in range(KEY_WORDS):
        key = jax.random.fold_in(key, words[i])
    return jax.random.key_data(key)


def turn_key(base: jax.Array, step: int, query_id: str, rollout: int, turn: int) -> jax.Array:
    """u32[2]: the key of one router turn, folded from `base` u32[2] by step, query, rollout and turn, in this order."""
    words = [word & 0xFFFFFFFF for word in (step, query_word(query_id), rollout, turn)]
    return turn_key_from_words(jnp.asarray(base), jnp.asarray(np.array(words, np.uint32)))


def token_key(turn: jax.Array, index: jax.Array | int) -> jax.Array:
    """u32[2]: the key of the turn's token `index` (0 is the first one sampled)."""
    return jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(turn, impl="threefry2x32"), index))
