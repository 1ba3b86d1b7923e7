"""The residual stream on a mesh: split by length over `tensor` between blocks, with the numbers of one device."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rw import sharding
from rw.model import cache as kv
from rw.model import qwen3
from rw.model.config import ModelConfig
from rw.model.logprobs import token_logprobs

CONFIG = ModelConfig(
    vocab_size=48, d_model=16, n_layers=2, n_heads=4, n_kv_heads=4, head_dim=4, d_ff=16, rope_theta=1e6
)
ROWS, LENGTH = 4, 64


def loss(params, config, tokens, positions):
    hidden, _ = qwen3.hidden_states(params, config, tokens, positions)
    logprobs = token_logprobs(params, config, hidden[:, :-1], tokens[:, 1:], 0.8, chunk=16)
    return jnp.where(positions[:, 1:] >= 0, logprobs, 0.0).sum()


def mesh_of(*shape):
    return sharding.make_mesh(shape, devices=jax.devices()[: math.prod(shape)], n_kv_heads=CONFIG.n_kv_heads)


def compiled(mesh, config, length=LENGTH, rows=ROWS):
    """The gradient's program on a mesh."""
    shapes = jax.eval_shape(lambda: qwen3.init_params(jax.random.key(0), config))
    placed, batch = sharding.param_shardings(mesh, shapes), sharding.batch_sharding(mesh)
    batch_shape = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    with jax.set_mesh(mesh):
        gradient = jax.grad(lambda params, tokens, positions: loss(params, config, tokens, positions))
        program = jax.jit(gradient, in_shardings=(placed, batch, batch), out_shardings=placed)
        return program.lower(shapes, batch_shape, batch_shape).compile()


def kept_bytes_a_layer(mesh, config=CONFIG):
    """What a device holds more for each further layer, besides its parts of weights and gradients."""
    few, many = (
        compiled(mesh, dataclasses.replace(config, n_layers=n)).memory_analysis().temp_size_in_bytes for n in (4, 20)
    )
    return (many - few) / 16


@pytest.mark.parametrize(
    "shape, remat, arrays",
    [
        ((1, 1, 4), "nothing_saveable", 1),
        *(
            pytest.param(shape, remat, arrays, marks=pytest.mark.full)
            for shape in ((1, 1, 1), (1, 2, 2), (2, 2, 1))
            for remat, arrays in (("nothing_saveable", 1), ("attention_saveable", 2))
        ),
    ],
    ids=str,
)
def test_what_the_backward_pass_keeps_of_a_layer_is_split_over_every_axis(shape, remat, arrays):
    """It keeps the hidden states before the layer, with `attention_saveable` what its heads read too, and no more."""
    assert CONFIG.n_heads * CONFIG.head_dim == CONFIG.d_model
    hidden = ROWS * LENGTH * CONFIG.d_model * 4
    kept = kept_bytes_a_layer(mesh_of(*shape), dataclasses.replace(CONFIG, remat=remat))
    assert kept == pytest.approx(arrays * hidden / math.prod(shape), rel=0.1)


def rows(length):
    tokens = np.random.default_rng(0).integers(0, 48, (ROWS, length)).astype(np.int32)
    return tokens, np.broadcast_to(np.arange(length, dtype=np.int32), tokens.shape)


@pytest.mark.full
@pytest.mark.parametrize("length", [64, 62], ids=["split", "left_whole"])
@pytest.mark.parametrize("remat", ["nothing_saveable", "attention_saveable"])
def test_gradients_are_those_of_one_device(remat, length):
    config = dataclasses.replace(CONFIG, remat=remat)
    params, batch = qwen3.init_params(jax.random.key(0), config), rows(length)
    expected = jax.jit(jax.grad(loss), static_argnums=1)(params, config, *batch)
    mesh = mesh_of(1, 2, 4)
    placed = jax.device_put((params, batch), (sharding.param_shardings(mesh, params), sharding.batch_sharding(mesh)))
    found = compiled(mesh, config, length)(placed[0], *placed[1])
    for name, x in expected.items():
        np.testing.assert_allclose(found[name], x, atol=1e-5 * np.abs(x).max(), err_msg=name)


def test_without_a_mesh_and_for_single_tokens_nothing_is_split():
    params = jax.eval_shape(lambda: qwen3.init_params(jax.random.key(0), CONFIG))

    def program(length, cache):
        arguments = (jax.ShapeDtypeStruct((ROWS, length), jnp.int32),) * 2
        return str(jax.make_jaxpr(lambda *a: qwen3.hidden_states(a[0], CONFIG, *a[1:]))(params, *arguments, cache))

    cache = jax.eval_shape(lambda: kv.init_cache(CONFIG, ROWS, 8))
    assert "sharding_constraint" not in program(64, None)
    with jax.set_mesh(mesh_of(1, 2, 4)):
        assert "'fsdp'), 'tensor', None)" in program(64, None)
        assert "'fsdp'), 'tensor', None)" not in program(1, cache)


SIZE = re.compile(r"\b(?:f32|bf16|s32|pred|u32)\[([0-9,]+)\]")


@pytest.mark.parametrize(
    "shape", [(1, 4, 2), *(pytest.param(shape, marks=pytest.mark.full) for shape in ((1, 8, 1), (2, 2, 2)))], ids=str
)
def test_no_array_of_the_program_is_larger_than_one_layers_whole_weights(shape):
    """A layer's weights are whole over `fsdp` while it computes, and so is the head; nothing else ever is.

    Of the optimised program for this platform: other compilers make their own.
    """
    config = dataclasses.replace(CONFIG, n_layers=13, vocab_size=160, d_ff=112, tied=False)
    program = compiled(mesh_of(*shape), config, length=8, rows=8)
    sizes = {math.prod(map(int, found.split(","))) for found in SIZE.findall(program.as_text())}
    _, fsdp, tensor = shape
    one_layer, head = 16 * 112 // tensor, 16 * 160 // tensor
    assert one_layer in sizes and head in sizes
    local = 13 * one_layer // fsdp
    assert local in sizes
    assert max(sizes) <= max(local, head)


@pytest.mark.parametrize(
    "shape", [(2, 2, 2), *(pytest.param(s, marks=pytest.mark.full) for s in ((1, 4, 2), (2, 4, 1)))]
)
def test_embeddings_are_read_where_they_lie(shape):
    """Forward and backward hold a device's part of the table and its own features of its rows, and no whole of either.

    By the operations' names. The compiler left alone gathers the table, or adds up gradients of all of its width.
    """
    data, fsdp, tensor = shape
    config = dataclasses.replace(CONFIG, n_layers=3, vocab_size=800, tied=False)
    program = compiled(mesh_of(*shape), config, rows=8).as_text()
    lines = [line for line in program.splitlines() if "embed_tokens" in line]
    sizes = {math.prod(map(int, found.split(","))) for line in lines for found in SIZE.findall(line)}
    table, rows = 800 * 16 // (fsdp * tensor), 8 * LENGTH * 16 // (data * fsdp)
    assert table in sizes and rows in sizes
    assert max(sizes) <= max(table, rows) < 800 * 16 / tensor


@pytest.mark.full
def test_the_copy_of_weights_that_a_layer_uses_is_no_copy_of_all_layers():
    """Gathered after the slice: the memory that layers add does not grow where fsdp splits their weights."""
    config = dataclasses.replace(CONFIG, d_ff=64)
    assert kept_bytes_a_layer(mesh_of(1, 4, 1), config) == pytest.approx(LENGTH * CONFIG.d_model * 4, rel=0.1)


@pytest.mark.full
def test_gradients_of_weights_are_split_as_soon_as_they_are_summed():
    """Nothing of a feed-forward layer is made whole along `mlp`, in neither pass."""
    config = dataclasses.replace(CONFIG, n_layers=3, d_ff=112, tied=False)
    program = compiled(mesh_of(1, 2, 4), config).as_text()
    sizes = [tuple(map(int, found.split(","))) for found in SIZE.findall(program)]
    assert any(112 // 4 in shape for shape in sizes) and not any(112 in shape for shape in sizes)
