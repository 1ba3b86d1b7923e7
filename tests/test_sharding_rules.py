"""Meshes, the sharding table, and the promise that a sharded step computes what an unsharded one does."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from rw import sharding
from rw.errors import ConfigError
from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.model import cache as kv
from rw.model import qwen3
from rw.model.config import ModelConfig
from rw.model.logprobs import logits, token_logprobs
from rw.run_config import QWEN3_4B

CONFIG = ModelConfig(
    vocab_size=48, d_model=16, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, d_ff=32, rope_theta=1e6
)
UNTIED = ModelConfig(**(vars(CONFIG) | {"tied": False}))
SHAPES = {name: x for name, x in jax.eval_shape(lambda: qwen3.init_params(jax.random.key(0), UNTIED)).items()}


def spec(sharded):
    return tuple(sharded.spec)


def test_eight_devices_are_here():
    assert jax.device_count() >= 8, "run the tests with XLA_FLAGS=--xla_force_host_platform_device_count=8"


def test_a_mesh_is_made_of_names_or_sizes_with_automatic_axes():
    mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
    assert dict(mesh.shape) == {"data": 1, "fsdp": 4, "tensor": 2}
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert dict(sharding.make_mesh((2, 1, 1), devices=jax.devices()[:2]).shape) == {"data": 2, "fsdp": 1, "tensor": 1}


def test_devices_are_taken_in_order_with_data_outermost():
    """Hosts own consecutive devices, so the slow axis crosses hosts and the fast ones stay within."""
    mesh = sharding.make_mesh((2, 2, 2))
    assert [device.id for device in mesh.devices.ravel()] == list(range(8))


@pytest.mark.parametrize(
    "shape, message",
    [
        ({"fsdp": 3}, "product must be the 8 cpu devices here"),
        ({"model": 8}, "'model': must be one of data, fsdp, tensor"),
        ((8, 1), "must be 3 sizes"),
        ((0, 8, 1), "at least 1"),
        ((1, 2, 4), r"mesh.tensor=4: must divide the 2 key/value heads, one of \[1, 2\]"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_the_legal_ones(shape, message):
    with pytest.raises(ConfigError, match=message):
        sharding.make_mesh(shape, n_kv_heads=2)


def test_every_parameter_has_a_rule():
    shardings = sharding.param_shardings(sharding.make_mesh((2, 2, 2)), SHAPES)
    assert {name: spec(x) for name, x in shardings.items()} == {
        "model.embed_tokens.weight": ("tensor", "fsdp"),
        "lm_head.weight": ("fsdp", "tensor"),
        "model.layers.self_attn.q_proj.weight": (None, "fsdp", "tensor"),
        "model.layers.self_attn.k_proj.weight": (None, "fsdp", "tensor"),
        "model.layers.self_attn.v_proj.weight": (None, "fsdp", "tensor"),
        "model.layers.self_attn.o_proj.weight": (None, "tensor", "fsdp"),
        "model.layers.mlp.gate_proj.weight": (None, "fsdp", "tensor"),
        "model.layers.mlp.up_proj.weight": (None, "fsdp", "tensor"),
        "model.layers.mlp.down_proj.weight": (None, "tensor", "fsdp"),
        "model.layers.self_attn.q_norm.weight": (None, None),
        "model.layers.self_attn.k_norm.weight": (None, None),
        "model.layers.input_layernorm.weight": (None, None),
        "model.layers.post_attention_layernorm.weight": (None, None),
        "model.norm.weight": (None,),
    }


def test_optimiser_state_and_the_sampler_layout_follow_the_parameters():
    mesh = sharding.make_mesh((2, 2, 2))
    state = ({"mu": SHAPES, "count": jax.ShapeDtypeStruct((), jnp.int32)},)
    found = sharding.param_shardings(mesh, state)[0]
    assert spec(found["count"]) == ()
    assert found["mu"] == sharding.param_shardings(mesh, SHAPES)
    unstacked = sharding.param_shardings(mesh, jax.eval_shape(lambda p: qwen3.unstack(p, UNTIED), SHAPES))
    assert spec(unstacked.layers[1]["self_attn.o_proj.weight"]) == ("tensor", "fsdp")
    assert spec(unstacked.top["model.embed_tokens.weight"]) == ("tensor", "fsdp")


def test_unknown_names_and_axes_that_do_not_divide_are_refused():
    mesh = sharding.make_mesh((1, 8, 1))
    with pytest.raises(ConfigError, match="'adapter.weight': no sharding rule"):
        sharding.param_shardings(mesh, {"adapter.weight": jnp.ones((2, 2))})
    with pytest.raises(ConfigError, match=r"axis embed of 12 does not divide over mesh.fsdp=8, .* \[1, 2, 3, 4, 6\]"):
        sharding.param_shardings(mesh, {"model.embed_tokens.weight": jnp.ones((8, 12))})


def test_constraints_do_nothing_without_a_mesh_and_skip_axes_that_do_not_divide():
    x = jnp.ones((3, 8))
    assert sharding.constrain(x, "batch", "heads") is x
    with jax.set_mesh(sharding.make_mesh((2, 2, 2))):
        placed = jax.jit(lambda x: sharding.constrain(x, "batch", "heads"))(x)
    assert placed.sharding.shard_shape(placed.shape) == (3, 4)


def loss(params, tokens, positions, config):
    hidden, _ = qwen3.hidden_states(params, config, tokens, positions)
    logprobs = token_logprobs(params, config, hidden[:, :-1], tokens[:, 1:], 0.8, chunk=5)
    return -jnp.where(positions[:, 1:] >= 0, logprobs, 0.0).sum(), hidden


def rows():
    tokens = np.random.default_rng(0).integers(0, 48, (8, 11)).astype(np.int32)
    positions = np.broadcast_to(np.arange(11, dtype=np.int32), tokens.shape).copy()
    for row in range(8):
        positions[row, 11 - row // 2 :] = -1
    return tokens, positions


@pytest.mark.parametrize(
    "shape, attention, tied",
    [((2, 2, 2), "xla", True), ((1, 4, 2), "chunked_xla", False)],
    ids=["data_fsdp_tensor", "fsdp_tensor_chunked"],
)
@pytest.mark.full
def test_sharded_forward_loss_and_gradients_equal_unsharded(shape, attention, tied):
    config = ModelConfig(**(vars(CONFIG) | {"attention": attention, "attention_chunk": 4, "tied": tied}))
    params, batch = qwen3.init_params(jax.random.key(0), config), rows()
    step = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnames="config")
    (plain_loss, plain_hidden), plain = step(params, *batch, config=config)

    mesh = sharding.make_mesh(shape, n_kv_heads=config.n_kv_heads)
    placement = sharding.param_shardings(mesh, params)
    with jax.set_mesh(mesh):
        placed = jax.device_put(params, placement)
        (found_loss, hidden), gradients = step(
            placed, *jax.device_put(batch, sharding.batch_sharding(mesh)), config=config
        )

    name = "model.layers.mlp.up_proj.weight"
    assert placed[name].sharding.shard_shape(placed[name].shape) == (2, 16 // shape[1], 32 // shape[2])
    assert hidden.sharding.shard_shape(hidden.shape)[0] == 8 // (shape[0] * shape[1])
    np.testing.assert_allclose(found_loss, plain_loss, rtol=1e-6)
    np.testing.assert_allclose(hidden, plain_hidden, atol=1e-5)
    difference = sum(np.square(np.float64(gradients[n]) - np.float64(plain[n])).sum() for n in plain)
    norm = sum(np.square(np.float64(x)).sum() for x in plain.values())
    assert norm > 1 and np.sqrt(difference / norm) < 1e-5


def test_sharded_decoding_equals_the_full_forward():
    params, (tokens, positions) = qwen3.init_params(jax.random.key(0), CONFIG), rows()
    positions = np.broadcast_to(np.arange(11, dtype=np.int32), tokens.shape)
    forward = jax.jit(lambda params: logits(params, CONFIG, qwen3.hidden_states(params, CONFIG, tokens, positions)[0]))
    expected = forward(params)
    mesh = sharding.make_mesh((2, 2, 2), n_kv_heads=2)

    @jax.jit
    def prefill_and_decode(params, cache):
        prefilled, cache = qwen3.hidden_states(params, CONFIG, tokens[:, :10], positions[:, :10], cache)
        last, cache = qwen3.hidden_states(params, CONFIG, tokens[:, 10:], positions[:, 10:], cache)
        return logits(params, CONFIG, jnp.concatenate([prefilled, last], axis=1)), cache

    with jax.set_mesh(mesh):
        unstacked = qwen3.unstack(params, CONFIG)
        unstacked = jax.device_put(unstacked, sharding.param_shardings(mesh, unstacked))
        layout = jax.NamedSharding(mesh, sharding.partition_spec(("batch", "heads")))
        cache = jax.device_put(kv.init_cache(CONFIG, 8, 16), layout)
        found, cache = prefill_and_decode(unstacked, cache)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert cache[0][0].sharding.shard_shape(cache[0][0].shape) == (2, 1, 8, 16)


def test_batch_and_replicated_placements():
    mesh = sharding.make_mesh((2, 2, 2))
    assert spec(sharding.batch_sharding(mesh)) == (("data", "fsdp"),)
    assert sharding.replicated(mesh).spec == PartitionSpec()


def test_random_parameters_are_made_where_they_will_lie_and_are_the_same():
    mesh = sharding.make_mesh((2, 2, 2), n_kv_heads=2)
    shardings = sharding.param_shardings(mesh, SHAPES)
    made = qwen3.init_params(jax.random.key(3), UNTIED, shardings)
    plain = qwen3.init_params(jax.random.key(3), UNTIED)
    for name, leaf in made.items():
        assert leaf.sharding == shardings[name]
        np.testing.assert_allclose(leaf, plain[name], rtol=1e-6, atol=1e-7)


def whole_and_shards(sharded, shapes):
    """(name, bytes of the whole, bytes on each device) of every leaf."""
    leaves = jax.tree_util.tree_leaves_with_path(shapes)
    for (path, leaf), placed in zip(leaves, jax.tree.leaves(sharded), strict=True):
        on_each = math.prod(placed.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        yield jax.tree_util.keystr(path), math.prod(leaf.shape) * leaf.dtype.itemsize, on_each


FOUR_B = jax.eval_shape(lambda: qwen3.init_params(jax.random.key(0), QWEN3_4B))
FOUR_B_STATE = jax.eval_shape(Optimizer(OptimizerConfig()).init, FOUR_B)
MEBIBYTE = 2**20


@pytest.mark.parametrize("shape", [(1, 8, 1), (2, 2, 2), (1, 4, 2), (4, 2, 1)], ids=str)
def test_of_the_4b_nothing_over_a_mebibyte_is_whole_on_a_device(shape):
    """Parameters, which a gradient and the reference lie like, moments, and the stacked and unstacked layouts."""
    mesh, (_, fsdp, tensor) = sharding.make_mesh(shape, devices=jax.devices(), n_kv_heads=8), shape
    unstacked = jax.eval_shape(lambda params: qwen3.unstack(params, QWEN3_4B), FOUR_B)
    for tree in (FOUR_B, FOUR_B_STATE, unstacked):
        for name, whole, on_each in whole_and_shards(sharding.param_shardings(mesh, tree), tree):
            is_norm_or_count = "norm" in name or "count" in name
            assert on_each == (whole if is_norm_or_count else whole // (fsdp * tensor)), name
            assert not is_norm_or_count or whole < MEBIBYTE, name
    state = whole_and_shards(sharding.param_shardings(mesh, (FOUR_B, FOUR_B_STATE)), (FOUR_B, FOUR_B_STATE))
    assert sum(on_each for *_, on_each in state) < 1.001 * 12 * 4_022_468_096 / (fsdp * tensor)


def test_what_is_whole_by_design():
    """Under data parallelism alone every device holds all; a sampler's copy is split over `tensor` only."""
    mesh = sharding.make_mesh((8, 1, 1))
    for _, whole, on_each in whole_and_shards(sharding.param_shardings(mesh, FOUR_B), FOUR_B):
        assert on_each == whole
    mesh = sharding.make_mesh((2, 2, 2))
    for name, whole, on_each in whole_and_shards(sharding.sampler_shardings(mesh, FOUR_B), FOUR_B):
        assert on_each == (whole if "norm" in name else whole // 2)


def test_axes_in_one_table():
    """Every rule speaks of axes in the table, and no array has one mesh axis twice."""
    for name, logical in sharding.PARAMETER_AXES.items():
        used = [axis for each in logical for axis in sharding.LOGICAL_AXES[each]]
        assert len(used) == len(set(used)) and set(used) <= set(sharding.MESH_AXES), name


@pytest.mark.parametrize(
    "change, message",
    [
        ({"d_model": 12}, r"axis embed of 12 does not divide over mesh.fsdp=8, .* one of \[1, 2, 3, 4, 6\]"),
        ({"d_ff": 30}, r"axis mlp of 30 does not divide over mesh.tensor=4, .* \[1, 2, 3, 5, 6\]"),
        (
            {"vocab_size": 50},
            r"axis vocab of 50 does not divide over mesh.tensor=4, .* \[1, 2, 5\]",
        ),
    ],
)
def test_models_that_do_not_divide_are_refused_with_the_legal_sizes(change, message):
    mesh = sharding.make_mesh((1, 8, 1) if "d_model" in change else (1, 2, 4))
    config = ModelConfig(**(vars(CONFIG) | {"n_kv_heads": 4} | change))
    with pytest.raises(ConfigError, match=message):
        sharding.param_shardings(mesh, jax.eval_shape(lambda: qwen3.init_params(jax.random.key(0), config)))
