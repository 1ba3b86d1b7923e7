"""Sampling keys are a function of what is sampled."""

import itertools

import jax
import numpy as np

from rw.sampler import keys
from rw.sampler.interface import EpisodeId, TurnRequest


def test_query_word_is_the_head_of_sha256():
    # sha256("abc") = ba7816bf 8f01cfea …
    assert keys.query_word("abc") == 0xBA7816BF


def test_key_is_folded_in_the_documented_order():
    base = keys.base_key(7)
    np.testing.assert_array_equal(base, jax.random.PRNGKey(7))
    key = jax.random.PRNGKey(7)
    for word in (3, 0xBA7816BF, 5, 2):
        key = jax.random.fold_in(key, np.uint32(word))
    turn = keys.turn_key(base, 3, "abc", 5, 2)
    np.testing.assert_array_equal(turn, key)
    np.testing.assert_array_equal(keys.token_key(turn, 9), jax.random.fold_in(key, 9))


def test_words_of_a_request_give_the_same_key():
    request = TurnRequest(EpisodeId(3, "abc", 5), 2, np.zeros(1, np.int32), 1, 8, ())
    base = keys.base_key(7)
    got = jax.jit(keys.turn_key_from_words)(base, keys.turn_words(request))
    np.testing.assert_array_equal(got, keys.turn_key(base, 3, "abc", 5, 2))


def test_keys_differ_in_every_word():
    parts = itertools.product((0, 1), ("q1", "q2"), (0, 1), (0, 1))
    found = {tuple(np.asarray(keys.turn_key(keys.base_key(0), *p)).tolist()) for p in parts}
    assert len(found) == 16
