"""Exact size: random bfloat16 weights of Qwen3-4B's shape in a Hugging Face directory, imported and run on a CPU.

    python tests/benchmarks/exact_size.py /tmp/qwen3_4b                        # 8 GB of disk, up to 22 GiB of memory
    python tests/benchmarks/exact_size.py /tmp/tiny --layers 2 --d-model 256   # the same, small

The directory is made in three files, tensor by tensor, unless it is there; `--remove` takes it away afterwards. The
rest happens in a process of its own, which reads the weights straight into the sampler's layout and reports the peak of
its resident memory after each phase. It fails where that passes `--limit-gib`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from rw.model import cache as kv
from rw.model import hf_files, qwen3
from rw.model.config import ModelConfig
from rw.model.hf import hf_shapes
from rw.model.hf_config import CONFIG, model_config, written_config
from rw.model.logprobs import logits
from rw.model.tensor_files import write_tensors
from rw.run_config import QWEN3_4B

FILES = 3
# XLA multiplies bfloat16 on a CPU in float32. Scheduled for concurrency, it widens all weights at once, as none of that
# depends on an activation: 13.5 GiB of temporaries at full size. In order of use they are 0.15 GiB.
SCHEDULE = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
STORED = jnp.dtype("bfloat16")
SIZES = {"layers": "n_layers", "d-model": "d_model", "d-ff": "d_ff", "heads": "n_heads", "kv-heads": "n_kv_heads"}
SIZES |= {"head-dim": "head_dim", "vocab": "vocab_size"}


def main() -> int:
    known = parse()
    if known.measure:
        return measure(known)
    model = dataclasses.replace(QWEN3_4B, **{ours: getattr(known, ours) for ours in SIZES.values()})
    if not (known.directory / CONFIG).exists():
        make(known.directory, model)
    flags = f"{os.environ.get('XLA_FLAGS', '')} {SCHEDULE}".strip()
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--measure"], env=environment)
    if known.remove:
        shutil.rmtree(known.directory)
    return done.returncode


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    for flag, ours in SIZES.items():
        parser.add_argument(f"--{flag}", dest=ours, type=int, default=getattr(QWEN3_4B, ours))
    parser.add_argument("--prompt", type=int, default=512, help="tokens prefilled")
    parser.add_argument("--decode", type=int, default=8, help="tokens decoded")
    parser.add_argument("--limit-gib", type=float, default=22.0, help="of resident memory")
    parser.add_argument("--remove", action="store_true", help="remove the directory at the end")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def make(directory: pathlib.Path, model: ModelConfig) -> None:
    """Random weights in `FILES` files; one tensor is in memory at a time."""
    began, shapes, random = time.monotonic(), hf_shapes(model), np.random.default_rng(0)
    directory.mkdir(parents=True, exist_ok=True)

    def array_of(name: str) -> np.ndarray:
        array = np.empty(shapes[name], STORED)
        if array.ndim == 1:
            array[...] = 1
            return array
        step = max(1, 2**22 // array.shape[1])
        for first in range(0, len(array), step):
            rows = array[first : first + step]
            rows[...] = random.standard_normal(rows.shape, np.float32) / math.sqrt(array.shape[1])
        return array

    total = sum(math.prod(shape) for shape in shapes.values()) * STORED.itemsize
    write_tensors(directory, shapes, STORED, array_of, total * 21 // (20 * FILES))
    (directory / CONFIG).write_text(json.dumps(written_config(model, STORED.name, {}), indent=2))
    files = sorted(file.stat().st_size for file in directory.glob("*.safetensors"))
    sizes = ", ".join(f"{size / 1e9:.2f}" for size in files)
    print(f"made     {total / 1e9:.2f} GB in files of {sizes} GB, {time.monotonic() - began:.0f} s", flush=True)


def measure(known: argparse.Namespace) -> int:
    """Import, prefill, decode; returns the exit code."""
    config = model_config(
        known.directory, param_dtype=STORED.name, compute_dtype=STORED.name, attention="chunked_xla", remat="none"
    )
    began = time.monotonic()
    params = hf_files.read_hf_unstacked(known.directory, config)
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    count = held // STORED.itemsize
    report("import", began, f"{count / 1e9:.3f} G parameters, {held / 2**30:.2f} GiB")

    tokens = jnp.asarray(np.random.default_rng(1).integers(0, config.vocab_size, (1, known.prompt)), jnp.int32)
    positions = jnp.arange(known.prompt, dtype=jnp.int32)[None]
    cache = kv.init_cache(config, 1, -(-(known.prompt + known.decode) // 128) * 128)
    prefill, decode = compiled(config, params, tokens, positions, cache)

    began = time.monotonic()
    token, cache = jax.block_until_ready(prefill(params, tokens, positions, cache))
    seconds = report("prefill", began, f"{known.prompt} tokens")
    began, chosen = time.monotonic(), [int(token[0, 0])]
    for step in range(known.decode):
        token, cache = decode(params, token, jnp.full((1, 1), known.prompt + step, jnp.int32), cache)
        chosen.append(int(token[0, 0]))
    per_token = report("decode", began, f"{known.decode} tokens: {chosen[1:]}") / known.decode
    peak = memory("VmHWM")
    print(
        f"prefill {known.prompt / seconds:.1f} tokens/s, decode {1 / per_token:.2f} tokens/s; peak {peak:.2f} GiB "
        f"of at most {known.limit_gib:g}"
    )
    return 0 if peak <= known.limit_gib else 1


def compiled(config: ModelConfig, params, tokens, positions, cache):
    """The programs of a prefill and of one decoded token: (params, tokens, positions, cache) -> (best token, cache)."""

    @functools.partial(jax.jit, donate_argnums=3)
    def forward(params, tokens, positions, cache):
        hidden, cache = qwen3.hidden_states(params, config, tokens, positions, cache)
        return jnp.argmax(logits(params, config, hidden[:, -1:]), axis=-1).astype(jnp.int32), cache

    programs = []
    for name, shape in (("prefill", (tokens, positions)), ("decode", (tokens[:, :1], positions[:, :1]))):
        began = time.monotonic()
        programs.append(forward.lower(params, *shape, cache).compile())
        analysis = programs[-1].memory_analysis()
        report("compile", began, f"{name}, temporaries of {analysis.temp_size_in_bytes / 2**30:.2f} GiB")
    return programs


def report(phase: str, began: float, text: str) -> float:
    seconds = time.monotonic() - began
    print(
        f"{phase:<9}{seconds:7.2f} s, memory {memory('VmRSS'):.2f} GiB, peak {memory('VmHWM'):.2f}; {text}", flush=True
    )
    return seconds


def memory(key: str) -> float:
    """GiB of this process. Not getrusage: its peak begins with that of the process that started this one."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(key))) / 2**20


if __name__ == "__main__":
    sys.exit(main())
