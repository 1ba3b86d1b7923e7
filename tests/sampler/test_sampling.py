"""Draws against a sorted reference nucleus, greedy, padding, and the log-probs that are recorded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rw.errors import ConfigError
from rw.sampler import sampling
from rw.sampler.interface import SamplingConfig
from rw.sampler.sampling import check_sampling

# Compiled, as the engine runs it.
sample = jax.jit(sampling.sample, static_argnames=("temperature", "top_p", "greedy", "vocab_size"))


DRAWS, WIDTH = 8192, 128  # one shape for most tests: compiling takes longer than drawing


def many_draws(logits, temperature, top_p, vocab_size=WIDTH, seed=0):
    """ids i32[DRAWS] of independent draws from one row of logits f32[n]; ids from n on are next to impossible."""
    row = np.full(WIDTH, -1e4, np.float32)
    row[: len(logits)] = logits
    keys = jax.random.split(jax.random.PRNGKey(seed), DRAWS)
    ids, _ = sample(jnp.broadcast_to(row, (DRAWS, WIDTH)), keys, temperature, top_p, False, vocab_size)
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


@pytest.mark.parametrize("top_p", [0.5, 0.95, 1.0])
def test_draws_follow_the_sorted_nucleus(top_p):
    logits = np.random.default_rng(1).normal(size=90) * 1.5
    ids = np.concatenate([many_draws(logits, 0.8, top_p, seed=seed) for seed in range(5)])
    assert abs(chi_square(ids, reference_nucleus(logits, 0.8, top_p))) < 4.5


def test_sort_fallback_draws_from_the_same_nucleus(monkeypatch):
    # With one candidate and a small top_p more than half of the rows find none accepted and are sorted.
    monkeypatch.setattr(sampling, "CANDIDATES", 1)
    logits = np.random.default_rng(2).normal(size=60)
    ids = many_draws(logits, 0.8, 0.4)
    assert abs(chi_square(ids, reference_nucleus(logits, 0.8, 0.4))) < 4.5


def test_tied_tokens_stand_or_fall_together():
    assert set(many_draws(0.8 * np.log([0.4, 0.2, 0.2, 0.2]), 0.8, 0.5)) == {0, 1, 2, 3}
    assert set(many_draws(0.8 * np.log([0.55, 0.15, 0.15, 0.15]), 0.8, 0.5)) == {0}


def test_tiny_top_p_is_greedy():
    logits = jax.random.normal(jax.random.PRNGKey(4), (64, 1000)) * 3
    keys = jax.random.split(jax.random.PRNGKey(5), 64)
    ids, _ = sample(logits, keys, 0.8, 1e-6, False, 990)
    np.testing.assert_array_equal(ids, jnp.argmax(logits[:, :990], axis=-1))


def test_greedy_takes_the_first_best_real_token():
    logits = jnp.array([[0.0, 3.0, 3.0, 9.0], [2.0, 1.0, 0.0, 9.0]])
    ids, logprobs = sample(logits, jnp.zeros((2, 2), jnp.uint32), 0.8, 0.95, True, 3)
    np.testing.assert_array_equal(ids, [1, 0])
    want = jax.nn.log_softmax(logits / 0.8)[jnp.arange(2), jnp.array([1, 0])]
    np.testing.assert_allclose(logprobs, want, rtol=1e-6)


def test_a_token_without_weight_is_never_drawn():
    """Draws exactly on, and one rounding beside, the borders between tokens; most blocks hold no weight at all."""
    random = np.random.default_rng(0)
    weights, uniforms = np.zeros((64, 1344), np.float32), np.zeros((64, 192), np.float32)
    for row, draws in zip(weights, uniforms, strict=True):
        row[random.choice(1344, 40, replace=False)] = np.exp(-random.exponential(5, 40))
        borders = (np.cumsum(row, dtype=np.float64) / row.sum(dtype=np.float64)).astype(np.float32)
        beside = [np.nextafter(borders, side) for side in np.float32([-1, 2])]
        borders = np.unique(np.concatenate([borders, *beside]))
        draws[:] = np.resize(borders[(borders >= 0) & (borders < 1)], 192)
    ids, _ = jax.jit(sampling._inverse_cdf)(weights, uniforms)
    assert np.take_along_axis(weights, np.asarray(ids), axis=1).min() > 0


@pytest.mark.parametrize("top_p", [0.95, 1.0])
def test_logprob_is_the_log_softmax_at_temperature_over_the_whole_vocabulary(top_p):
    logits = jax.random.normal(jax.random.PRNGKey(4), (64, 1000)) * 3
    keys = jax.random.split(jax.random.PRNGKey(5), 64)
    ids, logprobs = sample(logits, keys, 0.8, top_p, False, 990)
    want = jax.nn.log_softmax(logits / 0.8)[jnp.arange(64), ids]
    np.testing.assert_allclose(logprobs, want, rtol=2e-6, atol=2e-6)
    assert np.all(np.asarray(logprobs) <= 0)


def test_padded_ids_are_never_drawn():
    ids = many_draws(np.zeros(WIDTH), 0.8, 1.0, vocab_size=33)
    assert set(ids) == set(range(33))
    # Also where padding would be by far the most probable.
    assert many_draws(np.repeat([0.0, 200.0], [33, WIDTH - 33]), 0.8, 1.0, vocab_size=33).max() < 33


def test_a_row_depends_on_its_own_logits_and_key_only():
    logits = jax.random.normal(jax.random.PRNGKey(6), (64, 1000)) * 2
    keys = jax.random.split(jax.random.PRNGKey(7), 64)
    order = np.random.default_rng(0).permutation(64)
    ids, logprobs = sample(logits, keys, 0.8, 0.95, False, 990)
    moved_ids, moved_logprobs = sample(logits[order], keys[order], 0.8, 0.95, False, 990)
    np.testing.assert_array_equal(moved_ids, ids[order])
    np.testing.assert_array_equal(moved_logprobs, logprobs[order])


def test_certain_token_has_logprob_zero():
    logits = jnp.full((64, 1000), -1e4).at[:, 17].set(0.0)
    ids, logprobs = sample(logits, jax.random.split(jax.random.PRNGKey(0), 64), 0.8, 0.95, False, 990)
    assert set(np.asarray(ids)) == {17} and set(np.asarray(logprobs)) == {0.0}


@pytest.mark.parametrize(
    "sampling, message",
    [
        (SamplingConfig(temperature=0.0), "temperature=0.0: must be above 0"),
        (SamplingConfig(temperature=float("nan")), "temperature=nan"),
        (SamplingConfig(top_p=0.0), "top_p=0.0"),
        (SamplingConfig(top_p=1.5), "top_p=1.5"),
    ],
)
def test_settings_without_meaning_are_refused(sampling, message):
    with pytest.raises(ConfigError, match=message):
        check_sampling(sampling)


@pytest.mark.full
def test_full_vocabulary_width_draws_from_the_nucleus():
    logits = np.random.default_rng(8).normal(size=151_936) * 4
    keys = jax.random.split(jax.random.PRNGKey(0), 256)
    ids, _ = sample(jnp.broadcast_to(jnp.float32(logits), (256, 151_936)), keys, 0.8, 0.95, False, 151_669)
    scaled = np.exp((logits[:151_669] - logits[:151_669].max()) / 0.8)
    for token in np.asarray(ids):
        assert scaled[scaled > scaled[token]].sum() < 0.95 * scaled.sum() * (1 + 1e-5)
