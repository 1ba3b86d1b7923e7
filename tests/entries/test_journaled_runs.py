"""A run killed in the middle of a step: what was sampled and paid for is neither sampled nor paid for again."""

import collections
import json
import signal
import subprocess
import time

import pytest

from rw.journals import discard_steps
from rw.workers.journal import Journals
from rw.workers.lines import read_lines


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def events(journal):
    """Events of a journal, in order; none before it is begun."""
    paths = sorted(journal.glob("segment_*.jsonl"))
    return [record for path in paths for record in read_lines(path.read_bytes())[0] if record["kind"] != "header"]


def journal_of(workdir, scope):
    """The journal whose name fits; where there is none yet, one that is not there."""
    return next((workdir / "journal").glob(scope), workdir / "journal" / scope)


def kill_in(command, environment, workdir, scope, share, *overrides):
    """Starts a run and kills it once this share of the answers of 24 rollouts is in the journal of a scope."""
    process = subprocess.Popen(command("train", workdir, *overrides), env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        found = events(journal_of(workdir, scope))
        if sum(event["kind"] == "response" for event in found) >= 24 * share:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    assert process.wait() == -signal.SIGKILL
    return events(journal_of(workdir, scope))


def identity(record):
    return tuple(record[name] for name in ("step", "group", "rollout", "turn", "call"))


def test_only_journals_of_earlier_steps_are_discarded(tmp_path):
    for name in ("step_000001", "step_000002", "step_000003", "step_000001.bak", "step_", "validation_000001"):
        (tmp_path / name).mkdir()
    discard_steps(Journals(tmp_path, {}), upto=2)
    assert Journals(tmp_path, {}).scopes() == ["step_", "step_000001.bak", "step_000003", "validation_000001"]


@pytest.mark.full
def test_a_run_killed_in_mid_step_pays_for_no_answer_twice(command, environment, run, warm, tmp_path):
    workdir = tmp_path / "run"
    overrides = (
        f"--config.init.path={warm}",
        "--config.workers.latency_s=0.3",
        "--config.deterministic=False",
        "--config.steps=2",
        "--config.evaluation.arms=('trained',)",
    )
    journaled = kill_in(command, environment, workdir, "step_000002", 0.5, *overrides)
    answered = {tuple(event["call"]) for event in journaled if event["kind"] == "response"}
    under_way = {tuple(event["call"]) for event in journaled if event["kind"] == "intent"} - answered
    sampled = {(e["query"], e["rollout"], e["turn"]): e["tokens"] for e in journaled if e["kind"] == "turn"}
    assert answered and under_way and sampled
    run("train", workdir, *overrides)
    replayed = [(row["step"], row["perf/replayed_turns"]) for row in rows(workdir / "metrics.jsonl")]
    assert replayed == [(1, 0), (2, len(sampled))]

    ledger = [record for record in rows(workdir / "ledger.jsonl") if record["run"] == "run"]
    kinds = collections.defaultdict(collections.Counter)
    for record in ledger:
        kinds[record["kind"]][identity(record)] += 1
    assert set(kinds["replayed"]) == answered
    assert all(kinds["sent"][call] == 1 for call in answered)
    assert {call for call, count in kinds["sent"].items() if count > 1} <= under_way
    lost = [record for record in ledger if record["kind"] == "attempt" and record["unknown_usd"] > 0]
    assert {
        identity(record) for record in lost
    } <= under_way and lost  # what a killed call may have cost is in the books

    records = rows(workdir / "trajectories" / "step_000002.jsonl")
    cost = sum(call["cost_usd"] for record in records for call in record["calls"])
    booked = {identity(r): r["cost_usd"] for r in ledger if r["kind"] == "call" and r["accepted"] and r["step"] == 2}
    assert cost == pytest.approx(sum(booked.values()))
    assert not (workdir / "journal" / "step_000001").exists()  # two checkpoints lie behind it


@pytest.mark.full
@pytest.mark.parametrize("scope", ["validation_000002", "test_forced_agentic_*", "test_scripted_multi_*"])
def test_a_run_killed_in_an_evaluation_pays_for_no_answer_twice(command, environment, run, warm, tmp_path, scope):
    workdir = tmp_path / "run"
    overrides = (
        f"--config.init.path={warm}",
        "--config.workers.latency_s=0.3",
        "--config.steps=2",
        "--config.evaluation.every=2",
    )
    if scope.startswith("test_forced"):  # the best router of this run may be that of step 0
        overrides += ("--config.evaluation.every=0",)
    answered = {
        tuple(event["call"])
        for event in kill_in(command, environment, workdir, scope, 0.2, *overrides)
        if event["kind"] == "response"
    }
    run("train", workdir, *overrides)
    label = f"run/{scope.rpartition('_')[0]}"
    ledger = [record for record in rows(workdir / "ledger.jsonl") if record["run"] == label]
    sent = collections.Counter(identity(record) for record in ledger if record["kind"] == "sent")
    assert {identity(record) for record in ledger if record["kind"] == "replayed"} == answered
    assert all(sent[call] == 1 for call in answered)
    assert not journal_of(workdir, scope).exists()
