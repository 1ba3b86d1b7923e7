"""The heads set by hand copy at once, over any distance that an answer has, and tokens of any rank."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rw.errors import ConfigError
from rw.model.config import ModelConfig
from rw.model.copying import CODE_NORM, wire_copying
from rw.model.logprobs import logits
from rw.model.qwen3 import EMBEDDING, hidden_states, init_params

CONFIG = ModelConfig(
    vocab_size=4096, d_model=128, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=64, d_ff=32, rope_theta=1e6
)


@pytest.fixture(scope="module")
def params():
    return wire_copying(init_params(jax.random.key(3), CONFIG), CONFIG)


def probability_of_next(params, tokens, places):
    """f32[B, P]: what the model gives to the token after each place."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    hidden, _ = hidden_states(params, CONFIG, tokens, positions)
    probabilities = jax.nn.softmax(logits(params, CONFIG, hidden[:, places]))
    return np.take_along_axis(np.asarray(probabilities), tokens[:, [p + 1 for p in places], None], -1)[..., 0]


def repeated(distance: int, length: int = 12, rows: int = 4):
    """Random tokens in which the last `length` stand a second time, that many tokens after the first."""
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (rows, 5 + distance + length))
    tokens[:, -length:] = tokens[:, 5 : 5 + length]
    return tokens


@pytest.mark.parametrize("distance", [14, 60, 250])
def test_a_span_that_stood_before_is_continued(params, distance):
    tokens = repeated(distance)
    places = list(range(tokens.shape[1] - 11, tokens.shape[1] - 1))  # two tokens of the span are there to match
    assert probability_of_next(params, tokens, places).min() > 0.98


def test_untouched_parameters_copy_nothing():
    tokens = repeated(14)
    fresh = init_params(jax.random.key(3), CONFIG)
    places = list(range(tokens.shape[1] - 11, tokens.shape[1] - 1))
    assert probability_of_next(fresh, tokens, places).max() < 0.01


def test_two_tokens_decide_where_one_would_not(params):
    a, b, c, d, e, f = 11, 22, 33, 44, 55, 66
    tokens = np.array([[7, a, b, c, 8, d, b, e, 9, f, 10, d, b, e]])  # after `a b` came c, after `d b` e
    assert probability_of_next(params, tokens, [12])[0, 0] > 0.98


def test_codes_have_one_length_and_the_given_parameters_stay(params):
    embedding = np.asarray(params[EMBEDDING])
    assert np.allclose(np.linalg.norm(embedding[:, 1:43], axis=1), CODE_NORM, atol=1e-4)
    assert np.ptp(embedding[:, 0]) == 0 and not embedding[:, 43:].any()
    fresh = init_params(jax.random.key(3), CONFIG)
    before = {name: np.array(array) for name, array in fresh.items()}
    wired = wire_copying(fresh, CONFIG)
    assert all(np.array_equal(before[name], fresh[name]) for name in before)
    assert {name: array.shape for name, array in wired.items()} == {n: a.shape for n, a in fresh.items()}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 32}, "head_dim of at least .* = 42"),
        ({"n_kv_heads": 4}, "n_heads of at least 2 n_kv_heads"),
        ({"tied": False}, "tied"),
        ({"rope_theta": 100.0}, "rope_theta"),
        ({"n_layers": 1}, "n_layers"),
    ],
)
def test_models_without_room_are_refused(changes, reason):
    config = dataclasses.replace(CONFIG, **changes)
    with pytest.raises(ConfigError, match=reason):
        wire_copying({}, config)
