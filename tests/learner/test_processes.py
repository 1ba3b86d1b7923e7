"""Steps by several real processes are those of one: loss, gradients, moments and updates."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest
from safetensors import safe_open

from .recorded import STEPS

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = pathlib.Path(__file__).with_name("process_steps.py")


def run_steps(folder, count, devices, shape, packing="none"):
    """Starts the processes, waits for all, and reads what each wrote: [(arrays, metrics of each step, fingerprint)]."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    path = folder / f"of_{count}.safetensors"
    started = [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(index), str(count), str(port), str(devices), shape, packing, path],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(max(count, 1))
    ]
    try:
        said = [process.communicate(timeout=240)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    for process, text in zip(started, said, strict=True):
        assert process.returncode == 0, text[-3000:]
    return [read(f"{path}.{index}") for index in range(max(count, 1))]


def read(path):
    with safe_open(path, framework="numpy") as file:
        arrays = {name: np.float64(file.get_tensor(name)) for name in file.keys()}
        return arrays, json.loads(file.metadata()["metrics"]), file.metadata()["fingerprint"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process on one device."""
    return run_steps(tmp_path_factory.mktemp("alone"), 0, 1, "1,1,1")[0]


def difference(found, expected, prefix):
    """Relative, in global norm over all arrays whose names begin so."""
    names = [name for name in expected if name.startswith(prefix)]
    assert names
    norm = sum(np.square(expected[name]).sum() for name in names)
    return np.sqrt(sum(np.square(found[name] - expected[name]).sum() for name in names) / norm)


@pytest.mark.full
@pytest.mark.parametrize(
    "count, devices, shape, packing",
    [
        (2, 1, "1,2,1", "none"),
        (2, 4, "2,2,2", "none"),
        (4, 2, "1,4,2", "none"),
        (2, 4, "2,2,2", "packed"),
    ],
)
def test_steps_by_several_processes_are_those_of_one(alone, tmp_path, count, devices, shape, packing):
    arrays, rows, _ = alone
    results = run_steps(tmp_path, count, devices, shape, packing)
    found, found_rows, _ = results[0]
    for step in range(STEPS):
        for name in ("loss/total", "grad_norm", "policy/kl_max", "policy/entropy/inner", "N_inner", "loss/support"):
            assert (name in rows[step]) == (name in found_rows[step]), name
            if name in rows[step]:
                assert found_rows[step][name] == pytest.approx(rows[step][name], rel=1e-5, abs=1e-9), (step, name)
    for term in ("mode", "inner", "kl", "support"):
        assert difference(found, arrays, f"gradient/0/{term}/") < 1e-5, term
    for step in range(STEPS):
        assert difference(found, arrays, f"mu/{step}/") < 1e-5
        assert difference(found, arrays, f"nu/{step}/") < 1e-5
        assert difference(found, arrays, f"update/{step}/") < 1e-3
    timeless = [[{k: v for k, v in row.items() if not k.startswith("perf/")} for row in each] for _, each, _ in results]
    assert all(each == timeless[0] for each in timeless)
    assert len({digest for _, _, digest in results}) == 1
    assert all(np.array_equal(found[name], others[name]) for others, _, _ in results[1:] for name in found)
