"""Attention kernels through the compiler of an accelerator that is not here, at Qwen3-4B's heads and the longest rows.

    python tests/benchmarks/attention_aot.py --target v5e:2x2
    python tests/benchmarks/attention_aot.py --target a100 --backend pallas_gpu

Compiles the gradient of one layer's attention on a mesh of (1, n/2, 2), packed rows, and prints the kernels in the
program and the bytes of its temporaries on a device. The TPU compiler makes the kernels' machine code, and refuses
blocks that do not fit in a core; the CUDA compiler stops before that. memory_aot.py says which packages this takes.
Nothing is run.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"
for name, value in (
    ("TPU_SKIP_MDS_QUERY", "1"),
    ("TPU_WORKER_HOSTNAMES", "localhost"),
    ("TPU_ACCELERATOR_TYPE", "v5p-16"),
):
    os.environ.setdefault(name, value)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

sys.path[:0] = [str(pathlib.Path(__file__).parents[2]), str(pathlib.Path(__file__).parent)]
from rw.model.attention import attend  # noqa: E402
from rw.sharding import make_mesh, partition_spec  # noqa: E402

HEADS, KV_HEADS = 32, 8
KERNELS = re.compile(r"tpu_custom_call|triton")
SHAPES = ((2048, 128, jnp.bfloat16), (18432, 128, jnp.bfloat16), (18432, 128, jnp.float32), (1000, 64, jnp.bfloat16))


def compiled(mesh, backend: str, length: int, head_dim: int, dtype):
    """The compiled gradient, one row a device."""
    rows = mesh.shape["data"] * mesh.shape["fsdp"]

    def shape(size, dtype, *axes):
        sharding = jax.sharding.NamedSharding(mesh, partition_spec(axes))
        return jax.ShapeDtypeStruct(size, dtype, sharding=sharding)

    def loss(query, key, value, index, segments):
        options = {"backend": backend, "whole_rows": True}
        return attend(query, key, value, index, index, segments, segments, **options).astype(jnp.float32).sum()

    arguments = (
        shape((rows, length, HEADS, head_dim), dtype, "batch", "length", "heads", "width"),
        shape((rows, KV_HEADS, length, head_dim), dtype, "batch", "heads", "length", "width"),
        shape((rows, KV_HEADS, head_dim, length), dtype, "batch", "heads", "width", "length"),
        *[shape((rows, length), jnp.int32, "batch", "length")] * 2,
    )
    with jax.set_mesh(mesh):  # tells which platform is compiled for
        return jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*arguments).compile()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="v5e:2x2", help="a100, or a TPU topology such as v5p:2x2x1")
    parser.add_argument("--backend", default="splash")
    arguments = parser.parse_args()
    sys.argv[1:] = []  # memory_aot reads them where it is imported
    from memory_aot import devices_of

    devices = devices_of(arguments.target, 4)
    mesh = make_mesh((1, len(devices) // 2, 2), devices)
    for length, head_dim, dtype in SHAPES:
        started = time.perf_counter()
        program = compiled(mesh, arguments.backend, length, head_dim, dtype)
        print(
            f"{arguments.target} {arguments.backend}: {length} tokens, head_dim {head_dim}, {jnp.dtype(dtype).name}: "
            f"{len(KERNELS.findall(program.as_text()))} mentions of kernels, temporaries "
            f"{program.memory_analysis().temp_size_in_bytes / 2**20:.1f} MiB a device, "
            f"{time.perf_counter() - started:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
