"""The memory that a conversion takes, measured in a process of its own."""

import json
import math
import os
import shutil
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from rw.model import hf
from rw.model.config import ModelConfig
from rw.model.hf_config import written_config
from rw.model.tensor_files import write_tensors

from .test_convert import ROOT, TOKENIZER, published, tiny

PEAK = """
import sys
from rw import convert

code = convert.main(sys.argv[1:])
# Not getrusage: its peak begins with that of the process that started this one.
lines = open("/proc/self/status").read().splitlines()
print("peak", int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) * 1024)
sys.exit(code)
"""


def peak_memory(*arguments):
    """Of a conversion in a process of its own, in bytes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PEAK, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.rsplit("peak ", 1)[1])


@pytest.mark.full
def test_a_conversion_takes_the_arrays_and_1_3_of_the_largest_file(tmp_path):
    shape = dict(vocab_size=8000, d_model=2048, n_layers=8, n_heads=16, n_kv_heads=4, head_dim=128, d_ff=8192)
    model, dtype = ModelConfig(**shape, rope_theta=5e6, tied=True), jnp.dtype("bfloat16")
    random = np.random.default_rng(0).normal(size=8000 * 2048).astype(dtype)  # as hard to pack as weights are
    shapes = hf.hf_shapes(model)
    held = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize
    (tmp_path / "hf").mkdir()
    write_tensors(
        tmp_path / "hf", shapes, dtype, lambda name: np.resize(random, shapes[name]), held // 3 + random.nbytes
    )
    (tmp_path / "hf" / "config.json").write_text(json.dumps(written_config(model, "bfloat16", {})))
    shutil.copy(TOKENIZER, tmp_path / "hf" / "tokenizer.json")
    published(tmp_path / "small", tiny().model)
    program = peak_memory("--from-hf", tmp_path / "small", "--to", tmp_path / "small_saved")
    imported = peak_memory("--from-hf", tmp_path / "hf", "--to", tmp_path / "saved") - program
    exported = peak_memory("--from", tmp_path / "saved", "--to-hf", tmp_path / "out", "--max-file-bytes", 600_000_000)
    exported -= program
    largest = {name: max(f.stat().st_size for f in (tmp_path / name).glob("*.safetensors")) for name in ("hf", "out")}
    print({"held": held, "imported": imported, "exported": exported, **largest})
    assert held > 0.9e9 and largest["hf"] < 0.4 * held
    assert 0.9 * held < imported <= held + 1.3 * largest["hf"]
    assert 0.9 * held < exported <= held + 1.3 * largest["out"]
