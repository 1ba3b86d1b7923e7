"""Programs that take the place of Slurm's, Google Cloud's and rw's own: they record how they were called."""

import os
import pathlib
import stat
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent

# Starts the tasks of a step as Slurm does: each with its place in the environment, in a session of its own. A SIGTERM
# is passed on once to every process of every task; the exit code is the highest.
SRUN = f"""#!{sys.executable}
import json, os, pathlib, signal, subprocess, sys

options, command = [], sys.argv[1:]
while command[0].startswith("--"):
    options.append(command.pop(0))
count = int(os.environ["STUB_TASKS"])
step = {{"SLURM_NTASKS": str(count), "SLURM_STEP_NUM_NODES": str(count), "SLURM_STEP_NODELIST": "localhost"}}
tasks = [
    subprocess.Popen(
        command,
        start_new_session=True,
        env={{**os.environ, **step, "SLURM_PROCID": str(k), "SLURM_NODEID": str(k), "SLURM_LOCALID": "0"}},
    )
    for k in range(count)
]
pathlib.Path(os.environ["STUB_RECORD"], "srun.json").write_text(json.dumps([options, [task.pid for task in tasks]]))
signal.signal(signal.SIGTERM, lambda number, frame: [os.killpg(task.pid, number) for task in tasks])
codes = [task.wait() for task in tasks]
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""

SCONTROL = """#!/bin/sh
echo "$@" >>"$STUB_RECORD/scontrol"
[ "$1" = show ] && echo "   JobState=${STUB_STATE:-RUNNING} Reason=None"
exit 0
"""

# Ends with the code at its place in STUB_CODES; `wait` waits for SIGTERM, counts them, and ends with 143.
RW = f"""#!{sys.executable}
import json, os, pathlib, signal, sys, time

record, rank = pathlib.Path(os.environ["STUB_RECORD"]), os.environ.get("SLURM_PROCID", "0")
names = ("SLURM_NTASKS", "SLURM_PROCID", "JAX_LOCAL_DEVICE_IDS", "JAX_COMPILATION_CACHE_DIR")
names += ("XLA_PYTHON_CLIENT_MEM_FRACTION", "SOME_KEY")
with open(record / f"rw_{{rank}}", "a") as file:
    file.write(json.dumps([sys.argv[1:], os.getcwd(), {{name: os.environ.get(name) for name in names}}]) + "\\n")
calls = len((record / f"rw_{{rank}}").read_text().splitlines())
codes = os.environ["STUB_CODES"].split()
code = codes[int(rank)] if "SLURM_PROCID" in os.environ else codes[calls - 1]
if code != "wait":
    os.kill(os.getpid(), 9) if code == "137" else sys.exit(int(code))
heard = []
signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
(record / f"ready_{{rank}}").touch()
while not heard:
    time.sleep(0.02)
time.sleep(0.4)  # for a second one
(record / f"signals_{{rank}}").write_text(str(len(heard)))
sys.exit(143)
"""


def put_program(directory: pathlib.Path, name: str, text: str) -> None:
    file = directory / name
    file.write_text(text)
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


class Slurm:
    """The batch script, started as Slurm does: a copy of it, with an environment that names the job."""

    def __init__(self, directory: pathlib.Path):
        self.directory, self.record = directory / "submitted from", directory / "record"
        for path in (self.directory, self.record, directory / "bin"):
            path.mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("rw", RW)):
            put_program(directory / "bin", name, text)
        self.spooled = directory / "slurm_script"
        self.spooled.write_text((ROOT / "launch" / "slurm.sbatch").read_text())
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "JAX_", "XLA_"))},
            "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "4711",
            "SLURM_SUBMIT_DIR": str(self.directory),
            "STUB_RECORD": str(self.record),
            "STUB_TASKS": "2",
        }

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen:
        return subprocess.Popen(
            ["bash", str(self.spooled), *arguments],
            env={**self.environment, **environment},
            cwd="/",
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, codes: str, *arguments: str, **environment: str) -> int:
        job = self.start(*arguments, STUB_CODES=codes, **environment)
        output, _ = job.communicate(timeout=60)
        assert "command not found" not in output, output
        return job.returncode

    @property
    def was_requeued(self) -> bool:
        asked = self.record / "scontrol"
        return asked.exists() and "requeue 4711" in asked.read_text().splitlines()


@pytest.fixture
def slurm(tmp_path):
    return Slurm(tmp_path)


@pytest.fixture(scope="session")
def wait_for():
    def wait(*paths: pathlib.Path, timeout: float = 30.0) -> None:
        deadline = time.monotonic() + timeout
        while not all(path.exists() for path in paths):
            assert time.monotonic() < deadline, f"none of {paths} after {timeout} s"
            time.sleep(0.02)

    return wait


@pytest.fixture(scope="session")
def program():
    return put_program


@pytest.fixture(scope="session")
def stand_in():
    """The program that takes the place of rw."""
    return RW
