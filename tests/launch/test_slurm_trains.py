"""Slurm's batch script with rw itself: two tasks train one router, are stopped before their time is up, and go on."""

import json
import os
import pathlib
import signal
import socket
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
TINY = str(ROOT / "tests" / "data" / "configs" / "tiny.py")
RW = f"""#!/bin/sh
export PYTHONPATH={ROOT} JAX_PLATFORMS=cpu XLA_FLAGS=
exec {sys.executable} -m rw.cli "$@"
"""
OVERRIDES = (
    "mesh.data=2", "init.source=random", "evaluation.every=0", "evaluation.test_queries=0", "workers.latency_s=0.05"
)  # fmt: skip


def free_job_id() -> str:
    """A job whose coordinator has a port that nobody uses."""
    for port in range(20_000, 60_000):
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", port)):
                return str(port - 20_000 + 40_000)
    raise RuntimeError("no free port")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_two_tasks_train_one_router_and_go_on_where_they_were_stopped(slurm, program, wait_for):
    program(slurm.directory.parent / "bin", "rw", RW)
    workdir = slurm.directory / "runs" / "tiny"  # by default
    job_id = free_job_id()
    arguments = ("--config", TINY, "--config.steps=3", *(f"--config.{key}" for key in OVERRIDES))

    job = slurm.start(*arguments, SLURM_JOB_ID=job_id)
    try:
        wait_for(workdir / "trajectories" / "step_000001.jsonl", timeout=240)
    finally:
        os.kill(job.pid, signal.SIGUSR1)
    output, _ = job.communicate(timeout=120)
    assert job.returncode == 143, output
    codes = slurm.directory / f"slurm-{job_id}.codes"
    assert sorted(path.read_text() for path in codes.iterdir()) == ["143\n", "143\n"]
    assert f"requeue {job_id}" in (slurm.record / "scontrol").read_text()
    done = len(lines(workdir / "metrics.jsonl"))
    assert 1 <= done < 3

    job = slurm.start(*arguments, SLURM_JOB_ID=job_id)
    output, _ = job.communicate(timeout=240)
    assert job.returncode == 0, output
    assert [row["step"] for row in lines(workdir / "metrics.jsonl")] == [1, 2, 3]
    for own in (workdir, workdir / "process_1"):  # each rolled out half of the six queries, four times, in every step
        assert [len(lines(own / "trajectories" / f"step_{step:06}.jsonl")) for step in (1, 2, 3)] == [12, 12, 12]
