"""Log-probabilities and entropies against NumPy, and the promise never to hold logits of all tokens."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rw.model import qwen3
from rw.model.config import ModelConfig
from rw.model.logprobs import logits, token_logprobs

CONFIG = ModelConfig(vocab_size=97, d_model=12, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=4, d_ff=8, rope_theta=1e6)
UNTIED = dataclasses.replace(CONFIG, tied=False)
random = np.random.default_rng(0)
HIDDEN = random.normal(size=(3, 10, 12)).astype(np.float32)
TARGETS = random.integers(0, 97, (3, 10)).astype(np.int32)
EMBEDDING = random.normal(size=(97, 12)).astype(np.float32)
HEAD = random.normal(size=(12, 97)).astype(np.float32)
PARAMS = {qwen3.EMBEDDING: EMBEDDING, qwen3.HEAD: HEAD}


def oracle(head, temperature):
    """Log-softmax and entropy of the scaled logits in float64."""
    scaled = HIDDEN.astype(np.float64) @ head / temperature
    scaled -= scaled.max(-1, keepdims=True)
    logprobs = scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))
    entropy = -(np.exp(logprobs) * logprobs).sum(-1)
    return np.take_along_axis(logprobs, TARGETS[..., None], -1)[..., 0], entropy


score = jax.jit(token_logprobs, static_argnames=("config", "chunk", "with_entropy"))


@pytest.mark.parametrize(
    "config, head, chunk", [(CONFIG, EMBEDDING.T, 4), (UNTIED, HEAD, 128)], ids=["tied_chunked", "untied_whole"]
)
@pytest.mark.parametrize("temperature", [1.0, 0.8, 0.5])
def test_logprobs_and_entropy_equal_numpy(config, head, chunk, temperature):
    found = score(PARAMS, config, HIDDEN, TARGETS, temperature, chunk=chunk, with_entropy=True)
    for ours, expected in zip(found, oracle(head, temperature), strict=True):
        assert ours.dtype == jnp.float32 and ours.shape == (3, 10)
        np.testing.assert_allclose(ours, expected, atol=1e-5)
    alone = score(PARAMS, config, HIDDEN, TARGETS, temperature, chunk=chunk)
    np.testing.assert_allclose(alone, found[0], atol=1e-6)


def test_logprobs_are_those_of_the_plain_logits():
    expected = jax.nn.log_softmax(logits(PARAMS, CONFIG, HIDDEN) / 0.8)
    expected = np.take_along_axis(np.asarray(expected), TARGETS[..., None], -1)[..., 0]
    np.testing.assert_allclose(score(PARAMS, CONFIG, HIDDEN, TARGETS, 0.8, chunk=4), expected, atol=1e-5)


@pytest.mark.parametrize("shape", [(10,), (2, 5, 3), (2, 0), (0, 4)], ids=str)
def test_any_leading_axes_and_empty_batches(shape):
    hidden = jnp.ones((*shape, 12))
    assert score(PARAMS, CONFIG, hidden, jnp.zeros(shape, jnp.int32), 0.8, chunk=4).shape == shape


def test_gradients_do_not_depend_on_the_chunk():
    weights = random.normal(size=TARGETS.shape).astype(np.float32)

    def loss(params, hidden, chunk):
        logprobs, entropy = token_logprobs(params, CONFIG, hidden, TARGETS, 0.8, chunk=chunk, with_entropy=True)
        return (weights * logprobs + entropy).sum()

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)), static_argnums=2)
    whole, parts = (gradient(PARAMS, HIDDEN, chunk) for chunk in (10, 3))
    np.testing.assert_allclose(whole[0][qwen3.EMBEDDING], parts[0][qwen3.EMBEDDING], atol=1e-4)
    np.testing.assert_allclose(whole[1], parts[1], atol=1e-5)


def test_gradient_of_a_logprob_is_target_minus_softmax():
    hidden = HIDDEN[0, :1]
    gradient = jax.grad(lambda h: token_logprobs(PARAMS, UNTIED, h, TARGETS[0, :1], 0.8).sum())(hidden)
    probabilities = np.exp(hidden.astype(np.float64) @ HEAD / 0.8)
    probabilities /= probabilities.sum()
    expected = (HEAD[:, TARGETS[0, 0]] - HEAD @ probabilities[0]) / 0.8
    np.testing.assert_allclose(gradient[0], expected, atol=1e-5)


@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
def test_logprobs_are_never_above_zero_and_keep_their_gradient(compute_dtype):
    """A head with one overwhelming id: its log-probability rounds to 0 and must not pass it."""
    config = dataclasses.replace(UNTIED, compute_dtype=compute_dtype)
    head = np.zeros((12, 97), np.float32)
    head[:, 5] = np.linspace(0.05, 1.7, 12)
    params = {qwen3.EMBEDDING: EMBEDDING, qwen3.HEAD: head}
    hidden = np.abs(random.normal(size=(500, 12))).astype(np.float32) * np.geomspace(0.1, 30, 500)[:, None]
    logprobs = token_logprobs(params, config, hidden, np.full(500, 5), 0.8, chunk=64)
    assert logprobs.dtype == jnp.float32
    assert np.all(logprobs <= 0) and np.any(logprobs == 0) and np.any(logprobs < -0.1)
    gradient = jax.grad(lambda h: token_logprobs(params, config, h, np.full(500, 5), 0.8, chunk=64).sum())(hidden)
    assert np.all(np.isfinite(gradient)) and np.abs(gradient[0]).max() > 0


def test_a_tied_head_follows_the_embedding():
    moved = PARAMS | {qwen3.EMBEDDING: EMBEDDING[::-1].copy()}
    assert np.array_equal(logits(moved, CONFIG, HIDDEN), logits(PARAMS, CONFIG, HIDDEN)[..., ::-1])


def sizes(jaxpr):
    """Elements of every intermediate, those of inner programs included."""
    for equation in jaxpr.eqns:
        yield from (v.aval.size for v in equation.outvars if hasattr(v.aval, "size"))
        for inner in jax.core.jaxprs_in_params(equation.params):
            yield from sizes(inner)


@pytest.mark.parametrize("with_entropy", [False, True])
def test_logits_of_all_tokens_never_exist(with_entropy):
    tokens, chunk = 3 * 256, 8
    hidden, targets = jnp.zeros((3, 256, 12)), jnp.zeros((3, 256), jnp.int32)

    def loss(params, hidden):
        out = token_logprobs(params, CONFIG, hidden, targets, 0.8, chunk=chunk, with_entropy=with_entropy)
        return sum(x.sum() for x in jax.tree.leaves(out))

    gradient = jax.grad(loss, argnums=(0, 1))
    largest = max(sizes(jax.make_jaxpr(gradient)(PARAMS, hidden).jaxpr))
    assert 3 * chunk * 97 <= largest < tokens * 97 / 4
    temporaries = jax.jit(gradient).lower(PARAMS, hidden).compile().memory_analysis().temp_size_in_bytes
    assert temporaries < tokens * 97 * 4 / 2
