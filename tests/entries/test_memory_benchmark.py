"""The benchmark that compiles a run's programs for other devices, here for eight of a CPU."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
TINY = str(ROOT / "tests" / "data" / "configs" / "tiny.py")
SCRIPT = str(ROOT / "tests" / "benchmarks" / "memory_aot.py")


@pytest.mark.full
def test_every_program_of_a_step_is_compiled_and_measured():
    environment = {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, SCRIPT, "--config", TINY, "--target", "cpu", "--mesh", "1,4,2", "--policy", "64"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.findall(r"^compiler (\w+)", done.stdout, re.M) == ["gradient", "update", "reference", "publish", "decode"]
    assert len(re.findall(r"^estimate (\w+)", done.stdout, re.M)) == 5
