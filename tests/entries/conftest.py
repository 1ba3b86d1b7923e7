"""Runs of the tiny config, in processes of their own as a user starts them; its warm start is made once."""

import fcntl
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
TINY = ROOT / "tests" / "data" / "configs" / "tiny.py"


def command_line(name: str, workdir, *overrides: str, config=TINY) -> list[str]:
    return [sys.executable, "-m", "rw.cli", name, "--config", str(config), "--workdir", str(workdir), *overrides]


@pytest.fixture(scope="session")
def command():
    return command_line


@pytest.fixture(scope="session")
def environment():
    """One device, as a user has; the compile cache is that of all tests."""
    return {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def run(environment):
    """run(command name, workdir, overrides…) -> CompletedProcess; fails the test unless it ends as expected."""

    def start(name, workdir, *overrides, expect=0, config=TINY, timeout=240):
        done = subprocess.run(
            command_line(name, workdir, *overrides, config=config),
            env=environment,
            cwd=workdir.parent,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == expect, f"exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done

    return start


@pytest.fixture(scope="session")
def warm(run, tmp_path_factory):
    """Directory of a warm start of the tiny config; the first worker that asks for it makes it for all."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    workdir = shared / "warm" / "run"
    workdir.parent.mkdir(exist_ok=True)
    with open(shared / "warm.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (workdir / "warmstart").is_dir():
            run("warmstart", workdir)
    return workdir / "warmstart"
