"""bfloat16 compute: norms, softmax, log-sum-exp and rotations are float32, by the program's own words and by value."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rw.model import qwen3
from rw.model.attention import attend
from rw.model.config import ModelConfig
from rw.model.logprobs import token_logprobs

CONFIG = ModelConfig(
    vocab_size=61,
    d_model=20,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    head_dim=8,
    d_ff=28,
    rope_theta=5e6,
    compute_dtype="bfloat16",
)
SOFTMAX, LOG_SUM_EXP, NORM, ROTATION = {"exp", "reduce_max", "reduce_sum"}, {"log"}, {"rsqrt"}, {"cos", "sin"}
random = np.random.default_rng(3)


def operations(jaxpr):
    """(name, dtypes of floating inputs, dtypes of outputs) of every step, those of inner programs included."""
    for equation in jaxpr.eqns:
        read = {v.aval.dtype for v in equation.invars if jnp.issubdtype(getattr(v.aval, "dtype", int), jnp.floating)}
        yield equation.primitive.name, read, [getattr(v.aval, "dtype", None) for v in equation.outvars]
        for inner in jax.core.jaxprs_in_params(equation.params):
            yield from operations(inner)


def score(params, tokens, positions, config=CONFIG):
    hidden, _ = qwen3.hidden_states(params, config, tokens, positions)
    logprobs, entropy = token_logprobs(params, config, hidden[:, :-1], tokens[:, 1:], 0.8, chunk=4, with_entropy=True)
    return logprobs.sum() + entropy.sum()


@pytest.mark.parametrize("attention", ["xla", "chunked_xla"])
def test_every_exponential_logarithm_norm_and_sum_is_of_float32(attention):
    """Forward and backward. Products of matrices are bfloat16; those of scores and logits are given out in float32."""
    config = dataclasses.replace(CONFIG, attention=attention, attention_chunk=4)
    params = jax.eval_shape(lambda: qwen3.init_params(jax.random.key(0), config))
    rows = jax.ShapeDtypeStruct((2, 12), jnp.int32)
    program = jax.make_jaxpr(jax.grad(lambda *args: score(*args, config=config)))(params, rows, rows)
    found = list(operations(program.jaxpr))
    for kind in (SOFTMAX, LOG_SUM_EXP, NORM, ROTATION):
        of_kind = [(name, read) for name, read, _ in found if name in kind and read]
        assert {name for name, _ in of_kind} == kind
        assert all(read == {jnp.dtype("float32")} for _, read in of_kind), of_kind
    products = [(read, out) for name, read, out in found if name == "dot_general"]
    assert ({jnp.dtype("bfloat16")}, [jnp.dtype("bfloat16")]) in products
    assert ({jnp.dtype("bfloat16")}, [jnp.dtype("float32")]) in products


def test_weights_and_gradients_stay_float32():
    params = jax.eval_shape(lambda: qwen3.init_params(jax.random.key(0), CONFIG))
    rows = jax.ShapeDtypeStruct((2, 12), jnp.int32)
    gradients = jax.eval_shape(jax.grad(score), params, rows, rows)
    assert {x.dtype for x in [*params.values(), *gradients.values()]} == {jnp.dtype("float32")}


def test_logprobs_of_bfloat16_products_are_exact_to_float32():
    """The same in bfloat16 throughout is off by hundredths and more."""
    config = ModelConfig(**(vars(CONFIG) | {"vocab_size": 3000, "d_model": 64, "tied": False}))
    head = jnp.asarray(random.normal(size=(64, 3000)), jnp.bfloat16)
    hidden = jnp.asarray(random.normal(size=(2, 40, 64)) * np.linspace(0.05, 1.5, 40)[:, None], jnp.bfloat16)
    exact = np.einsum("btd,dv->btv", np.float64(hidden), np.float64(head)) / 0.8
    targets = np.where(np.arange(40) % 2, exact.argmax(-1), random.integers(0, 3000, (2, 40)))
    exact = exact - np.log(np.exp(exact).sum(-1, keepdims=True))  # below e^100: nothing overflows in float64
    exact = np.take_along_axis(exact, targets[..., None], -1)[..., 0]
    params = {qwen3.HEAD: head.astype(jnp.float32), qwen3.EMBEDDING: jnp.zeros((3000, 64))}
    found = np.asarray(token_logprobs(params, config, hidden, targets, 0.8, chunk=16))
    logits = (hidden @ head) / 0.8
    narrow = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)[..., 0]
    assert found.max() <= 0
    assert np.abs(found - exact).max() < 1e-4
    assert np.abs(np.float64(narrow) - exact).max() > 0.05


@pytest.mark.parametrize("backend", ["xla", "chunked_xla"])
def test_attention_of_bfloat16_is_exact_to_its_weights(backend):
    """Scores near 40 that differ by tenths: rounded to bfloat16 they would be equal, or a quarter apart."""
    batch, length, heads, head_dim = 1, 24, 2, 16
    query, key = (
        jnp.asarray(3.2 + 0.05 * random.normal(size=(batch, length, heads, head_dim)), jnp.bfloat16) for _ in range(2)
    )
    value = jnp.asarray(random.normal(size=(batch, length, heads, head_dim)), jnp.bfloat16)
    index = np.arange(length, dtype=np.int32)[None]
    found = attend(
        query, key.transpose(0, 2, 1, 3), value.transpose(0, 2, 3, 1), index, index, backend=backend, chunk=8
    )
    scores = np.einsum("bqnh,bknh->bnqk", np.float64(query), np.float64(key)) / np.sqrt(head_dim)
    assert scores.min() > 35

    def mixed(scores):
        scores = np.where(np.tril(np.ones((length, length), bool)), np.float64(scores), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("bnqk,bknh->bqnh", weights / weights.sum(-1, keepdims=True), np.float64(value))

    exact, narrow = mixed(scores), mixed(jnp.asarray(scores, jnp.bfloat16))
    error = np.abs(np.float64(found) - exact).max()
    assert error < 0.01
    assert np.abs(narrow - exact).max() > 3 * error
