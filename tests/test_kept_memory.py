"""What is kept of the memory that programs free on CPU, and when nothing is changed."""

import os
import subprocess
import sys
import types

import pytest

from rw import kept_memory

# Pages that four later runs of a program touch for the first time: it takes 96 MiB beside its arguments.
FAULTS = """
import resource, sys
from rw.kept_memory import keep_memory
assert keep_memory() is (sys.argv[1] == "kept")
import jax, jax.numpy as jnp
program = jax.jit(lambda x: jnp.dot(jnp.sin(jnp.outer(x, x)), jnp.cos(jnp.outer(x, x))).sum())
x = jnp.arange(2896.0) / 2896
for _ in range(6):
    program(x).block_until_ready()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    program(x).block_until_ready()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(kind, **variables):
    environment = {name: value for name, value in os.environ.items() if name not in kept_memory.VARIABLES}
    environment |= {"JAX_PLATFORMS": "cpu", **variables}
    command = [sys.executable, "-c", FAULTS, kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    return int(done.stdout)


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's")
def test_a_program_gets_the_pages_that_the_last_one_left():
    given_back = faults("off", MALLOC_ARENA_MAX="8")
    kept = faults("kept")
    assert given_back > 4 * 8_000 and kept < given_back / 2


@pytest.mark.parametrize("variable", kept_memory.VARIABLES)
def test_nothing_is_changed_where_the_user_has_chosen(variable, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv(variable, "")
    monkeypatch.setattr(kept_memory.ctypes, "CDLL", None)  # would fail if it were asked
    assert not kept_memory.keep_memory()


def test_nothing_is_changed_where_so_large_a_threshold_is_refused(monkeypatch):
    asked = []
    library = types.SimpleNamespace(mallopt=lambda name, value: asked.append(name) or 0)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    for variable in kept_memory.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(kept_memory.ctypes, "CDLL", lambda _: library)
    assert not kept_memory.keep_memory() and asked == [kept_memory._MMAP_THRESHOLD]


@pytest.mark.parametrize(
    "told, found, expected", [("cpu", ["x"], True), ("cuda,cpu", [], False), ("", [], True), ("", ["x"], False)]
)
def test_programs_run_on_the_cpu_where_jax_is_told_so_or_has_nothing_else(told, found, expected, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", told)
    monkeypatch.setattr(kept_memory.importlib.metadata, "entry_points", lambda group: found)
    monkeypatch.setattr(kept_memory.importlib.util, "find_spec", lambda name: None)
    assert kept_memory.on_cpu() is expected


def test_nothing_is_changed_beside_an_accelerator(monkeypatch):
    for name in kept_memory.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(kept_memory.ctypes, "CDLL", None)
    assert not kept_memory.keep_memory()
