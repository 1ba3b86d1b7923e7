"""The batch script for Slurm, run with two tasks: what they are started with, and which ends bring the job back."""

import json
import os
import signal

import pytest


@pytest.mark.parametrize(
    "codes, requeued",
    [
        ("0 0", False),
        ("143 143", True),
        ("8 137", True),  # one was killed, the other noticed
        ("137 8", True),
        ("137 137", False),
        ("4 8", False),  # the one that was lost had a reason to stop
        ("8 5", False),
        ("6 143", False),
        ("7 7", False),
        ("1 8", False),
        ("2 2", False),
    ],
)
def test_a_job_comes_back_after_143_and_8_unless_a_task_ended_for_good(slurm, codes, requeued):
    code = slurm.run(codes, "--config", "c.py")
    assert code == max(map(int, codes.split()))
    assert slurm.was_requeued == requeued


def test_every_task_gets_the_arguments_and_all_gpus_of_its_node(slurm):
    arguments = ["--config", "a config.py", "--config.data.source=nq6", "--config.a.b", "(1, 2)"]
    assert slurm.run("0 0", *arguments, SLURM_GPUS_ON_NODE="8", SOME_KEY="sk-1 2") == 0
    for rank in ("0", "1"):
        (called,) = (slurm.record / f"rw_{rank}").read_text().splitlines()
        given, directory, environment = json.loads(called)
        assert given == ["train", "--processes", "auto", *arguments]
        assert directory == str(slurm.directory)
        assert environment == {
            "SLURM_NTASKS": "2",
            "SLURM_PROCID": rank,
            "JAX_LOCAL_DEVICE_IDS": "0,1,2,3,4,5,6,7",
            "JAX_COMPILATION_CACHE_DIR": f"{slurm.directory}/runs/compiled",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92",
            "SOME_KEY": "sk-1 2",
        }
    options, _ = json.loads((slurm.record / "srun.json").read_text())
    assert "--kill-on-bad-exit=0" in options  # the others have their time
    assert not slurm.was_requeued


def test_the_checkouts_own_environment_goes_first(slurm, program):
    (slurm.directory / ".venv" / "bin").mkdir(parents=True)
    program(slurm.directory / ".venv" / "bin", "rw", '#!/bin/sh\necho own >>"$STUB_RECORD/own"\nexit 0\n')
    assert slurm.run("0 0", "--config", "c.py") == 0
    assert (slurm.record / "own").read_text() == "own\n" * 2


def test_codes_of_an_earlier_part_of_the_job_do_not_count(slurm):
    assert slurm.run("8 8", "--config", "c.py") == 8 and slurm.was_requeued
    (slurm.record / "scontrol").unlink()
    assert slurm.run("0 0", "--config", "c.py") == 0 and not slurm.was_requeued


def test_before_the_time_is_up_every_task_hears_one_sigterm(slurm, wait_for):
    job = slurm.start("--config", "c.py", STUB_CODES="wait wait")
    wait_for(*(slurm.record / f"ready_{rank}" for rank in (0, 1)))
    os.kill(job.pid, signal.SIGUSR1)  # as --signal=B:USR1@120 does
    job.communicate(timeout=30)
    assert job.returncode == 143 and slurm.was_requeued
    assert [(slurm.record / f"signals_{rank}").read_text() for rank in (0, 1)] == ["1", "1"]


@pytest.mark.parametrize("state, requeued", [("CANCELLED", False), ("RUNNING", True)])
def test_slurms_own_sigterm_is_heard_once_too_and_a_cancelled_job_stays_away(slurm, wait_for, state, requeued):
    job = slurm.start("--config", "c.py", STUB_CODES="wait wait", STUB_STATE=state)
    wait_for(slurm.record / "srun.json", *(slurm.record / f"ready_{rank}" for rank in (0, 1)))
    _, tasks = json.loads((slurm.record / "srun.json").read_text())
    for task in tasks:
        os.killpg(task, signal.SIGTERM)
    os.kill(job.pid, signal.SIGTERM)
    job.communicate(timeout=30)
    assert job.returncode == 143 and slurm.was_requeued == requeued
    assert [(slurm.record / f"signals_{rank}").read_text() for rank in (0, 1)] == ["1", "1"]
