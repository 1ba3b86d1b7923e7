"""Sweeps on SLURM: jobs of submitit that run on this machine, and what reaches an sbatch that only writes it down."""

import importlib.util
import json
import os
import pathlib
import signal
import time

import pytest

from rw import cli
from rw.errors import ConfigError
from rw.evaluation.sweep_results import FINISHED
from rw.sweeps.slurm import PointJob, options, submit
from rw.sweeps.state import read_outcome, result_of

ROOT = pathlib.Path(__file__).parent.parent.parent
FAKE = pathlib.Path(__file__).parent / "fake_sweep.py"
SPEC = importlib.util.spec_from_file_location("fake_sweep_of_jobs", FAKE)
FAKED = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(FAKED)


def test_options_get_the_names_that_submitit_wants():
    given = options(["partition=gpu", "gpus_per_node=8", "timeout_min=90", "constraint=a100&80g", "slurm_qos=high"])
    assert given == {
        "timeout_min": 90, "name": "rw-sweep", "slurm_partition": "gpu", "gpus_per_node": 8,
        "slurm_constraint": "a100&80g", "slurm_qos": "high",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="'partition' must be KEY=VALUE"):
        options(["partition"])


def jobs_of(points, seconds=0.01):
    """What a job of each point runs instead of `rw train`: `program` gets the job's process and these arguments."""
    for point in points:
        point.workdir.mkdir(parents=True, exist_ok=True)
        FAKED.command(seconds)(point)  # writes planned.json


def test_a_job_notes_how_its_run_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    point = FAKED.planned(tmp_path).points[0]
    jobs_of([point])
    arguments = [str(point.workdir), str(point.workdir / "planned.json"), "0.01"]
    assert PointJob(str(point.workdir), arguments, [str(FAKE), "run"])() == 0
    assert read_outcome(point.workdir) == (0, "") and result_of(point).status == FINISHED
    assert PointJob(str(point.workdir), [*arguments, "fails"], [str(FAKE), "run"])() == 4
    assert read_outcome(point.workdir) == (4, "rw train: error: the Workers are on strike")


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """A PATH with an sbatch that keeps what it is given, an sacct that says what `states` says, and an srun."""
    folder = tmp_path / "bin"
    folder.mkdir()
    scripts = {
        "sbatch": f"cp ${{@: -1}} {tmp_path}/submitted.sh; echo call >>{tmp_path}/calls; echo Submitted batch job 77",
        "sacct": f"echo 'JobID|State|NodeList'; cat {tmp_path}/states",
        "srun": "exit 1",
    }
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    (tmp_path / "states").write_text("")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path


@pytest.mark.full
def test_one_array_is_submitted_and_not_again_while_it_waits(stub):
    pytest.importorskip("submitit")
    sweep = FAKED.planned(stub / "sweep")
    parameters = options(["partition=gpu", "gpus_per_node=8"])
    assert submit(sweep.points, sweep.workdir, 2, parameters) == 4
    text = (stub / "submitted.sh").read_text()
    assert "#SBATCH --array=0-3%2" in text and "#SBATCH --partition=gpu" in text
    assert "#SBATCH --gpus-per-node=8" in text and "#SBATCH --time=1440" in text
    jobs = json.loads((sweep.workdir / "slurm" / "jobs.json").read_text())
    assert list(jobs.values()) == [f"77_{k}" for k in range(4)]

    (stub / "states").write_text("77_0|RUNNING|a\n77_[1-3]|PENDING|\n")
    assert submit(sweep.points, sweep.workdir, 2, parameters) == 4
    assert (stub / "calls").read_text().count("call") == 1

    (stub / "states").write_text("77_0|COMPLETED|a\n77_1|FAILED|a\n77_2|NODE_FAIL|a\n77_3|PENDING|\n")
    FAKED.answer(sweep.points[0].workdir, 4, 1e-5)  # the first has finished, two lost their nodes
    (sweep.points[0].workdir / "metrics.jsonl").write_text('{"step": 4}\n')
    FAKED.command(0)(sweep.points[0])
    (sweep.points[0].workdir / "planned.json").rename(sweep.points[0].workdir / "config.json")
    assert submit(sweep.points, sweep.workdir, 2, parameters) == 3
    assert "#SBATCH --array=0-1%2" in (stub / "submitted.sh").read_text()


@pytest.mark.full
@pytest.mark.parametrize(
    ("sbatch", "said"),
    [
        ("echo Invalid account >&2; exit 1", "Invalid account"),
        ("echo hello", "Could not make sense of sbatch output .hello"),
        ("kill -9 $$", "it ended without a word"),
    ],
)
def test_an_sbatch_that_refuses_is_said(sbatch, said, stub):
    pytest.importorskip("submitit")
    (stub / "bin" / "sbatch").write_text(f"#!/bin/bash\n{sbatch}\n")
    sweep = FAKED.planned(stub / "sweep")
    (sweep.workdir / "slurm").mkdir(parents=True)
    (sweep.workdir / "slurm" / "jobs.json").write_text("[1]")  # a file that holds no jobs
    with pytest.raises(ConfigError, match=f"sbatch refused the jobs: .*{said}"):
        submit(sweep.points, sweep.workdir, 2, options([]))


@pytest.mark.full
def test_an_unknown_option_is_refused(stub):
    pytest.importorskip("submitit")
    sweep = FAKED.planned(stub / "sweep")
    with pytest.raises(ConfigError, match="--slurm: .*Unknown argument 'queue'"):
        submit(sweep.points, sweep.workdir, 2, options(["queue=gpu"]))


@pytest.mark.full
@pytest.mark.timeout(400)
def test_jobs_run_to_their_end_and_a_signal_before_the_time_is_up_asks_for_another(tmp_path, monkeypatch):
    submitit = pytest.importorskip("submitit")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    point = FAKED.planned(tmp_path).points[0]
    jobs_of([point])
    arguments = [str(point.workdir), str(point.workdir / "planned.json"), "0.5"]
    executor = submitit.AutoExecutor(folder=str(tmp_path / "jobs"), cluster="local")
    executor.update_parameters(timeout_min=5)
    job = executor.submit(PointJob(str(point.workdir), arguments, [str(FAKE), "run"]))
    wait_for(lambda: (point.workdir / "metrics.jsonl").exists())
    os.kill(int((point.workdir / "starts").read_text()), signal.SIGUSR2)  # to the job, as SLURM does
    assert job.result() == 0  # of the job that took its place
    assert (point.workdir / "terminated").exists() and len((point.workdir / "starts").read_text().splitlines()) == 2
    assert result_of(point).status == FINISHED
    assert (point.workdir / "metrics.jsonl").read_text().count("step") == 4


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.1)


@pytest.mark.full
def test_the_command_submits_and_returns(stub, capsys):
    pytest.importorskip("submitit")
    (stub / "few.py").write_text("from rw.sweeps.points import seeds\n\n\ndef get_sweep():\n    return seeds(2)\n")
    flags = ["--sweep", str(stub / "few.py"), "--workdir", str(stub / "out"), "--backend", "slurm", "--processes", "1"]
    assert cli.main(["sweep", "--config", FAKED.TINY, *flags, "--slurm", "partition=gpu"]) == 0
    assert "2 points wait or run" in capsys.readouterr().out
    assert "--array=0-1%1" in (stub / "submitted.sh").read_text()
    points = json.loads((stub / "out" / "sweep.json").read_text())["points"]
    assert [point["status"] for point in points] == ["waiting", "waiting"]
