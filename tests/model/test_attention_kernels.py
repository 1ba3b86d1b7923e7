"""Kernels of accelerators without one: interpreted, or by their references, against plain attention; and compiled as
far as this machine can, to the programs that the accelerator's compiler is given."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.gpu import attention as gpu_kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as tpu_kernel

from rw.errors import ConfigError
from rw.model import attention, attention_kernels
from rw.model.attention import attend, check_backend, check_config
from rw.model.config import ModelConfig
from rw.sharding import make_mesh

B, T, H, N, HEAD = 4, 150, 4, 2, 16  # T is no multiple of any block
random = np.random.default_rng(0)
QUERY = random.normal(size=(B, T, H, HEAD)).astype(np.float32)
KEY = random.normal(size=(B, N, T, HEAD)).astype(np.float32)
VALUE = random.normal(size=(B, N, HEAD, T)).astype(np.float32)
WEIGHTS = random.normal(size=QUERY.shape).astype(np.float32)
RIGHT = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T)).copy()
RIGHT[1, 70:] = RIGHT[2, 3:] = RIGHT[3] = -1  # rows of 150, 70, 3 and no tokens, padded on the right
EITHER = RIGHT.copy()
EITHER[0, :20] = EITHER[1, :10] = -1  # and on the left
SEGMENTS = np.searchsorted([30, 31, 100, 140], np.arange(T), side="right").astype(np.int32)  # one of a single token
SEGMENTS = np.where(EITHER < 0, 0, 1 + np.broadcast_to(SEGMENTS, (B, T)))

INTERPRETED = {
    "splash": partial(attention_kernels.splash, interpret=True),
    "pallas_gpu": partial(attention_kernels.pallas_gpu, interpret=True),
    "cudnn": partial(attention_kernels.cudnn, implementation="xla"),
}
FULL = pytest.mark.full
CASES = [
    pytest.param("splash", EITHER, None, id="splash-padded", marks=FULL),
    pytest.param("splash", EITHER, SEGMENTS, id="splash-packed"),
    pytest.param("pallas_gpu", EITHER, None, id="pallas_gpu-padded", marks=FULL),
    pytest.param("pallas_gpu", EITHER, SEGMENTS, id="pallas_gpu-packed"),
    pytest.param("cudnn", RIGHT, None, id="cudnn-padded"),
]


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """Each program runs once, on little."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def everywhere(monkeypatch):
    """Kernels run here, interpreted, as if every platform had them."""
    monkeypatch.setattr(attention, "check_backend", lambda backend: None)
    monkeypatch.setattr(attention, "KERNELS", INTERPRETED)
    for name in INTERPRETED:
        monkeypatch.setitem(attention_kernels.DTYPES, name, ("float32", "bfloat16"))


def total(arrays, index, segments, backend):
    """(a weighted sum of the outputs that every query with keys adds to, the outputs)."""
    out = attend(*arrays, index, index, segments, segments, backend=backend, whole_rows=True)
    return (out.astype(jnp.float32) * WEIGHTS[: out.shape[0]]).sum(), out


def run(backend, index, segments, dtype=np.float32):
    arrays = tuple(jnp.asarray(x, dtype) for x in (QUERY, KEY, VALUE))
    (_, out), gradients = jax.jit(jax.value_and_grad(total, has_aux=True), static_argnums=3)(
        arrays, index, segments, backend
    )
    return out, gradients


@pytest.mark.parametrize("backend, index, segments", CASES)
def test_outputs_and_gradients_are_those_of_plain_attention(backend, index, segments, everywhere):
    expected, expected_gradients = run("xla", index, segments)
    out, gradients = run(backend, index, segments)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    assert np.all(np.asarray(out)[index < 0] == 0)
    for found, gradient in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(found, gradient, atol=3e-5)


@pytest.mark.full
@pytest.mark.parametrize("backend, index, segments", CASES)
def test_bfloat16_differs_by_its_rounding(backend, index, segments, everywhere):
    expected, expected_gradients = run("xla", index, segments)
    out, gradients = run(backend, index, segments, jnp.bfloat16)
    assert out.dtype == jnp.bfloat16 and all(gradient.dtype == jnp.bfloat16 for gradient in gradients)
    for found, gradient in zip((out, *gradients), (expected, *expected_gradients), strict=True):
        difference = np.linalg.norm(np.asarray(found, np.float32) - gradient) / np.linalg.norm(gradient)
        assert difference < 0.02


@pytest.mark.full
@pytest.mark.parametrize("backend", ["splash", "pallas_gpu"])
def test_a_changed_sequence_changes_no_bit_of_another(backend, everywhere):
    changed = SEGMENTS == 2
    before = run(backend, EITHER, SEGMENTS)[0]
    others = np.where(changed[..., None, None], QUERY[:, ::-1], QUERY)
    keys, values = (np.where(changed[:, None, :, None], 3.0, KEY), np.where(changed[:, None, None], -2.0, VALUE))
    arrays = tuple(jnp.asarray(x, jnp.float32) for x in (others, keys, values))
    _, after = jax.jit(total, static_argnums=3)(arrays, EITHER, SEGMENTS, backend)
    assert np.all(np.asarray(before == after)[~changed])


@pytest.mark.full
def test_the_reference_of_the_tpu_kernel_agrees(everywhere):
    """Its authors' masked reference, one row at a time."""
    mask = np.broadcast_to(np.tril(np.ones((T, T), bool)), (H, T, T))
    reference = tpu_kernel.make_masked_mha_reference(mask)
    out, _ = run("splash", EITHER, SEGMENTS)
    for b in range(B):
        ids = np.where(EITHER[b] < 0, -1, SEGMENTS[b])
        query = QUERY[b].transpose(1, 0, 2) * HEAD**-0.5
        expected = reference(query, KEY[b], VALUE[b].transpose(0, 2, 1), tpu_kernel.SegmentIds(ids, ids))
        real = EITHER[b] >= 0
        np.testing.assert_allclose(out[b][real], expected.transpose(1, 0, 2)[real], atol=1e-5)


@pytest.mark.full
def test_the_gpu_kernel_itself_is_wrong_where_heads_share_keys():
    """Why keys are repeated before it: alone it gives numbers that are not attention, and no error."""
    shape = (1, 128, 4, 16)
    query = random.normal(size=shape).astype(np.float32)
    key, value = (random.normal(size=(1, 128, 2, 16)).astype(np.float32) for _ in range(2))
    ids = jnp.zeros((1, 128), jnp.int32)
    right = attention_kernels.pallas_gpu(query, key, value, ids, interpret=True)
    repeated = (np.repeat(x, 2, axis=2) for x in (key, value))
    expected = gpu_kernel.mha_reference(query, *repeated, ids, sm_scale=0.25, causal=True)
    np.testing.assert_allclose(right, expected, atol=1e-5)
    wrong = gpu_kernel.mha(query, key, value, ids, sm_scale=0.25, causal=True, interpret=True)
    assert np.abs(wrong - expected).max() > 0.1


@pytest.mark.parametrize("index", [EITHER, np.where(np.arange(T) == 5, -1, RIGHT)], ids=["left", "within"])
def test_cudnn_answers_nan_where_padding_precedes_a_token(index, everywhere):
    out, _ = run("cudnn", index.astype(np.int32), None)
    right = np.array([(row >= 0)[: (row >= 0).sum()].all() for row in index])
    assert not right.all()
    for row, is_right in zip(np.asarray(out), right, strict=True):
        assert np.isfinite(row).all() if is_right else np.isnan(row).any()


@pytest.mark.full
@pytest.mark.parametrize("backend", list(INTERPRETED))
def test_on_a_mesh_each_device_runs_its_rows_and_heads(backend, everywhere):
    expected, expected_gradients = run("xla", RIGHT, None)
    with jax.set_mesh(make_mesh((2, 2, 2))):
        out, gradients = run(backend, RIGHT, None)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    for found, gradient in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(found, gradient, atol=3e-5)


def test_rows_and_heads_that_do_not_divide_over_the_mesh_are_refused(everywhere):
    def shape_of(rows, kv_heads):
        shapes = [(rows, T, H, HEAD), (rows, kv_heads, T, HEAD), (rows, kv_heads, HEAD, T)]
        arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        index = jax.ShapeDtypeStruct((rows, T), jnp.int32)
        jax.eval_shape(partial(attend, backend="splash", whole_rows=True), *arrays, index, index)

    with jax.set_mesh(make_mesh((2, 2, 2))):
        shape_of(4, 2)
        with pytest.raises(ConfigError, match="3 rows do not divide over 4 devices"):
            shape_of(3, 2)
        with pytest.raises(ConfigError, match="1 key/value heads do not divide over 2 devices"):
            shape_of(4, 1)


# A cache


@pytest.mark.parametrize("backend, length", [("splash", 3), ("pallas_gpu", 1), ("cudnn", 1)])
def test_a_cache_is_read_by_built_in_attention(backend, length):
    """On any platform: nothing here is replaced, and this one has no kernel."""
    at = np.array([[4, 5, 6], [0, 1, 2], [10, 11, 12], [7, 8, -1]], np.int32)[:, :length]
    keys = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T))
    found, expected = (
        attend(QUERY[:, :length], KEY, VALUE, at, keys, backend=name) for name in (backend, "chunked_xla")
    )
    np.testing.assert_array_equal(found, expected)


# What is refused


@pytest.mark.parametrize("backend", list(INTERPRETED))
def test_a_kernel_is_refused_on_another_platform(backend):
    choices = {
        "cpu": "xla, chunked_xla",
        "tpu": "splash, xla, chunked_xla",
        "gpu": "pallas_gpu, cudnn, xla, chunked_xla",
    }
    for platform, names in choices.items():
        if backend in names:
            check_backend(backend, platform)
            continue
        with pytest.raises(ConfigError, match=f"'{backend}': not available on {platform}; choose one of {names}$"):
            check_backend(backend, platform)
    with pytest.raises(ConfigError, match=f"'{backend}': not available on cpu"):
        run(backend, RIGHT, None)
    for built_in in ("xla", "chunked_xla"):
        check_backend(built_in, "tpu")


@pytest.mark.parametrize("backend", ["pallas_gpu", "cudnn"])
def test_gpus_that_are_too_old_are_refused(backend, monkeypatch):
    class Device:
        compute_capability = "gfx90a"

    monkeypatch.setattr(attention, "_platform", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    for capability in ("7.0", "gfx90a"):
        Device.compute_capability = capability
        with pytest.raises(
            ConfigError, match=f"'{backend}': needs a GPU .* 8.0 .* has {capability}; choose one of xla"
        ):
            check_backend(backend)
    check_backend("chunked_xla")
    for capability in ("8.0", "12.0"):
        Device.compute_capability = capability
        check_backend(backend)


def config_of(**fields):
    shape = {"vocab_size": 8, "d_model": 8, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2, "d_ff": 8, "rope_theta": 1e4}
    return ModelConfig(**{**shape, "head_dim": 128, "compute_dtype": "bfloat16", **fields})


@pytest.mark.parametrize(
    ("fields", "packed", "message"),
    [
        (
            {"attention": "cudnn"},
            True,
            "'cudnn' with batch.packing='packed': .*set batch.packing='none', or use pallas",
        ),
        ({"attention": "cudnn", "compute_dtype": "float32"}, False, "compute in float32: .*one of bfloat16, float16"),
        ({"attention": "cudnn", "head_dim": 256}, False, "head_dim of at most 128 that 8 divides, not 256: use pallas"),
        ({"attention": "cudnn", "head_dim": 20}, False, "not 20"),
        ({"attention": "pallas_gpu", "head_dim": 8}, False, "head_dim of at least 16, not 8"),
        ({"attention": "splash", "compute_dtype": "float16"}, False, "compute in float16: .*one of float32, bfloat16"),
        ({"attention": "pallas_gpu", "compute_dtype": "float64"}, True, "compute in float64"),
    ],
)
def test_what_no_machine_can_do_is_refused_from_the_config(fields, packed, message):
    with pytest.raises(ConfigError, match=message):
        check_config(config_of(**fields), packed)


def test_all_else_is_allowed():
    for name, packed in (
        ("splash", True),
        ("pallas_gpu", True),
        ("cudnn", False),
        ("xla", True),
        ("chunked_xla", True),
    ):
        assert check_config(config_of(attention=name), packed) is None, name
    assert check_config(config_of(attention="xla", compute_dtype="float64", head_dim=2), True) is None


def test_inputs_are_refused_where_no_config_was_checked(monkeypatch):
    monkeypatch.setattr(attention, "check_backend", lambda backend: None)
    with pytest.raises(ConfigError, match="'cudnn' does not compute in float32"):
        run("cudnn", RIGHT, None)
    with pytest.raises(ConfigError, match="'cudnn' with batch.packing='packed'"):
        run("cudnn", RIGHT, SEGMENTS, jnp.bfloat16)


# As far as this machine can compile


def lowered(kernel, platform, rows=1, length=18432, heads=32, kv_heads=8, head_dim=128, dtype=jnp.bfloat16):
    """The program of a gradient at Qwen3-4B's shape, as the platform's own compiler receives it."""
    query = jax.ShapeDtypeStruct((rows, length, heads, head_dim), dtype)
    key = jax.ShapeDtypeStruct((rows, length, kv_heads, head_dim), dtype)
    segments = jax.ShapeDtypeStruct((rows, length), jnp.int32)

    def loss(query, key, value, segments):
        return kernel(query, key, value, segments).astype(jnp.float32).sum()

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
    return gradient.trace(query, key, key, segments).lower(lowering_platforms=(platform,)).as_text()


def assert_no_array_of_pairs(text, length=18432):
    assert f"{length}x{length}" not in text


@pytest.mark.parametrize("shape", [{}, {"length": 1000, "head_dim": 64}, {"dtype": jnp.float32}])
def test_the_tpu_kernel_lowers_to_its_forward_and_backward_programs(shape):
    text = lowered(attention_kernels.splash, "tpu", **shape)
    assert text.count("@tpu_custom_call") == 3
    assert_no_array_of_pairs(text)


@pytest.mark.parametrize("shape", [{}, {"length": 1000, "head_dim": 64}, {"dtype": jnp.float32}])
def test_the_gpu_kernel_lowers_to_its_forward_and_backward_programs(shape):
    text = lowered(attention_kernels.pallas_gpu, "cuda", **shape)
    assert text.count("xla.gpu.triton") == 3
    assert_no_array_of_pairs(text)


def test_cudnn_lowers_to_its_forward_and_backward_calls(monkeypatch):
    # The library itself is asked for its version first, and is not here.
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)
    text = lowered(attention_kernels.cudnn, "cuda")
    assert text.count("__cudnn$fmhaSoftmax") == text.count("@__cudnn$fmhaSoftmaxBackward") * 2 == 2
    assert_no_array_of_pairs(text)


MESH_CALLS = [
    ("splash", "tpu", ("@tpu_custom_call",) * 3, "tensor<2x16x18432x128xbf16>"),
    ("pallas_gpu", "cuda", ("xla.gpu.triton",) * 3, "tensor<2x18432x16x128xbf16>"),
    ("cudnn", "cuda", ("fmhaSoftmax(", "fmhaSoftmaxBackward("), "tensor<2x18432x16x128xbf16>"),
]


@pytest.mark.parametrize("backend, platform, calls, part", MESH_CALLS, ids=[case[0] for case in MESH_CALLS])
def test_the_same_programs_are_within_each_devices_part_of_a_mesh(backend, platform, calls, part, monkeypatch):
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)
    kernel = partial(attention_kernels.on_mesh, getattr(attention_kernels, backend))
    with jax.set_mesh(make_mesh((2, 2, 2))):
        text = lowered(kernel, platform, rows=8)
    assert all(text.count(call) == calls.count(call) for call in calls)
    assert part in text  # 2 of 8 rows, 16 of 32 heads
