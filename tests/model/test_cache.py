"""The cache: chunked prefill and decoding equal the full forward, padding is dropped."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rw.model import cache as kv
from rw.model import qwen3
from rw.model.config import ModelConfig
from rw.model.logprobs import logits

CONFIG = ModelConfig(
    vocab_size=61, d_model=20, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, d_ff=28, rope_theta=1e6, remat="none"
)
PARAMS = qwen3.init_params(jax.random.key(0), CONFIG)
UNSTACKED = qwen3.unstack(PARAMS, CONFIG)
LENGTH = 14
TOKENS = np.random.default_rng(0).integers(0, 61, (3, LENGTH)).astype(np.int32)
POSITIONS = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), TOKENS.shape)


@jax.jit
def full_logits(tokens, positions):
    return logits(PARAMS, CONFIG, qwen3.hidden_states(PARAMS, CONFIG, tokens, positions)[0])


def cached_logits(tokens, positions, cache, config=CONFIG):
    hidden, cache = qwen3.hidden_states(UNSTACKED, config, tokens, positions, cache)
    return logits(UNSTACKED, config, hidden), cache


step = jax.jit(cached_logits, static_argnames="config")
EXPECTED = np.asarray(full_logits(TOKENS, POSITIONS))


def run_in_parts(splits, cache, config=CONFIG):
    out = []
    for start, stop in zip((0, *splits), (*splits, LENGTH), strict=True):
        part, cache = step(TOKENS[:, start:stop], POSITIONS[:, start:stop], cache, config=config)
        out.append(part)
    return np.concatenate(out, axis=1)


@pytest.mark.parametrize(
    "splits, attention",
    [((), "xla"), ((5, 10), "xla"), ((5, 10, 11, 12, 13), "xla"), ((5, 10), "chunked_xla")],
    ids=str,
)
def test_prefill_in_chunks_and_decode_equal_the_full_forward(splits, attention):
    config = dataclasses.replace(CONFIG, attention=attention, attention_chunk=4)
    found = run_in_parts(splits, kv.init_cache(CONFIG, 3, 16), config)
    np.testing.assert_allclose(found, EXPECTED, atol=1e-5)


def test_what_lies_beyond_the_written_positions_is_never_read():
    stale = [(k + 100.0, v - 100.0) for k, v in kv.init_cache(CONFIG, 3, 16)]
    np.testing.assert_allclose(run_in_parts((5, 10), stale), EXPECTED, atol=1e-5)


def test_stacked_parameters_serve_a_cache_too():
    stacked = jax.jit(lambda cache: qwen3.hidden_states(PARAMS, CONFIG, TOKENS[:, :2], POSITIONS[:, :2], cache)[0])
    hidden = stacked(kv.init_cache(CONFIG, 3, 4))
    np.testing.assert_allclose(logits(PARAMS, CONFIG, hidden), EXPECTED[:, :2], atol=1e-5)


PAGE = 4
TABLES = np.array([[2, 7, 9, 4], [11, 1, 3, 5], [6, 8, 10, 12]], np.int32)  # of three rows; nobody has page 0


def in_pages(cache, tables=TABLES):
    return [kv.PagedLayer(*layer, tables) for layer in cache]


@pytest.mark.parametrize("splits", [(), (5, 10), (4, 8, 12), (5, 10, 11, 12, 13)], ids=str)
def test_a_cache_in_pages_equals_the_full_forward(splits):
    stale = [(k + 100.0, v - 100.0) for k, v in kv.init_cache(CONFIG, 13, PAGE)]
    np.testing.assert_allclose(run_in_parts(splits, in_pages(stale)), EXPECTED, atol=1e-5)


def test_tokens_land_in_the_pages_of_their_row_and_padding_in_none():
    layer = in_pages(kv.init_cache(CONFIG, 13, PAGE))[0]
    numbers = jnp.arange(6.0).reshape(3, 2, 1, 1) + 1
    key = jnp.broadcast_to(numbers, (3, 2, CONFIG.n_kv_heads, CONFIG.head_dim))
    positions = np.array([[0, 5], [-1, 15], [16, -9]], np.int32)  # 16 is beyond the four pages of a row
    found = kv.write(layer, key, -key, positions)
    want = np.zeros((13, PAGE))
    want[2, 0], want[7, 1], want[5, 3] = 1, 2, 4
    np.testing.assert_array_equal(found.keys[:, 1, 2], want)
    np.testing.assert_array_equal(found.values[:, 0, :, 3], -want)


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_take_different_numbers_of_tokens_in_one_step(side):
    """Each row feeds its own number of tokens a step, in a step five wide; padding is -1 or beyond the capacity."""
    takes = np.array([[5, 2, 0], [1, 5, 4], [5, 3, 5], [3, 4, 5]])
    assert np.all(takes.sum(0) == LENGTH)
    cache, done, found = kv.init_cache(CONFIG, 3, 16), np.zeros(3, int), np.zeros_like(EXPECTED)
    for take in takes:
        tokens, positions = np.full((3, 5), 9, np.int32), np.full((3, 5), -1, np.int32)
        positions[:, ::2] = 16
        places = []
        for row, n in enumerate(take):
            at = slice(5 - n, 5) if side == "left" else slice(0, n)
            tokens[row, at] = TOKENS[row, done[row] : done[row] + n]
            positions[row, at] = np.arange(done[row], done[row] + n)
            places.append(at)
        part, cache = step(tokens, positions, cache)
        for row, n in enumerate(take):
            found[row, done[row] : done[row] + n] = part[row, places[row]]
        done += take
    np.testing.assert_allclose(found, EXPECTED, atol=1e-5)


def test_padding_writes_nothing():
    before = [(k + 1.0, v + 2.0) for k, v in kv.init_cache(CONFIG, 3, 16)]
    _, after = step(TOKENS[:, :4], np.array([[-1, 16, 99, -7]] * 3, np.int32), before)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True))


def test_a_donated_cache_is_updated_in_place():
    donating = jax.jit(cached_logits, donate_argnames="cache")
    cache = kv.init_cache(CONFIG, 3, 16)
    size = sum(x.nbytes for x in jax.tree.leaves(cache))
    compiled = donating.lower(TOKENS[:, :1], POSITIONS[:, :1], cache).compile()
    assert compiled.memory_analysis().alias_size_in_bytes == size
    compiled(TOKENS[:, :1], POSITIONS[:, :1], cache)
    assert all(x.is_deleted() for x in jax.tree.leaves(cache))


def test_a_bfloat16_cache_keeps_its_dtype():
    cache = kv.init_cache(CONFIG, 3, 16, dtype="bfloat16")
    found, cache = step(TOKENS, POSITIONS, cache)
    assert {x.dtype for x in jax.tree.leaves(cache)} == {jnp.dtype("bfloat16")}
    assert 1e-5 < np.abs(found - EXPECTED).max() < 0.1


def test_packed_rows_are_refused_with_a_cache():
    with pytest.raises(ValueError, match="segment_mask"):
        qwen3.hidden_states(UNSTACKED, CONFIG, TOKENS, POSITIONS, kv.init_cache(CONFIG, 3, 16), TOKENS)
