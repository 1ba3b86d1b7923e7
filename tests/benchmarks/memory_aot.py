"""The estimate of rw/memory.py beside the compiler: the programs of a run, compiled for devices that are not here.

    python tests/benchmarks/memory_aot.py --target a100 --mesh 1,1,8 model.attention=chunked_xla
    python tests/benchmarks/memory_aot.py --target v5p:2x2x2 --mesh 1,2,4 model.attention=splash
    python tests/benchmarks/memory_aot.py --target v5e:4x8 --mesh 1,8,4 model.attention=splash

Compiles the real programs of a step (gradient sum, update, reference log-probs, publishing, a decode dispatch) from
shapes alone and prints the bytes that each needs on every device: `held` are its arguments, `temporaries` what it adds.
A CPU is all it takes, with JAX's TPU package for v4 to v6e, and its CUDA plugin (jax-cuda13-plugin and jax-cuda13-pjrt,
installed with --no-deps) for `a100`. Give each a virtual environment of its own. The CUDA compiler runs without a card,
so without cuDNN: take `chunked_xla` there. It plans memory but makes no machine code, and says nothing about speed.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import pathlib
import resource
import sys
import time


def parse(argv=None) -> argparse.Namespace:
    """What to compile for what."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/qwen3_4b.py")
    parser.add_argument("--target", default="a100", help="a100, a TPU topology such as v5p:2x2x2, or cpu")
    parser.add_argument("--mesh", default="", help="data,fsdp,tensor; default: the config's")
    parser.add_argument("--length", type=int, default=0, help="tokens of a row; default: the config's longest")
    parser.add_argument("--policy", type=int, default=2048, help="policy tokens of a row")
    parser.add_argument("--programs", default="gradient,update,reference,publish,decode")
    parser.add_argument("overrides", nargs="*", help="section.key=value of the config")
    return parser.parse_args(argv)


ARGUMENTS = parse()
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5p-16")
if ARGUMENTS.target == "cpu":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={math.prod(map(int, ARGUMENTS.mesh.split(',')))}"
if ARGUMENTS.target == "a100":
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_autotune_level=0"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import topologies  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from rw.config import load_config  # noqa: E402
from rw.core.advantages import ADVANTAGES, AdvantageConfig  # noqa: E402
from rw.learner.batch import empty_micro_batch  # noqa: E402
from rw.learner.optimizer import Optimizer  # noqa: E402
from rw.learner.programs import GradientSum, make_update  # noqa: E402
from rw.learner.publish import _copy_unstacked  # noqa: E402
from rw.learner.step import LOSS_TERMS, Learner, LearnerConfig  # noqa: E402
from rw.memory import device_memory  # noqa: E402
from rw.model.cache import init_cache  # noqa: E402
from rw.model.qwen3 import shapes_of, unstack  # noqa: E402
from rw.sampler import decode  # noqa: E402
from rw.sampler.pages import pages_for  # noqa: E402
from rw.sharding import MESH_AXES, batch_sharding, make_mesh, param_shardings, replicated, sampler_shardings  # noqa: E402
from rw.types import TokenCounts, TrainState  # noqa: E402

GIB = 2**30
DECODE_ROWS = {"words": ((4,), jnp.uint32)}  # the others are one i32 a row
END_TOKENS = (1, 2)  # any two
A100 = f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 167936 threads_per_core_limit: 2048 core_count: 108 fpus_per_core: 64
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 2039000000000 l2_cache_size: 41943040 clock_rate_ghz: 1.41
  device_memory_size: {80 * GIB} shared_memory_per_block_optin: 166912
  cuda_compute_capability {{ major: 8 }} registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
device_description_str: "NVIDIA A100-SXM4-80GB"
"""


def devices_of(target: str, count: int):
    """`count` devices of a topology; none of them need be here."""
    if target == "cpu":
        return jax.devices()
    if target == "a100":
        shape = {"target_config": A100, "topology": f"1x1x{count}"}
        return topologies.get_topology_desc(platform="cuda", topology_name="a100", **shape).devices
    return topologies.get_topology_desc(platform="tpu", topology_name=target).devices


def placed(tree, shardings):
    """Shapes with shardings."""
    return jax.tree.map(lambda leaf, s: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=s), tree, shardings)


class Programs:
    """The programs of a step for one mesh, lowered from shapes."""

    def __init__(self, config, mesh, length: int, policy: int):
        self.config, self.mesh = config, mesh
        self.optimizer = Optimizer(config.optimizer)
        shapes = shapes_of(config.model)
        self.shardings = param_shardings(mesh, shapes)
        self.params = placed(shapes, self.shardings)
        learning = LearnerConfig(config.batch, config.loss, AdvantageConfig(0.0), ADVANTAGES["comet"])
        with jax.set_mesh(mesh):  # tells which platform is compiled for
            self.learner = Learner(config.model, self.optimizer, {}, learning)
        micro = empty_micro_batch(length, min(policy, length), config.batch)
        self.micro = self._all(jax.tree.map(np.asarray, micro), batch_sharding(mesh))

    def _all(self, tree, sharding):
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype, sharding=sharding), tree)

    def gradient(self):
        total = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding), self.params)
        counts = TokenCounts(*(np.float32(1),) * 3)
        weights = np.zeros(len(LOSS_TERMS), np.float32)
        program = GradientSum(self.learner.loss.divided, self.shardings)._add
        return program.lower(total, self.params, self.micro, counts, weights)

    def update(self):
        moments = jax.eval_shape(self.optimizer.init, self.params)
        moments = placed(moments, param_shardings(self.mesh, moments))
        scalar = self._all(np.int32(0), replicated(self.mesh))
        rng = self._all(np.zeros(2, np.uint32), replicated(self.mesh))
        skips = self._all(np.zeros(2, np.int32), replicated(self.mesh))
        state = TrainState(self.params, moments, scalar, scalar, rng, skips)
        return make_update(self.optimizer).lower(state, self.params, np.float32(0))

    def reference(self):
        return jax.jit(self.learner.loss.logprobs).lower(self.params, self.micro)

    def _published(self):
        layout = jax.eval_shape(lambda params: unstack(params, self.config.model), self.params)
        return layout, sampler_shardings(self.mesh, layout)

    def publish(self):
        _, shardings = self._published()
        program = jax.jit(_copy_unstacked, static_argnames="model_config", out_shardings=shardings)
        return program.lower(self.params, self.config.model)

    def decode(self):
        """The widest dispatch on the longest rows, heads of the cache split over tensor."""
        engine, model = self.config.engine, self.config.model
        width = engine.decode_widths[-1]
        cache = jax.eval_shape(lambda: init_cache(model, width, engine.longest))
        heads = jax.NamedSharding(self.mesh, jax.P(None, "tensor"))
        cache = placed(cache, jax.tree.map(lambda _: heads, cache))

        def whole(shape, dtype):
            return jax.ShapeDtypeStruct(shape, dtype, sharding=replicated(self.mesh))

        kinds = [DECODE_ROWS.get(name, ((), jnp.int32)) for name in decode.DecodeRows._fields]
        rows = decode.DecodeRows(*(whole((width, *rest), dtype) for rest, dtype in kinds))
        places = decode.InRows(whole((width,), jnp.int32))  # the layout of accelerators
        steps, page = engine.steps_per_dispatch, engine.page_tokens
        how = (self.config.sampling, model.vocab_size, END_TOKENS, steps, page, pages_for(steps, page) + 1)
        key = whole((2,), jnp.uint32)
        return decode.decode.lower(placed(*self._published()), cache, key, rows, places, model, *how)


def measure(lowered) -> dict[str, float]:
    """GiB that a compiled program needs on each device, and how long that took to find out."""
    start = time.monotonic()
    found = lowered.compile().memory_analysis()
    return {
        "held": found.argument_size_in_bytes / GIB,
        "temporaries": found.temp_size_in_bytes / GIB,
        "new outputs": (found.output_size_in_bytes - found.alias_size_in_bytes) / GIB,
        "peak": getattr(found, "peak_memory_in_bytes", 0) / GIB,
        "seconds": time.monotonic() - start,
    }


def main() -> None:
    """Compiles and prints."""
    overrides = [tuple(text.split("=", 1)) for text in ARGUMENTS.overrides]
    if ARGUMENTS.mesh:
        overrides += [(f"mesh.{axis}", n) for axis, n in zip(MESH_AXES, ARGUMENTS.mesh.split(","), strict=True)]
    config = load_config(ARGUMENTS.config, overrides)
    sizes = (config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    mesh = make_mesh(sizes, devices_of(ARGUMENTS.target, int(np.prod(sizes))), config.model.n_kv_heads)
    length = ARGUMENTS.length or config.batch.length_buckets[-1]
    limits = dataclasses.replace(config.protocol, prompt_limit=length // 3, response_budget=length - length // 3)
    batch = dataclasses.replace(config.batch, length_buckets=(length,))
    config = dataclasses.replace(config, batch=batch, protocol=limits)
    programs = Programs(config, mesh, length, ARGUMENTS.policy)
    print(f"{ARGUMENTS.target}, mesh {dict(zip(MESH_AXES, sizes, strict=True))}, rows of {length} tokens; GiB a device")
    found = device_memory(config)
    for when, parts in {"held": found.held, **found.phases}.items():
        print("estimate", when, {part.name: round(part.size / GIB, 2) for part in parts}, flush=True)
    figures = {}
    for name in ARGUMENTS.programs.split(","):
        with jax.set_mesh(mesh):
            figures[name] = measure(getattr(programs, name)())
        print(f"compiler {name}", {key: round(value, 2) for key, value in figures[name].items()}, flush=True)
    print("peak RSS of this process, GiB:", round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2))


if __name__ == "__main__":
    main()
