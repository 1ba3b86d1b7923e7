"""Compiled programs are kept between processes, where the user has not said otherwise."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from rw import compile_cache

PROGRAM = """
import json, sys, time
import jax, jax.numpy as jnp
from jax import monitoring
from rw.compile_cache import keep_programs

jax.jit(lambda x: x + 1)(jnp.ones(3)).block_until_ready()  # as in a notebook, where something was compiled before
seen = []
monitoring.register_event_listener(lambda event, **_: seen.append(event))
keep_programs()

def slow(x):
    for i in range(60):
        x = jnp.tanh(x @ x) + jnp.sin(jnp.cumsum(x, 0)) * i
    return x

value = float(jax.jit(slow)(jnp.ones((16, 16))).mean())
hits = sum(event.endswith("cache_hits") for event in seen)
print(json.dumps({"hits": hits, "value": value, "directory": jax.config.jax_compilation_cache_dir}))
"""


def start(cache_home, **variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    environment = {**kept, "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(cache_home), **variables}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_second_process_compiles_nothing_and_gets_the_same(tmp_path):
    first, second = start(tmp_path), start(tmp_path)
    assert first["directory"].startswith(str(tmp_path / "rw" / "programs"))
    assert (first["hits"], second["hits"]) == (0, 1)
    assert first["value"] == second["value"]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("JAX_COMPILATION_CACHE_DIR", "elsewhere", "elsewhere"), ("JAX_ENABLE_COMPILATION_CACHE", "false", None)],
)
def test_what_the_user_has_set_stays(tmp_path, name, value, expected):
    value = str(tmp_path / value) if name.endswith("DIR") else value
    given = start(tmp_path / "home", **{name: value})["directory"]
    assert given == (None if expected is None else str(tmp_path / expected))
    assert not (tmp_path / "home" / "rw").exists()


def test_a_directory_that_cannot_be_made_is_gone_without(tmp_path):
    (tmp_path / "file").write_text("")
    assert start(tmp_path / "file")["directory"] is None


def test_a_program_that_was_half_written_costs_no_more_than_itself(tmp_path):
    directory = pathlib.Path(start(tmp_path)["directory"])
    (program,) = directory.glob("jit_slow*-cache")
    (directory / "jit_other-00-cache").write_bytes(b"half")  # the time of its use is missing: the disk was full
    program.with_name(program.name.removesuffix("-cache") + "-atime").unlink()
    (directory / "jit_young-00-cache").write_bytes(b"another process is at it")
    for name in (program.name, "jit_other-00-cache"):
        os.utime(directory / name, (1e9, 1e9))
    compile_cache.drop_half_written(directory)
    assert [path.name for path in directory.glob("*-cache")] == ["jit_young-00-cache"]
    (directory / "jit_young-00-cache").unlink()
    assert [start(tmp_path)["hits"], start(tmp_path)["hits"]] == [0, 1]
