"""Runs whose Workers are down: they stop before they learn from it, and go on where they were."""

import json

import pytest


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_without_a_single_worker_stops_before_it_learns(run, warm, tmp_path):
    workdir = tmp_path / "run"
    down = ("--config.workers.lost_call_rate=1", "--config.evaluation.every=0", "--config.steps=2")
    failed = run("train", workdir, f"--config.init.path={warm}", *down, expect=6)
    says = failed.stderr.strip().splitlines()[-1]
    assert "step_000001" in says and "rollouts were lost to infrastructure (client_error " in says
    assert "worker_" in says and "the same command asks again for what was lost" in says
    assert not rows(workdir / "metrics.jsonl") and "finished" not in failed.stdout


@pytest.mark.full
def test_a_run_goes_on_after_an_outage_and_asks_again_only_for_what_was_lost(run, warm, tmp_path):
    workdir = tmp_path / "run"
    overrides = (f"--config.init.path={warm}", "--config.steps=2", "--config.evaluation.every=0")
    run("train", workdir, *overrides, "--config.workers.lost_call_rate=0.6", expect=6)
    before = rows(workdir / "ledger.jsonl")
    call = ("run", "step", "group", "rollout", "turn", "call")
    answered = {tuple(r[name] for name in call) for r in before if r["kind"] == "call" and r["accepted"]}
    assert answered
    run("train", workdir, *overrides)
    after = rows(workdir / "ledger.jsonl")[len(before) :]
    assert {tuple(r[name] for name in call) for r in after if r["kind"] == "replayed"} == answered
    assert not answered & {tuple(r[name] for name in call) for r in after if r["kind"] == "sent"}
    assert [row["infra/excluded_frac"] for row in rows(workdir / "metrics.jsonl")] == [0, 0]
