"""`train` called from Python inside a running event loop, as in a notebook, with an advantage function as an object."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

from rw import cli

TINY = pathlib.Path(__file__).parent.parent / "data" / "configs" / "tiny.py"

PROGRAM = """
import asyncio, sys
from rw.config import load_config
from rw.core.advantages import comet
from rw.errors import RwError
from rw.train import train

config_path, workdir, weight = sys.argv[1], sys.argv[2], sys.argv[3]
WEIGHT = float(weight) if weight.replace(".", "").isdigit() else None

def shaped(batch, config):
    credit = comet(batch, config)
    return credit._replace(mode=WEIGHT * credit.mode)

def without_config(batch):
    return comet(batch, None)

OVERRIDES = [
    ("init.source", "random"), ("steps", sys.argv[4]), ("checkpoint.every", "1"), ("evaluation.every", "0"),
    ("evaluation.test_queries", "0"), ("schedule.progressive", "false"),
]

async def notebook():
    config = load_config(config_path, OVERRIDES)
    return train(config, workdir, advantage=shaped if WEIGHT is not None else without_config)

try:
    sys.exit(asyncio.run(notebook()))
except RwError as error:
    print(error)
    sys.exit(2)
"""


@pytest.fixture
def notebook(environment, tmp_path):
    """notebook(weight, steps, expect) -> the lines printed by a run in one workdir."""
    program = tmp_path / "cell.py"
    program.write_text(PROGRAM)

    def start(weight, steps, expect=0):
        done = subprocess.run(
            [sys.executable, str(program), str(TINY), str(tmp_path / "run"), str(weight), str(steps)],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == expect, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout.splitlines()

    return start


@pytest.mark.full
def test_a_run_with_a_function_as_an_object(notebook, tmp_path):
    lines = notebook(0.5, 1)
    assert any(line.startswith("step 1/1 free") for line in lines)
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())["advantage"]["function"]
    assert recorded.startswith("__main__:shaped@") and len(recorded) == len("__main__:shaped@") + 8
    (refused,) = notebook(0.25, 2, expect=2)
    assert f"advantage.function: {recorded} → __main__:shaped@" in refused


def test_a_function_that_cannot_be_used_is_refused_before_anything_is_made(notebook, tmp_path):
    (refused,) = notebook("none", 1, expect=2)
    assert "without_config" in refused and "takes 1 positional argument but 2 were given; it must be" in refused
    assert not (tmp_path / "run").exists()


def test_a_function_that_a_config_names_is_tried_too(tmp_path, capsys):
    name = "--config.advantage.function=rw.core.advantages:normalise"
    assert cli.main(["train", "--config", str(TINY), "--workdir", str(tmp_path / "run"), name]) == 2
    error = capsys.readouterr().err
    assert re.search(r"'rw.core.advantages:normalise@\w{8}' raised TypeError: normalise\(\) missing 1 required", error)
    assert len(error.splitlines()) == 1 and not (tmp_path / "run").exists()
