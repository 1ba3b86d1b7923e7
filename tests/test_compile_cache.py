"""Compiled programs are kept between processes, where the user has not said otherwise."""

import json
import os
import subprocess
import sys

import pytest

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
