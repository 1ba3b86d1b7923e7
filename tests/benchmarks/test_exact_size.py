"""The exact-size benchmark at a small size: it runs, and it fails where the limit is passed."""

import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parent / "exact_size.py"
SMALL = ("--layers=2", "--d-model=64", "--d-ff=96", "--heads=4", "--kv-heads=2", "--head-dim=16", "--vocab=512")


@pytest.mark.full
def test_it_runs_and_fails_beyond_its_limit(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2]), "XLA_FLAGS": ""}
    command = [sys.executable, str(SCRIPT), str(tmp_path / "hf"), *SMALL, "--prompt=40", "--decode=3"]
    for more, code in (("--limit-gib=22", 0), ("--limit-gib=0.001", 1), ("--remove", 0)):
        done = subprocess.run([*command, more], env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == code, done.stderr
        assert "40 tokens" in done.stdout and "3 tokens: [" in done.stdout
    assert not (tmp_path / "hf").exists()
