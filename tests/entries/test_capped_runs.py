"""Runs that reach a cap, are killed, or find a file STOP: what they say, leave and spend, and how they go on."""

import dataclasses
import json
import pathlib
import subprocess

import pytest

from rw import cli
from rw.errors import ConfigError
from rw.run_config import RunConfig
from rw.worker_pool import worker_endpoints
from rw.workers.budget import BudgetConfig
from rw.workers.ledger import read_ledger, spent_usd

WORST_USD = 0.00282  # of one call to the dearest simulated Worker; calls cost a thousandth of it


def rows(workdir, name="metrics.jsonl"):
    return [json.loads(line) for line in (workdir / name).read_text().splitlines()]


def spent(workdir):
    return spent_usd(read_ledger(workdir / "ledger.jsonl")[0])


def test_a_cap_ends_a_warm_start_before_it_is_exceeded(tmp_path, capsys):
    tiny = str(pathlib.Path(__file__).parent.parent / "data" / "configs" / "tiny.py")
    arguments = ["warmstart", "--config", tiny, "--workdir", str(tmp_path)]
    cap = WORST_USD + 0.0001
    for _ in range(2):  # what was spent before counts
        assert cli.main([*arguments, f"--config.budget.run_usd={cap}"]) == 5
        error = capsys.readouterr().err
        assert f"budget.run_usd={cap:g} USD leaves no room" in error and "raise budget.run_usd" in error
        assert 0 < spent(tmp_path) <= cap
    assert cli.main([*arguments, f"--config.budget.run_usd={cap}", "--dry-run"]) == 0
    assert not (tmp_path / "warmstart").exists()


@pytest.mark.parametrize(("kind", "source"), [("simulated", "simulated"), ("replay", "nq6")])
def test_a_cap_for_a_worker_that_is_not_there_is_refused(kind, source):
    whole = RunConfig()
    workers, data = dataclasses.replace(whole.workers, kind=kind), dataclasses.replace(whole.data, source=source)
    config = dataclasses.replace(whole, workers=workers, data=data, budget=BudgetConfig(workers_usd={"worker_1": 1.0}))
    assert worker_endpoints(config)[0].id == "worker_1"
    config = dataclasses.replace(config, budget=BudgetConfig(workers_usd={"worker_1": 1.0, "woker_2": 1.0}))
    with pytest.raises(ConfigError, match="budget.workers_usd.woker_2; did you mean 'worker_2'"):
        worker_endpoints(config)


@pytest.fixture(scope="module")
def options(warm):
    return (f"--config.init.path={warm}", "--config.evaluation.test_queries=0", "--config.evaluation.every=0")


@pytest.mark.full
def test_a_cap_ends_a_run_in_order_and_a_higher_one_continues_it(run, options, tmp_path):
    workdir = tmp_path / "run"
    cap = WORST_USD + 0.0006
    capped = run("train", workdir, *options, f"--config.budget.run_usd={cap}", expect=5)
    assert "leaves no room" in capped.stderr
    done = [row["step"] for row in rows(workdir)]
    assert done == list(range(1, len(done) + 1)) and 1 <= len(done) < 4
    assert (workdir / "checkpoints" / str(len(done))).is_dir()
    assert 0.0003 < spent(workdir) <= cap
    run("train", workdir, *options, "--config.budget.run_usd=1.0")
    assert [row["step"] for row in rows(workdir)] == [1, 2, 3, 4]
    last = rows(workdir)[-1]
    assert last["cost/spent_usd"] == pytest.approx(spent(workdir)) and last["cost/cap"] == "budget.run_usd"
    assert last["cost/cap_share"] == pytest.approx(spent(workdir))


@pytest.mark.full
def test_a_cap_of_a_step_ends_the_run_in_that_step(run, options, tmp_path):
    workdir = tmp_path / "run"
    ended = run("train", workdir, *options, f"--config.budget.step_usd={WORST_USD + 0.0001}", expect=5)
    assert "budget.step_usd" in ended.stderr
    run("train", workdir, *options, "--config.budget.step_usd=1.0", "--config.steps=1")


@pytest.mark.full
def test_a_file_stop_ends_a_run_and_the_spending_of_a_killed_one_counts(command, environment, run, options, tmp_path):
    workdir = tmp_path / "run"
    process = subprocess.Popen(
        command("train", workdir, *options, "--config.workers.latency_s=0.2"),
        env=environment, cwd=workdir.parent, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in process.stdout:
        if line.startswith("step 1/"):
            break
    process.kill()
    process.wait()
    process.stdout.close()
    before = spent(workdir)
    assert before > 0
    process = subprocess.Popen(
        command("train", workdir, *options, "--config.workers.latency_s=5.0", "--config.budget.run_usd=1.0"),
        env=environment, cwd=workdir.parent, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in process.stdout:
        if line.startswith("step "):
            (workdir / "STOP").touch()
            break
    rest = process.stdout.read()
    assert process.wait() == 7 and "stopped by" in rest and "STOP" in rest
    assert spent(workdir) >= before
    refused = run("train", workdir, *options, expect=7)
    assert "remove it" in refused.stderr
    (workdir / "STOP").unlink()
    run("train", workdir, *options, "--config.budget.run_usd=1.0")
    assert [row["step"] for row in rows(workdir)] == [1, 2, 3, 4]
    assert rows(workdir)[-1]["cost/spent_usd"] == pytest.approx(spent(workdir))
