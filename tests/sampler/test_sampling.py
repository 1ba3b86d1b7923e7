"""Draws against a sorted reference nucleus, greedy, padding, and the log-probs that are recorded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rw.sampler import sampling

# Compiled, as the engine runs it.
sample = jax.jit(sampling.sample, static_argnames=("temperature", "top_p", "greedy", "vocab_size"))


def many_draws(logits, count, temperature, top_p, vocab_size=None, seed=0):
    """ids i32[count] of `count` independent draws from one row of logits f32[V]."""
    rows = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (count, len(logits)))
    keys = jax.random.split(jax.random.PRNGKey(seed), count)
    ids, _ = sample(rows, keys, temperature, top_p, False, vocab_size or len(logits))
    return np.asarray(ids)


def reference_nucleus(logits, temperature, top_p):
    """f64[V]: renormalised probabilities of the tokens with less than top_p strictly above them."""
    probs = np.exp(np.asarray(logits, np.float64) / temperature)
    probs /= probs.sum()
    above = np.array([probs[probs > p].sum() for p in probs])
    kept = np.where(above < top_p, probs, 0.0)
    return kept / kept.sum()


def chi_square(ids, probs):
    """Pearson's statistic in units of its standard deviation away from its mean."""
    kept = probs > 0
    counts = np.bincount(ids, minlength=len(probs))
    assert counts[~kept].sum() == 0
    expected = probs[kept] * len(ids)
    statistic = ((counts[kept] - expected) ** 2 / expected).sum()
    freedom = kept.sum() - 1
    return (statistic - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize("top_p", [0.3, 0.8, 0.95, 1.0])
def test_draws_follow_the_sorted_nucleus(top_p):
    logits = np.random.default_rng(1).normal(size=90) * 1.5
    ids = many_draws(logits, 40_000, 0.8, top_p)
    assert abs(chi_square(ids, reference_nucleus(logits, 0.8, top_p))) < 4.5


def test_sort_fallback_draws_from_the_same_nucleus(monkeypatch):
    # One candidate and a small top_p: about half of the rows find none accepted and are sorted.
    monkeypatch.setattr(sampling, "CANDIDATES", 1)
    logits = np.random.default_rng(2).normal(size=60)
    ids = many_draws(logits, 4_000, 1.0, 0.5)
    assert abs(chi_square(ids, reference_nucleus(logits, 1.0, 0.5))) < 4.5


def test_tied_tokens_stand_or_fall_together():
    logits = np.log([0.4, 0.2, 0.2, 0.2])
    assert set(many_draws(logits, 2_000, 1.0, 0.5)) == {0, 1, 2, 3}
    assert set(many_draws(logits, 2_000, 1.0, 0.35)) == {0}


def test_tiny_top_p_is_greedy():
    logits = np.random.default_rng(3).normal(size=500)
    assert set(many_draws(logits, 500, 1.0, 1e-6)) == {int(np.argmax(logits))}


def test_greedy_takes_the_first_best_real_token():
    logits = jnp.array([[0.0, 3.0, 3.0, 9.0], [2.0, 1.0, 0.0, 9.0]])
    ids, logprobs = sample(logits, jnp.zeros((2, 2), jnp.uint32), 0.8, 0.95, True, 3)
    np.testing.assert_array_equal(ids, [1, 0])
    want = jax.nn.log_softmax(logits / 0.8)[jnp.arange(2), jnp.array([1, 0])]
    np.testing.assert_allclose(logprobs, want, rtol=1e-6)


@pytest.mark.parametrize("top_p", [0.95, 1.0])
def test_logprob_is_the_log_softmax_at_temperature_over_the_whole_vocabulary(top_p):
    logits = jax.random.normal(jax.random.PRNGKey(4), (64, 1000)) * 3
    keys = jax.random.split(jax.random.PRNGKey(5), 64)
    ids, logprobs = sample(logits, keys, 0.8, top_p, False, 990)
    want = jax.nn.log_softmax(logits / 0.8)[jnp.arange(64), ids]
    np.testing.assert_allclose(logprobs, want, rtol=2e-6, atol=2e-6)
    assert np.all(np.asarray(logprobs) <= 0)


def test_padded_ids_are_never_drawn():
    ids = many_draws(np.zeros(40), 10_000, 1.0, 1.0, vocab_size=33)
    assert set(ids) == set(range(33))
    # Also where padding would be by far the most probable.
    logits = np.concatenate([np.zeros(33), np.full(7, 200.0)])
    assert many_draws(logits, 2_000, 1.0, 0.95, vocab_size=33).max() < 33


def test_a_row_depends_on_its_own_logits_and_key_only():
    logits = jax.random.normal(jax.random.PRNGKey(6), (16, 300)) * 2
    keys = jax.random.split(jax.random.PRNGKey(7), 16)
    order = np.random.default_rng(0).permutation(16)
    ids, logprobs = sample(logits, keys, 0.8, 0.95, False, 300)
    moved_ids, moved_logprobs = sample(logits[order], keys[order], 0.8, 0.95, False, 300)
    np.testing.assert_array_equal(moved_ids, ids[order])
    np.testing.assert_array_equal(moved_logprobs, logprobs[order])


def test_certain_token_has_logprob_zero():
    logits = jnp.full((1, 64), -1e4).at[0, 17].set(0.0)
    ids, logprobs = sample(logits, jax.random.split(jax.random.PRNGKey(0), 1), 0.8, 0.95, False, 64)
    assert ids[0] == 17 and logprobs[0] == 0.0


@pytest.mark.full
def test_full_vocabulary_width_draws_from_the_nucleus():
    logits = np.random.default_rng(8).normal(size=151_936) * 4
    ids = many_draws(logits, 256, 0.8, 0.95, vocab_size=151_669)
    scaled = np.exp((logits[:151_669] - logits[:151_669].max()) / 0.8)
    for token in ids:
        assert scaled[scaled > scaled[token]].sum() < 0.95 * scaled.sum() * (1 + 1e-5)
