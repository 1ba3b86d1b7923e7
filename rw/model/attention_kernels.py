"""Attention kernels of accelerators, for whole rows: forward and backward without an array of [T, T].

Each takes a row's own tokens in order and who belongs together, and knows no cache and no positions: a query reads the
keys up to its own place whose segment is its own. What a kernel cannot do is refused by `check_inputs`, since some of
them would answer wrongly instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.gpu import attention as gpu_kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as tpu_kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as tpu_mask

from rw.errors import ConfigError
from rw.sharding import LOGICAL_AXES, MESH_AXES, partition_spec

PADDING_SEGMENT = jnp.iinfo(jnp.int32).min  # of tokens that no real token may read
GPU = ("gpu", "cuda")
PLATFORMS: dict[str, tuple[str, ...]] = {"splash": ("tpu",), "pallas_gpu": GPU, "cudnn": GPU}
DTYPES: dict[str, tuple[str, ...]] = {
    "splash": ("float32", "bfloat16"),
    "pallas_gpu": ("float32", "bfloat16", "float16"),
    "cudnn": ("bfloat16", "float16"),
}
_TPU_BLOCKS = (512, 256, 128)  # queries and keys of a block; 128 is the least, larger ones keep the matrix unit busy
_GPU_BLOCK = 128
_GPU_SMALLEST_HEAD = 16  # the least that its matrix unit multiplies
_CUDNN_LARGEST_HEAD, _CUDNN_HEAD_MULTIPLE = 128, 8

Kernel = Callable[..., jax.Array]


def check_inputs(backend: str, dtype, head_dim: int, packed: bool) -> None:
    """Raises ConfigError, with the fix, where a kernel cannot take such inputs on any machine."""
    name, dtype = f"model.attention={backend!r}", jnp.dtype(dtype).name
    if dtype not in DTYPES[backend]:
        raise ConfigError(
            f"{name} does not compute in {dtype}: set model.compute_dtype to one of {', '.join(DTYPES[backend])}, "
            "or use chunked_xla"
        )
    if backend == "cudnn" and packed:
        raise ConfigError(
            f"{name} with batch.packing='packed': its tokens would see those of other sequences; "
            "set batch.packing='none', or use pallas_gpu"
        )
    if backend == "cudnn" and (head_dim > _CUDNN_LARGEST_HEAD or head_dim % _CUDNN_HEAD_MULTIPLE):
        raise ConfigError(
            f"{name} takes a model.head_dim of at most {_CUDNN_LARGEST_HEAD} that {_CUDNN_HEAD_MULTIPLE} divides, "
            f"not {head_dim}: use pallas_gpu or chunked_xla"
        )
    if backend == "pallas_gpu" and head_dim < _GPU_SMALLEST_HEAD:
        raise ConfigError(
            f"{name} takes a model.head_dim of at least {_GPU_SMALLEST_HEAD}, not {head_dim}: use chunked_xla"
        )


def splash(query, key, value, segments, *, interpret: bool = False):
    """The TPU kernel. Blocks above the diagonal are skipped.

    Args:
        query: [B, T, H, hd]. key, value: [B, T, N, hd], N divides H. segments: i32[B, T], PADDING_SEGMENT in padding.
        interpret: run on any platform, slowly.

    Returns:
        [B, T, H, hd] in the dtype of `query`; without meaning, but finite, in padding.
    """
    length, heads, head_dim = query.shape[1:]
    padded = -(-length // _TPU_BLOCKS[-1]) * _TPU_BLOCKS[-1]
    block = next(size for size in _TPU_BLOCKS if padded % size == 0)
    names = ("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute")
    # Not its fused backward pass, which holds the queries' gradient once for every block of keys.
    sizes = tpu_kernel.BlockSizes(**dict.fromkeys((*names, "block_q_dq", "block_kv_dq"), block))
    mask = tpu_mask.MultiHeadMask([tpu_mask.CausalMask((padded, padded))] * heads)
    kernel = tpu_kernel.make_splash_mha(mask, head_shards=1, q_seq_shards=1, block_sizes=sizes, interpret=interpret)
    scaled = (query.astype(jnp.float32) * head_dim**-0.5).astype(query.dtype)  # the kernel does not scale
    rows = (_pad(x, padded).transpose(0, 2, 1, 3) for x in (scaled, key, value))
    ids = _pad(segments, padded, PADDING_SEGMENT)
    out = jax.vmap(lambda q, k, v, s: kernel(q, k, v, tpu_kernel.SegmentIds(s, s)))(*rows, ids)
    return out.transpose(0, 2, 1, 3)[:, :length]


def pallas_gpu(query, key, value, segments, *, interpret: bool = False):
    """The Triton kernel; arguments and result as of `splash`.

    Keys and values are repeated for the queries that share them: with fewer of them the kernel reads beyond its heads.
    """
    length, heads, head_dim = query.shape[1:]
    padded = -(-length // _GPU_BLOCK) * _GPU_BLOCK
    key, value = (jnp.repeat(x, heads // x.shape[2], axis=2) for x in (key, value))
    # In float32 a block of 128 by 128 would not fit in shared memory.
    block = _GPU_BLOCK if query.dtype.itemsize == 2 else _GPU_BLOCK // 2
    sizes = gpu_kernel.BlockSizes(block, block, block_q_dkv=32, block_kv_dkv=32, block_q_dq=32, block_kv_dq=32)
    out = gpu_kernel.mha(
        *(_pad(x, padded) for x in (query, key, value)),
        _pad(segments, padded, PADDING_SEGMENT),
        sm_scale=head_dim**-0.5,
        causal=True,
        block_sizes=sizes,
        interpret=interpret,
    )
    return out[:, :length]


def cudnn(query, key, value, segments, *, implementation: str = "cudnn"):
    """cuDNN's kernel, which knows a row's length and nothing else of padding; arguments and result as of `splash`.

    Padding must follow a row's tokens: a row in which it does not is NaN, which no step learns from, rather than wrong.
    `implementation`: "xla" gives the same by plain arrays, on any platform.
    """
    real = segments != PADDING_SEGMENT
    lengths = real.sum(-1, dtype=jnp.int32)
    trailing = (real == (jnp.arange(real.shape[1]) < lengths[:, None])).all(-1)
    # Neither what it reads nor what its backward pass leaves in padding may matter.
    query, key, value = (jnp.where(real[..., None, None], x, 0) for x in (query, key, value))
    lengths = jnp.maximum(lengths, 1)  # a row of padding alone has no softmax
    out = jax.nn.dot_product_attention(
        query,
        key,
        value,
        is_causal=True,
        query_seq_lengths=lengths,
        key_value_seq_lengths=lengths,
        implementation=implementation,
    )
    return jnp.where(trailing[:, None, None, None], out, jnp.nan)


def on_mesh(kernel: Kernel, query, key, value, segments):
    """`kernel` of these arrays; where a mesh is set, each device runs it on its own rows and heads.

    Raises:
        ConfigError: rows or heads do not divide over the mesh. A compiler cannot split a kernel by itself.
    """
    if not _mesh_is_set():
        return kernel(query, key, value, segments)
    for size, axis, what in ((query.shape[0], "batch", "rows"), (key.shape[2], "heads", "key/value heads")):
        if size % mesh_ways(axis):
            raise ConfigError(f"attention kernels: {size} {what} do not divide over {mesh_ways(axis)} devices")
    heads, rows = partition_spec(("batch", "length", "heads", "width")), partition_spec(("batch", "length"))
    split = jax.shard_map(kernel, in_specs=(heads, heads, heads, rows), out_specs=heads, check_vma=False)
    return split(query, key, value, segments)


def mesh_ways(axis: str) -> int:
    """Into how many parts the mesh that is set, if any, splits a logical axis."""
    if not _mesh_is_set():
        return 1
    return math.prod(jax.sharding.get_abstract_mesh().shape[name] for name in LOGICAL_AXES[axis])


def _mesh_is_set() -> bool:
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and all(name in mesh.axis_names for name in MESH_AXES)


def _pad(x, length: int, fill=0):
    """x [B, T, …] with T filled up to `length`."""
    widths = [(0, length - x.shape[1] if axis == 1 else 0) for axis in range(x.ndim)]
    return jnp.pad(x, widths, constant_values=fill)
