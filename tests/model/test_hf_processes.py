"""Several processes read one directory, each what its own devices hold."""

import json
import pathlib
import socket
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.flax import save_file

from rw.model import hf
from rw.model.config import ModelConfig
from rw.model.hf_config import written_config

from .hf_arrays import to_hf

pytestmark = pytest.mark.full

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = ModelConfig(
    vocab_size=4096, d_model=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=16, d_ff=192, rope_theta=5e6, tied=False
)
# A process's devices hold half of the vocabulary's rows; the embedding and the head are 4/5 of all bytes.
READ = """
import sys
import jax
jax.distributed.initialize(sys.argv[2], 2, int(sys.argv[3]))
import numpy as np
from rw.model import hf, hf_files, tensor_files
from rw.model.hf_config import model_config
from rw.sharding import param_shardings

read, pieces = [0], tensor_files.StoredTensor.pieces
def counted(self, start, stop):
    for first, rows in pieces(self, start, stop):
        read[0] += rows.nbytes
        yield first, rows
tensor_files.StoredTensor.pieces = counted

config = model_config(sys.argv[1])
mesh = jax.make_mesh((1, 1, 2), ("data", "fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
shapes = {n: jax.ShapeDtypeStruct(s, "float32") for n, s in hf.expected_shapes(config).items()}
params = hf_files.read_hf(sys.argv[1], config, param_shardings(mesh, shapes))
sums = {name: [[str(s.index), float(np.abs(s.data).sum())] for s in x.addressable_shards] for name, x in params.items()}
whole = jax.jit(lambda p: {n: abs(x).sum() for n, x in p.items()})(params)  # a program over both
import json
print(json.dumps({"read": read[0], "held": sum(s.data.nbytes for x in params.values() for s in x.addressable_shards),
                  "local": sums, "whole": {n: float(x) for n, x in whole.items()}}))
"""


def test_each_process_reads_what_its_devices_hold(tmp_path):
    random = np.random.default_rng(0)
    params = {n: random.normal(size=s).astype(np.float32) for n, s in hf.expected_shapes(CONFIG).items()}
    save_file({n: jnp.array(x) for n, x in to_hf(params).items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(written_config(CONFIG, "float32", {})))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command = [sys.executable, "-c", READ, str(tmp_path), address]
    started = [
        subprocess.Popen([*command, str(i)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    try:
        ended = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], ended
    reports = [json.loads(out.splitlines()[-1]) for out, _ in ended]
    size = sum(x.nbytes for x in params.values())
    for report in reports:
        assert report["held"] <= 0.51 * size
        assert report["read"] <= 1.1 * report["held"]
        for name, total in report["whole"].items():
            assert total == pytest.approx(np.abs(params[name]).sum(), rel=1e-4)
            for index, part in report["local"][name]:
                wanted = params[name][eval(index, {"slice": slice, "None": None})]
                assert part == pytest.approx(np.abs(wanted).sum(), rel=1e-4)
