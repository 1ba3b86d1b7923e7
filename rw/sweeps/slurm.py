"""Runs the points of a sweep as one SLURM array, through submitit (the extra `sweep`); one job a point, on one node.

What was submitted is noted in <workdir>/slurm/jobs.json, so that the same command submits nothing twice. A job that is
preempted or out of time is submitted again by submitit and goes on where its run stopped.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rw import progress
from rw.errors import ConfigError
from rw.evaluation.sweep_results import FINISHED, RUNNING
from rw.sweeps.plan import SweepPoint
from rw.sweeps.state import LOG, forget_outcome, last_words, read_outcome, result_of, write_outcome
from rw.typed_values import one_line

FOLDER, JOBS = "slurm", "jobs.json"
SHARED = ("timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node", "name")
DEFAULTS = {"timeout_min": 24 * 60, "name": "rw-sweep"}
GOES_ON = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "STAGE_OUT")
GRACE_S = 25.0


class PointJob:
    """What a job does: `rw train` of a point, whose end it notes as a sweep on one machine does."""

    def __init__(self, workdir: str, arguments: Sequence[str], program: Sequence[str] = ("-m", "rw.sweeps.child")):
        """`program`: what this Python runs, given the id of this process and the arguments."""
        self.workdir, self.arguments, self.program = workdir, list(arguments), list(program)
        self._process: subprocess.Popen | None = None

    def __call__(self) -> int:
        folder = pathlib.Path(self.workdir)
        folder.mkdir(parents=True, exist_ok=True)
        forget_outcome(folder)
        with open(folder / LOG, "ab") as log:
            since = log.tell()
            command = [sys.executable, *self.program, str(os.getpid()), *self.arguments]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        while (code := self._process.poll()) is None:  # no blocking wait: `checkpoint` comes in between, in a signal
            time.sleep(0.2)
        write_outcome(folder, code, last_words(folder / LOG, since) if code else "")
        return code

    def checkpoint(self):
        """Called by submitit when the job is about to be stopped: ends the run in order, and asks for another job."""
        import submitit

        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            deadline = time.monotonic() + GRACE_S
            while self._process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
        return submitit.helpers.DelayedSubmission(PointJob(self.workdir, self.arguments, self.program))


def options(given: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts as submitit's parameters; what only SLURM knows gets the prefix that submitit wants.

    Raises:
        ConfigError: a text without a value.
    """
    found = dict(DEFAULTS)
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"--slurm {text!r} must be KEY=VALUE, such as partition=gpu")
        with contextlib.suppress(ValueError, SyntaxError):  # a word, such as the name of a partition, stays one
            value = ast.literal_eval(value)
        found[key if key in SHARED or key.startswith("slurm_") else f"slurm_{key}"] = value
    return found


def submit(
    points: Sequence[SweepPoint],
    workdir: pathlib.Path,
    at_once: int,
    parameters: Mapping[str, Any],
    cluster: str = "slurm",
    program: Sequence[str] = ("-m", "rw.sweeps.child"),
) -> int:
    """Submits every point that is neither finished nor on its way, as one array; returns how many are on their way.

    Args:
        at_once: jobs of the array that may run at a time.
        parameters: as `options` gives them.
        cluster: submitit's name of it; `local` runs jobs on this machine.

    Raises:
        ConfigError: submitit is missing, does not know a parameter, or finds no sbatch.
    """
    submitit = _submitit()
    folder = workdir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    jobs = _read_jobs(folder / JOBS)
    left = [point for point in points if result_of(point).status != FINISHED]
    away = [p for p in left if result_of(p).status == RUNNING or _goes_on(submitit, folder, jobs, p, cluster)]
    todo = [point for point in left if point not in away]
    if todo:
        for point in todo:  # how an earlier try ended says nothing of the job that comes
            forget_outcome(point.workdir)
        executor = _executor(submitit, folder, cluster, {**parameters, "slurm_array_parallelism": at_once})
        made = []
        try:
            with executor.batch():  # one array; unlike map_array, it leaves each job its own `checkpoint`
                made += [executor.submit(PointJob(str(p.workdir), p.arguments, program)) for p in todo]
        except (RuntimeError, subprocess.CalledProcessError, OSError) as error:  # submitit's errors are RuntimeErrors
            reason = one_line(error)[:300] or "it ended without a word"
            raise ConfigError(f"sbatch refused the jobs: {reason}") from error
        jobs |= {point.name: job.job_id for point, job in zip(todo, made, strict=True)}
        _write_jobs(folder / JOBS, jobs)
        for point in todo:
            progress.say(f"{point.name}: job {jobs[point.name]}")
    return len(left)


def _submitit():
    try:
        import submitit
    except ImportError as error:
        raise ConfigError("--backend slurm needs the package submitit: pip install 'rw[sweep]'") from error
    return submitit


def _executor(submitit, folder: pathlib.Path, cluster: str, parameters: Mapping[str, Any]):
    try:
        executor = submitit.AutoExecutor(folder=str(folder / "%j"), cluster=cluster)
        executor.update_parameters(**parameters)
    except (NameError, TypeError, AssertionError, RuntimeError) as error:
        raise ConfigError(f"--slurm: {' '.join(str(error).split())[:300]}") from error
    return executor


def _goes_on(submitit, folder: pathlib.Path, jobs: Mapping[str, str], point: SweepPoint, cluster: str) -> bool:
    """Whether the job that was submitted for the point waits or runs."""
    if point.name not in jobs:
        return False
    kind = submitit.SlurmJob if cluster == "slurm" else submitit.LocalJob
    job = kind(folder=str(folder / "%j"), job_id=jobs[point.name])
    state = job.watcher.get_state(job.job_id, mode="force") if cluster == "slurm" else job.state
    if state == "UNKNOWN" and read_outcome(point.workdir)[0] is None:
        progress.say(
            f"{point.name}: sacct does not say what became of job {job.job_id}, so it is taken to wait; where it is "
            f"lost, take it out of {folder / JOBS}"
        )
        return True
    return state.split(" ")[0] in GOES_ON


def _read_jobs(path: pathlib.Path) -> dict[str, str]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}


def _write_jobs(path: pathlib.Path, jobs: Mapping[str, str]) -> None:
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(jobs, indent=2) + "\n")
    os.replace(aside, path)
