"""Same groups in, same bits out: in a second process, and from a checkpoint that a killed process left."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import pytest

from rw.core.advantages import AdvantageConfig
from rw.learner.batch import BatchConfig
from rw.learner.checkpoint import Checkpoints, RunIdentity
from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.learner.state import fingerprint, init_state
from rw.learner.step import Learner, LearnerConfig
from rw.model.qwen3 import init_params

from .conftest import MODEL, make_groups, mode_candidates

pytestmark = pytest.mark.full
STEPS = 6
OPTIMIZER = Optimizer(OptimizerConfig(learning_rate=1e-3))
ROOT = pathlib.Path(__file__).parents[2]
CHILD = "import importlib, sys; importlib.import_module('tests.learner.test_determinism').train(sys.argv[1])"


def train(workdir):
    """Continues to STEPS from the last checkpoint, saving every step; prints the fingerprint of the end."""
    params = init_params(jax.random.key(0), MODEL)
    batch = BatchConfig(micro_batch=4, length_buckets=(40, 64), policy_buckets=(64,), logprob_chunk=16)
    config = LearnerConfig(batch=batch, advantage=AdvantageConfig(0.3), deterministic=True)
    learner = Learner(MODEL, OPTIMIZER, params, config)
    state = init_state(params, OPTIMIZER, 0)
    with Checkpoints(workdir, RunIdentity({}, "t", fingerprint(params), 0)) as checkpoints:
        restored = checkpoints.restore(state)
        state = state if restored is None else restored
        print("started at", int(state.step), flush=True)
        while int(state.step) < STEPS:
            groups = make_groups(int(state.data_batch_index), count=3)
            state, _ = learner.step(
                state, groups, cold_start=False, support_coefficient=0.1, mode_candidates=mode_candidates
            )
            checkpoints.save(state)
            print("saved", int(state.step), flush=True)
    print("ended with", fingerprint(state), flush=True)


def start(workdir):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(workdir)], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )


def finish(process):
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output.split("ended with ")[1].strip(), int(output.split("started at ")[1].split()[0])


def test_killed_and_continued_runs_end_bitwise_alike(tmp_path):
    whole, began = finish(start(tmp_path / "whole"))
    assert began == 0
    again, _ = finish(start(tmp_path / "again"))
    assert again == whole
    for kill, after in enumerate(("saved 1", "saved 3", "saved 4", "saved 5")):
        process = start(tmp_path / "killed")
        for line in process.stdout:
            if line.startswith(after):
                break
        time.sleep(0.013 * kill)  # somewhere in the next step, or in its save
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        process.stdout.close()
    end, began = finish(start(tmp_path / "killed"))
    assert end == whole and began >= 5
