"""The model against transformers' Qwen3 run here, on fresh random weights: padding, caches, far positions, bfloat16.

In the full tier only, where torch is installed. The same comparison is shown to fail on models broken in one place.
"""

import dataclasses
import importlib.util
import pathlib

import jax
import numpy as np
import pytest

from rw.model import cache as kv
from rw.model import qwen3
from rw.model.config import ModelConfig
from rw.model.logprobs import logits, token_logprobs

from .hf_arrays import from_hf, to_hf
from .test_reference import BREAKAGES, interleaved

pytestmark = pytest.mark.full
LENGTHS = (24, 17, 9)
WIDTH = 26
SHAPES = {
    "4 heads a key, wide, tied, 5e6": dict(n_heads=8, n_kv_heads=2, head_dim=16, rope_theta=5e6, tied=True),
    "1 head a key, narrow, untied, 1e6": dict(n_heads=4, n_kv_heads=4, head_dim=8, rope_theta=1e6, tied=False),
    "8 heads a key, wide, untied, 5e6": dict(n_heads=8, n_kv_heads=1, head_dim=12, rope_theta=5e6, tied=False),
    "3 heads a key, wide, tied, 1e6": dict(n_heads=6, n_kv_heads=2, head_dim=20, rope_theta=1e6, tied=True),
}
FAR = 16_384  # further than a row can be long


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """Every program here runs a few times on a tiny model."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def script():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    path = pathlib.Path(__file__).parent / "make_reference.py"
    spec = importlib.util.spec_from_file_location("make_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def full_shape(name):
    return dict(vocab_size=120, d_model=48, n_layers=3, d_ff=80) | SHAPES[name]


def rows(side, offset=0):
    """tokens, positions, real i32/bool[3, WIDTH]: unequal rows padded on one side, from `offset` on at the first."""
    random = np.random.default_rng(5)
    tokens = np.full((len(LENGTHS), WIDTH), 7, np.int32)
    positions = np.full(tokens.shape, -1, np.int32)
    for row, length in enumerate(LENGTHS):
        at = slice(WIDTH - length, WIDTH) if side == "left" else slice(0, length)
        tokens[row, at] = random.integers(0, 120, length)
        positions[row, at] = offset + np.arange(length)
    return tokens, positions, positions >= 0


def weights_of(model):
    return {name: x.detach().float().numpy() for name, x in model.named_parameters()}


def theirs(model, tokens, positions, real):
    """Logits f32[3, WIDTH, V] and, by name, the gradient of the weighted log-probabilities of real next tokens."""
    import torch

    model.zero_grad()
    out = model(
        input_ids=torch.from_numpy(tokens).long(),
        attention_mask=torch.from_numpy(real).long(),
        position_ids=torch.from_numpy(np.maximum(positions, 0)).long(),
        use_cache=False,
    ).logits.float()
    targets = torch.from_numpy(tokens[:, 1:, None]).long()
    logprobs = torch.log_softmax(out[:, :-1] / 0.8, dim=-1).gather(-1, targets)[..., 0]
    (logprobs * torch.from_numpy(token_weights(real))).sum().backward()
    gradients = {name: x.grad.float().numpy().copy() for name, x in model.named_parameters()}
    return out.detach().numpy(), gradients


def token_weights(real):
    """f32[3, WIDTH - 1]: unlike weights of the next tokens, 0 where either token is padding."""
    weights = np.random.default_rng(6).normal(size=real[:, 1:].shape).astype(np.float32)
    return np.where(real[:, 1:] & real[:, :-1], weights, 0)


def objective(params, config, tokens, positions, weights):
    hidden, _ = qwen3.hidden_states(params, config, tokens, positions)
    logprobs = token_logprobs(params, config, hidden[:, :-1], tokens[:, 1:], 0.8, chunk=7)
    return (logprobs * weights).sum(), logits(params, config, hidden)


forward_backward = jax.jit(jax.value_and_grad(objective, has_aux=True), static_argnames="config")


def ours(params, config, tokens, positions, real):
    (_, out), gradients = forward_backward(params, config, tokens, positions, token_weights(real))
    return np.asarray(out), to_hf(jax.device_get(gradients))


def assert_same(found, expected, real, tolerance=1e-4):
    """Logits of real tokens, and every gradient, to a tolerance relative to the largest of each array."""
    (found_logits, found_gradients), (expected_logits, expected_gradients) = found, expected
    limit = tolerance * max(1.0, np.abs(expected_logits[real]).max())
    assert np.abs(found_logits - expected_logits)[real].max() <= limit
    assert found_gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        limit = tolerance * max(1.0, np.abs(gradient).max())
        assert np.abs(found_gradients[name] - gradient).max() <= limit, name


@pytest.mark.parametrize("attention", ["xla", "chunked_xla"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", SHAPES)
def test_padded_rows_logits_and_gradients(script, name, side, attention):
    shape = full_shape(name)
    model = script.build(shape, seed=11)
    config = ModelConfig(**shape, attention=attention, attention_chunk=8)
    batch = rows(side)
    assert_same(ours(from_hf(weights_of(model), config), config, *batch), theirs(model, *batch), batch[2])


@pytest.mark.parametrize("name", SHAPES)
def test_positions_from_16384_on(script, name):
    """Frequencies are rounded differently in the last place there, and angles of that size to a thousandth."""
    shape = full_shape(name)
    model = script.build(shape, seed=12)
    config, batch = ModelConfig(**shape), rows("right", offset=FAR)
    params, expected = from_hf(weights_of(model), config), theirs(model, *batch)
    assert_same(ours(params, config, *batch), expected, batch[2], tolerance=3e-3)


@pytest.mark.parametrize("name", SHAPES)
def test_prefill_in_chunks_and_ragged_decoding(script, name):
    """Rows of 24, 17 and 9 tokens enter a cache in pieces of 5 to 1, each at its own pace, against a full forward."""
    shape = full_shape(name)
    model, config = script.build(shape, seed=13), ModelConfig(**shape)
    batch = rows("right")
    expected, _ = theirs(model, *batch)
    weights = qwen3.unstack(from_hf(weights_of(model), config), config)
    found = decode(weights, config, *batch)
    assert np.abs(found - expected)[batch[2]].max() <= 1e-4 * np.abs(expected).max()


def decode(weights, config, tokens, positions, real):
    """f32[3, WIDTH, V]: logits of right-padded rows by way of a cache, in pieces of unequal sizes."""

    @jax.jit
    def step(weights, tokens, positions, cache):
        hidden, cache = qwen3.hidden_states(weights, config, tokens, positions, cache)
        return logits(weights, config, hidden), cache

    cache, out = kv.init_cache(config, len(LENGTHS), 32), np.zeros((*tokens.shape, config.vocab_size), np.float32)
    done, lengths = np.zeros(len(LENGTHS), int), real.sum(1)
    for takes in [(5, 3, 0), (5, 5, 2), (4, 5, 4), *[(1, 1, 1)] * 10]:
        piece, places = np.zeros((2, len(LENGTHS), 5 if max(takes) > 1 else 1), np.int32)
        places[:] = -1
        takes = np.minimum(takes, lengths - done)
        for row, take in enumerate(takes):
            piece[row, :take] = tokens[row, done[row] : done[row] + take]
            places[row, :take] = positions[row, done[row] : done[row] + take]
        found, cache = step(weights, piece, places, cache)
        for row, take in enumerate(takes):
            out[row, done[row] : done[row] + take] = found[row, :take]
        done += takes
    assert np.array_equal(done, lengths)
    return out


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("breakage", BREAKAGES)
def test_the_comparison_fails_on_a_broken_model(script, breakage, name):
    shape = full_shape(name)
    model, batch = script.build(shape, seed=11), rows("left")
    config = ModelConfig(**shape)
    broken, params = breakage(config, from_hf(weights_of(model), config))
    found, expected = ours(params, broken, *batch), theirs(model, *batch)
    with pytest.raises(AssertionError):
        assert_same((found[0], expected[1]), expected, batch[2])  # logits alone show it, without the gradients


def test_the_comparison_fails_on_the_other_rotary_layout(script, monkeypatch):
    shape = full_shape("4 heads a key, wide, tied, 5e6")
    model, batch, config = script.build(shape, seed=11), rows("left"), ModelConfig(**shape)
    monkeypatch.setattr(qwen3, "rotate", interleaved)
    params, expected = from_hf(weights_of(model), config), theirs(model, *batch)
    uncached = jax.jit(lambda *args: objective(*args)[1], static_argnums=1)
    found = uncached(params, config, *batch[:2], token_weights(batch[2]))
    with pytest.raises(AssertionError):
        assert_same((np.asarray(found), expected[1]), expected, batch[2])


@pytest.mark.parametrize("name", SHAPES)
def test_bfloat16_is_no_further_from_float32_than_in_torch(script, name):
    """Relative error of all logits together, and of all gradients."""
    import torch

    shape = full_shape(name)
    model, batch, config = script.build(shape, seed=14), rows("right"), ModelConfig(**shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    params = from_hf(weights_of(model), config)
    exact, exact_gradients = theirs(model, *batch)
    their_logits, their_gradients = theirs(model.to(torch.bfloat16), *batch)
    our_logits, our_gradients = ours(params, dataclasses.replace(config, compute_dtype="bfloat16"), *batch)

    def error(found, exact):
        return np.sqrt(np.square(found - exact).mean() / np.square(exact).mean())

    real = batch[2]
    assert error(our_logits[real], exact[real]) <= min(0.015, 1.2 * error(their_logits[real], exact[real]))
    ours_all, theirs_all, exact_all = (
        np.concatenate([gradients[name].ravel() for name in exact_gradients])
        for gradients in (our_gradients, their_gradients, exact_gradients)
    )
    assert error(ours_all, exact_all) <= min(0.03, 1.3 * error(theirs_all, exact_all))
