"""The model against transformers' Qwen3, from committed files."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open

from rw.model import qwen3
from rw.model.config import ModelConfig
from rw.model.logprobs import logits, token_logprobs

from .hf_arrays import from_hf, to_hf

FOLDER = pathlib.Path(__file__).parents[1] / "data" / "model"
NAMES = ("qwen3_tied", "qwen3_untied")
TEMPERATURE = 0.8


def load(name):
    with safe_open(FOLDER / f"{name}.safetensors", framework="np") as file:
        config = ModelConfig(**json.loads(file.metadata()["config"]))
        return config, {key: file.get_tensor(key) for key in file.keys()}


def part(arrays, prefix):
    return {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}


def summed_logprobs(params, config, tokens, positions):
    hidden, _ = qwen3.hidden_states(params, config, tokens, positions)
    logprobs = token_logprobs(params, config, hidden[:, :-1], tokens[:, 1:], TEMPERATURE, chunk=7)
    return logprobs.sum(), (logits(params, config, hidden), logprobs)


forward = jax.jit(lambda *args: summed_logprobs(*args)[1][0], static_argnums=1)
forward_backward = jax.jit(jax.value_and_grad(summed_logprobs, has_aux=True), static_argnums=1)


def check_against(arrays, config):
    params = from_hf(part(arrays, "weights/"), config)
    (_, (ours, logprobs)), gradients = forward_backward(params, config, arrays["tokens"], arrays["positions"])
    assert np.abs(ours - arrays["logits"]).max() <= 1e-4
    assert np.abs(logprobs - arrays["logprobs"]).max() <= 1e-4
    expected = part(arrays, "gradients/")
    found = to_hf(jax.device_get(gradients))
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert np.abs(found[name] - gradient).max() <= 1e-4, name


@pytest.mark.parametrize(
    "name, attention",
    [
        ("qwen3_tied", "xla"),
        ("qwen3_untied", "xla"),
        ("qwen3_tied", "chunked_xla"),
        pytest.param("qwen3_untied", "chunked_xla", marks=pytest.mark.full),
    ],
)
def test_logits_and_logprob_gradients_equal_transformers(name, attention):
    config, arrays = load(name)
    check_against(arrays, dataclasses.replace(config, attention=attention, attention_chunk=9))


def test_references_cover_the_shapes_that_differ():
    tied, untied = (load(name)[0] for name in NAMES)
    assert tied.tied and tied.head_dim != tied.d_model // tied.n_heads and tied.rope_theta == 5e6
    assert tied.n_kv_heads < tied.n_heads
    assert not untied.tied and untied.rope_theta == 1e6 and untied.n_kv_heads == untied.n_heads


def interleaved(x, cos, sin):
    """The other rotary layout: feature 2i turns with feature 2i + 1."""
    even, odd = x[..., 0::2], x[..., 1::2]
    half = x.shape[-1] // 2
    cos, sin = cos[..., :half], sin[..., :half]
    return jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1).reshape(x.shape)


def without_qk_norm(config, params):
    return dataclasses.replace(config, qk_norm=False), params


def with_other_theta(config, params):
    return dataclasses.replace(config, rope_theta=1e6 if config.rope_theta == 5e6 else 5e6), params


def with_narrower_heads(config, params):
    """Twice as many heads of half the width: all projections keep their shapes."""
    config = dataclasses.replace(
        config, head_dim=config.head_dim // 2, n_heads=2 * config.n_heads, n_kv_heads=2 * config.n_kv_heads
    )
    norms = {n: x[:, : config.head_dim] for n, x in params.items() if n.endswith(("q_norm.weight", "k_norm.weight"))}
    return config, params | norms


def with_the_other_head(config, params):
    """An untied model read as tied, a tied one given a head of its own."""
    head = {} if not config.tied else {qwen3.HEAD: np.roll(params[qwen3.EMBEDDING], 1, axis=0).T}
    return dataclasses.replace(config, tied=not config.tied), params | head


BREAKAGES = (without_qk_norm, with_other_theta, with_narrower_heads, with_the_other_head)


@pytest.mark.parametrize(
    "name, breakage",
    [("qwen3_tied", breakage) for breakage in BREAKAGES]
    + [("qwen3_untied", with_the_other_head)]
    + [pytest.param("qwen3_untied", breakage, marks=pytest.mark.full) for breakage in BREAKAGES[:3]],
)
def test_reference_notices_a_broken_model(name, breakage):
    config, arrays = load(name)
    broken, params = breakage(config, from_hf(part(arrays, "weights/"), config))
    found = forward(params, broken, arrays["tokens"], arrays["positions"])
    assert np.abs(found - arrays["logits"]).max() > 1e-3


def test_reference_notices_the_other_rotary_layout(monkeypatch):
    config, arrays = load("qwen3_tied")
    params = from_hf(part(arrays, "weights/"), config)
    monkeypatch.setattr(qwen3, "rotate", interleaved)
    uncached = jax.jit(lambda *args: summed_logprobs(*args)[1][0], static_argnums=1)
    found = uncached(params, config, arrays["tokens"], arrays["positions"])
    assert np.abs(found - arrays["logits"]).max() > 1e-3


def test_names_and_orientation_survive_a_round_trip():
    config, arrays = load("qwen3_untied")
    weights = part(arrays, "weights/")
    back = to_hf(from_hf(weights, config))
    assert back.keys() == weights.keys()
    assert all(np.array_equal(back[name], x) for name, x in weights.items())
