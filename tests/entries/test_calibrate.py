"""`rw calibrate`: the reference cost is the percentile that it claims to be, of a router's own rollouts, and runs take
it up from the file."""

import json
import pathlib
import subprocess
import time

import numpy as np
import pytest

from rw import calibrate, cli
from rw.calibrate import training_queries
from rw.config import as_dict, load_config
from rw.errors import ConfigError, DataError
from rw.evaluation.reference_cost import FORMAT, describe, read_reference_cost, reference_cost, write_reference_cost
from rw.types import CallStatus, Group, Mode, Query, ScoredTrajectory, Status, Trajectory, WorkerCall

ROOT = pathlib.Path(__file__).parent.parent.parent
TINY = ROOT / "tests" / "data" / "configs" / "tiny.py"
DEFAULT = 0.0070716653


def test_the_percentile_interpolates_linearly():
    found = reference_cost([[float(x)] for x in range(1, 22)])  # 21 values: 0.95 × 20 = 19 places on, exactly the 20th
    assert found.usd == 20.0 and found.low_usd <= 20.0 <= found.high_usd
    assert reference_cost([[1.0, 2.0, 3.0, 4.0]]).usd == pytest.approx(3.85)


def test_the_interval_draws_whole_queries():
    groups = [[1.0] * 8] * 10 + [[2.0] * 8] * 10  # all spread is between queries
    found = reference_cost(groups)
    assert (found.usd, found.high_usd) == (2.0, 2.0)
    assert reference_cost([[0.5] * 50]) == reference_cost([[0.5] * 50, []])  # a query without costs is not drawn


@pytest.mark.parametrize(("costs", "said"), [([[], []], "no rollout has a cost"), ([[0.0] * 9], "must be above 0")])
def test_what_gives_no_reference_is_refused(costs, said):
    with pytest.raises(DataError, match=said):
        reference_cost(costs)


def rollout(query_id: str, mode: Mode, status: Status, *costs: float | None) -> ScoredTrajectory:
    calls = [
        WorkerCall(f"n{k}", "worker_1", None, (), "?", "!", None, None, cost, 0.0, 1, CallStatus.OK)
        for k, cost in enumerate(costs)
    ]
    empty = np.zeros(0, np.float32)
    trajectory = Trajectory(
        query_id=query_id, rollout_index=0, mode=mode, forced=True, tokens=empty.astype(np.int32),
        segments=empty.astype(np.uint8), sampled_logprobs=empty, calls=tuple(calls), answer=None, status=status,
        prompt_length=0,
    )  # fmt: skip
    return ScoredTrajectory(trajectory, None)


def test_failures_and_incomplete_records_are_left_out_and_every_other_outcome_counts():
    query = Query("q", "any", "any", "?", "1")
    rollouts = (
        rollout("q", Mode.SINGLE, Status.ANSWERED, 1.0),
        rollout("q", Mode.SINGLE, Status.TERMINAL_INVALID, 2.0, 3.0),
        rollout("q", Mode.SINGLE, Status.EXHAUSTED),
        rollout("q", Mode.SINGLE, Status.INFRASTRUCTURE_FAILURE, 100.0),
        rollout("q", Mode.SINGLE, Status.ANSWERED, 100.0, None),
    )
    found = describe([Group(0, query, Mode.SINGLE, rollouts)], "accepted")
    assert (found["rollouts"], found["counted"]) == (5, 3)
    assert (found["infrastructure_failures"], found["incomplete_cost_records"]) == (1, 1)
    assert found["reference_cost_usd"] == pytest.approx(np.percentile([0.0, 1.0, 5.0], 95))
    assert found["by_mode"]["single"]["counted"] == 3 and found["by_mode"]["multi"]["mean_usd"] is None


def test_questions_are_the_first_different_ones_of_training():
    def batches(b, size):
        return [Query(f"q{b}/{k}", "any", "any", f"{(b * size + k) % 7}?", "1") for k in range(size)]

    assert [query.prompt for query in training_queries(batches, 4, 6)] == ["0?", "1?", "2?", "3?", "4?", "5?"]
    with pytest.raises(DataError, match="--queries 8: there are 7 different questions"):
        training_queries(batches, 4, 8)


@pytest.fixture
def calibrated(tmp_path):
    path = tmp_path / "reference_cost.json"
    write_reference_cost(path, {"format": FORMAT, "reference_cost_usd": 0.00125, "retry_cost": "accepted"})
    return path


def test_a_config_takes_the_number_and_records_it(calibrated):
    overrides = [("reward.reference_cost_usd", str(DEFAULT)), ("reward.reference_cost_file", str(calibrated))]
    reward = as_dict(load_config(str(TINY), overrides))["reward"]
    assert (reward["reference_cost_usd"], reward["reference_cost_file"]) == (0.00125, "")


def test_a_file_beside_a_number_of_its_own_is_refused(calibrated):
    with pytest.raises(
        ConfigError, match=r"reference_cost_usd=3.3e-05 are both set: .*--config.reward.reference_cost_u"
    ):
        load_config(str(TINY), [("reward.reference_cost_file", str(calibrated))])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "rw calibrate writes such a file"),
        ("{", "is not JSON"),
        ("[1]", "is not a file of rw calibrate"),
        (json.dumps({"format": FORMAT, "reference_cost_usd": 0}), "must be a number of USD above 0"),
        (json.dumps({"format": FORMAT, "reference_cost_usd": 1.0, "retry_cost": "reported"}), "retry_cost='reported'"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(text, said, tmp_path):
    path = tmp_path / "cost.json"
    if text is not None:
        path.write_text(text)
    overrides = [("reward.reference_cost_usd", str(DEFAULT)), ("reward.reference_cost_file", str(path))]
    with pytest.raises(ConfigError, match=said):
        load_config(str(TINY), overrides)


def test_a_dry_run_counts_the_rollouts(tmp_path, capsys):
    arguments = ["calibrate", "--config", str(TINY), "--workdir", str(tmp_path / "out"), "--checkpoint", "quickstart"]
    assert cli.main([*arguments, "--queries", "16", "--rollouts", "2", "--dry-run"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "calibration" in line)
    assert " 32 " in line and not (tmp_path / "out").exists()


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_more_questions_than_there_are_to_train_on_are_refused_before_the_directory_is_made(
    tmp_path, capsys, monkeypatch, dry
):
    few = [Query(f"q{k}", "any", "any", f"{k}?", "1") for k in range(6)]
    monkeypatch.setattr(calibrate, "query_batches", lambda config: lambda b, size: few)
    given = ["calibrate", "--config", str(TINY), "--workdir", str(tmp_path / "out"), "--checkpoint", "quickstart"]
    assert cli.main([*given, *dry]) == 2
    assert "--queries 128: there are 6 different questions to train on; take as many" in capsys.readouterr().err
    assert cli.main([*given, *dry, "--queries", "0"]) == 2 and not (tmp_path / "out").exists()


def test_a_router_of_another_shape_is_refused_before_anything_is_asked(tmp_path, capsys):
    arguments = ["calibrate", "--config", str(TINY), "--workdir", str(tmp_path / "out"), "--checkpoint", "quickstart"]
    assert cli.main([*arguments, "--queries", "4"]) == 2
    assert "do not fit config.model" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("ledger*")) or not (tmp_path / "out" / "ledger.jsonl").read_text()


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_router_is_calibrated_once_and_a_run_takes_the_result_up(run, warm, tmp_path):
    workdir = tmp_path / "calibration"
    flags = ["--checkpoint", str(warm), "--queries", "9", "--rollouts", "2"]
    run("calibrate", workdir, *flags)
    found = read_reference_cost(workdir / "reference_cost.json")
    assert (found["queries"], found["rollouts"], found["modes"]) == (9, 18, "forced, balanced")
    ledger = [json.loads(line) for line in (workdir / "ledger.jsonl").read_text().splitlines()]
    calls = [entry for entry in ledger if entry.get("kind") == "call"]
    assert calls and {entry["run"] for entry in calls} == {"calibration/calibration"}
    again = run("calibrate", workdir, *flags)
    assert "is there already" in again.stdout
    assert len((workdir / "ledger.jsonl").read_text().splitlines()) == len(ledger)
    assert "made with other queries" in run("calibrate", workdir, *flags[:3], "6", expect=2).stderr
    for key, value, other in (
        ("protocol.response_budget", 60, "conditions"),
        ("reward.retry_cost", "reported", "retry_cost"),
    ):
        changed = run("calibrate", workdir, *flags, f"--config.{key}={value}", expect=2)
        assert f"made with other {other};" in changed.stderr
    overrides = ["--config.init.source=params", f"--config.init.path={warm}", "--config.steps=1"]
    cost = [f"--config.reward.reference_cost_usd={DEFAULT}"]
    cost.append(f"--config.reward.reference_cost_file={workdir / 'reference_cost.json'}")
    run(
        "train",
        tmp_path / "run",
        *overrides,
        *cost,
        "--config.evaluation.every=0",
        "--config.evaluation.test_queries=0",
    )
    reward = json.loads((tmp_path / "run" / "config.json").read_text())["reward"]
    assert reward["reference_cost_usd"] == found["reference_cost_usd"]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_one_that_was_killed_goes_on_and_finds_the_same(run, warm, command, environment, tmp_path):
    flags = ["--checkpoint", str(warm), "--queries", "12", "--rollouts", "2", "--config.workers.latency_s=0.3"]
    run("calibrate", tmp_path / "whole", *flags)
    killed = tmp_path / "killed"
    process = subprocess.Popen(command("calibrate", killed, *flags), env=environment, cwd=tmp_path)
    end = time.monotonic() + 300
    while not (killed / "ledger.jsonl").exists() or len((killed / "ledger.jsonl").read_text().splitlines()) < 6:
        assert time.monotonic() < end and process.poll() is None, "no call was answered in time"
        time.sleep(0.05)
    process.kill()
    process.wait()
    run("calibrate", killed, *flags)
    found = [json.loads((path / "reference_cost.json").read_text()) for path in (tmp_path / "whole", killed)]
    assert found[0] == found[1]
    for path in (tmp_path / "whole", killed):
        ledger = [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()]
        calls = [
            (r["step"], r["group"], r["rollout"], r["turn"], r["call"])
            for r in ledger
            if r["kind"] == "call" and r["accepted"]
        ]
        assert len(calls) == len(set(calls))
