"""Runs of several real processes: shares, one result, stops, losses, and going on with another number of processes."""

import json
import signal
import socket
import subprocess
import time

import pytest

from rw.learner.batch import policy_positions
from rw.rollout.record import read_groups

OVERRIDES = (
    "--config.steps=2",
    "--config.evaluation.every=0",
    "--config.evaluation.test_queries=0",
    "--config.optimizer.learning_rate=1e-4",
)


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class Job:
    """The processes of one `rw train`, each with a device of its own."""

    def __init__(self, command, environment, workdir, count, *overrides):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            coordinator = f"127.0.0.1:{free.getsockname()[1]}"
        place = ("--processes", str(count), "--coordinator", coordinator, f"--config.mesh.fsdp={count}")
        self.processes = [
            subprocess.Popen(
                command("train", workdir, *place, "--process", str(index), *OVERRIDES, *overrides),
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for index in range(count)
        ]

    def wait(self, timeout=240):
        """[(exit code, what it said)] of all."""
        deadline = time.monotonic() + timeout
        try:
            said = [p.communicate(timeout=max(1, deadline - time.monotonic()))[0] for p in self.processes]
        finally:
            for process in self.processes:
                process.kill()
        return [(p.returncode, text) for p, text in zip(self.processes, said, strict=True)]


@pytest.fixture
def job(command, environment, warm):
    """job(workdir, number of processes, overrides…) starts them, on the warm start of the tiny config."""
    started = []

    def start(workdir, count, *overrides):
        started.append(Job(command, environment, workdir, count, f"--config.init.path={warm}", *overrides))
        return started[-1]

    yield start
    for each in started:
        for process in each.processes:
            process.kill()


def wait_for(condition, processes, timeout=120):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "nothing came of it"
        assert all(process.poll() is None for process in processes), processes[0].communicate()[0][-2000:]
        time.sleep(0.02)


def journaled(folder, kind="response"):
    """Events of that kind in the journals of a process's folder."""
    paths = folder.glob("journal/*/segment_*.jsonl")
    return sum(path.read_text().replace(" ", "").count(f'"kind":"{kind}"') for path in paths)


def assert_whole(workdir, counts, steps=2):
    """A finished run, by jobs of so many processes: each rollout once in the last step, and one sum of all books."""
    folders = [workdir, *(workdir / f"process_{index}" for index in range(1, max(counts)))]
    assert [row["step"] for row in rows(workdir / "metrics.jsonl")] == list(range(1, steps + 1))
    last = folders[: counts[-1]]
    records = [record for folder in last for record in rows(folder / "trajectories" / f"step_{steps:06d}.jsonl")]
    assert len({(r["query_id"], r["rollout"]) for r in records}) == len(records) == 24
    ledger = [record for folder in folders for record in rows(folder / "ledger.jsonl")]
    spent = sum((r["cost_usd"] or 0) + r["unknown_usd"] for r in ledger if r["kind"] == "attempt")
    metrics = rows(workdir / "metrics.jsonl")[-1]
    assert metrics["cost/spent_usd"] == pytest.approx(spent) and spent > 0
    return records, ledger


def test_two_processes_share_the_rollouts_and_learn_from_all(job, tmp_path):
    workdir = tmp_path / "two"
    results = job(workdir, 2, "--config.steps=1").wait()
    assert [code for code, _ in results] == [0, 0], results
    assert "step 1/1" in results[0][1] and "step" not in results[1][1]  # one speaks for all
    _, ledger = assert_whole(workdir, [2], steps=1)
    halves = [read_groups(path / "trajectories" / "step_000001.jsonl") for path in (workdir, workdir / "process_1")]
    assert [[group.query.id for group in half] for half in halves] == [
        [f"sim-train-{index:06d}" for index in part] for part in (range(3), range(3, 6))
    ]
    rollouts = [rollout.trajectory for half in halves for group in half for rollout in group.rollouts]
    sampled = sum(policy_positions(trajectory.segments).size for trajectory in rollouts)
    assert rows(workdir / "metrics.jsonl")[0]["N_KL"] == sampled  # of both
    assert {r["run"] for r in ledger} == {"two"} and not (workdir / "process_1" / "metrics.jsonl").exists()


@pytest.mark.full
def test_two_processes_train_and_test_as_one(job, run, warm, tmp_path):
    """Every rollout, so also every figure, is that of a run in one process, up to rounding on another mesh."""
    evaluated = ("--config.evaluation.every=1", "--config.evaluation.test_queries=10")
    arms = ("--config.steps=3", "--config.evaluation.arms=('trained', 'warm_start', 'scripted')")
    results = job(tmp_path / "two", 2, *evaluated, *arms).wait()
    assert [code for code, _ in results] == [0, 0], results
    run("train", tmp_path / "one", *OVERRIDES, f"--config.init.path={warm}", *evaluated, *arms)
    for found, expected in zip(*(rows(tmp_path / name / "metrics.jsonl") for name in ("two", "one")), strict=True):
        for name in ("loss/total", "grad_norm", "N_mode", "N_inner", "reward/task/mean", "cost/per_step", "rho_b"):
            assert found.get(name) == pytest.approx(expected.get(name), rel=1e-3, abs=1e-6), name
        assert found["cost/spent_usd"] == pytest.approx(expected["cost/spent_usd"])
    names = ("validation.jsonl", "evaluation/trained.jsonl", "evaluation/scripted_multi.jsonl")
    for name in names:
        pairs = zip(*(rows(tmp_path / folder / name)[1:] for folder in ("two", "one")), strict=True)
        assert all(without_time(found) == without_time(expected) for found, expected in pairs), name


def without_time(row):
    return {key: value for key, value in row.items() if key not in ("time_s", "latency_s")}


@pytest.mark.full
def test_a_lost_process_ends_the_others_and_any_number_continues(job, run, warm, tmp_path):
    workdir = tmp_path / "run"
    running = job(workdir, 2, "--config.workers.latency_s=0.3", "--config.deterministic=False")
    wait_for(lambda: journaled(workdir / "process_1") > 5 and journaled(workdir) > 5, running.processes)
    running.processes[1].kill()
    began = time.monotonic()
    (code, said), (killed, _) = running.wait()
    assert killed == -signal.SIGKILL and time.monotonic() - began < 60
    assert code == 8 and "process 1 of 2 was lost: no sign of life for" in said, said
    assert "the same command, with this number of processes or another, continues the run" in said
    answered = journaled(workdir) + journaled(workdir / "process_1")
    run("train", workdir, *OVERRIDES, f"--config.init.path={warm}", "--config.deterministic=False")
    _, ledger = assert_whole(workdir, [2, 1])
    assert sum(record["kind"] == "replayed" for record in ledger) >= answered - 2  # by either, in its last moment


@pytest.mark.full
def test_without_its_first_process_a_job_ends(job, tmp_path):
    running = job(tmp_path / "run", 2, "--config.workers.latency_s=0.3", "--config.deterministic=False")
    wait_for(lambda: journaled(tmp_path / "run") > 5, running.processes)
    running.processes[0].kill()
    began = time.monotonic()
    _, (code, said) = running.wait()
    assert code == 8 and time.monotonic() - began < 60
    assert "rw: the coordinator, process 0, " in said and "continues the run" in said


@pytest.mark.full
@pytest.mark.parametrize("process", [0, 1])
def test_sigterm_to_one_process_stops_all_in_order_and_any_number_continues(job, tmp_path, process):
    workdir = tmp_path / "run"
    running = job(workdir, 2, "--config.workers.latency_s=0.5", "--config.deterministic=False")
    wait_for(lambda: journaled(workdir / "process_1") > 5 and journaled(workdir) > 5, running.processes)
    running.processes[process].send_signal(signal.SIGTERM)
    began = time.monotonic()
    results = running.wait()
    assert time.monotonic() - began < 20
    assert [code for code, _ in results] == [143, 143], results
    assert "stopped by SIGTERM" in results[0][1] and "the same command continues the run" in results[0][1]
    results = job(workdir, 3, "--config.batch.micro_batch=9", "--config.deterministic=False").wait()
    assert [code for code, _ in results] == [0, 0, 0], results
    assert_whole(workdir, [2, 3])


@pytest.mark.full
def test_an_error_of_one_process_ends_all_with_its_exit_code(job, tmp_path):
    """The others have budget left, but a run that stops at its cap stops as a whole."""
    results = job(tmp_path / "run", 2, "--config.budget.run_usd=2e-5").wait()
    assert [code for code, _ in results] == [5, 5], results
    assert any("budget.run_usd" in text and "this host's share" in text for _, text in results)


def test_processes_that_do_not_divide_the_batch_or_were_started_otherwise_are_refused(job, tmp_path):
    results = job(tmp_path / "run", 2, "--config.queries_per_batch=5").wait()
    assert [code for code, _ in results] == [2, 2], results
    assert (
        "queries_per_batch=5 cannot be divided among 2 processes: their number must be one of [1, 5]" in results[0][1]
    )
