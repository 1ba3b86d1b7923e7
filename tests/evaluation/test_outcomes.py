"""What is kept of a rollout, and the file of an arm."""

import dataclasses
import json

import numpy as np
import pytest

from rw.errors import DataError
from rw.evaluation.outcomes import (
    ArmResult,
    Outcome,
    arm_path,
    outcome,
    read_arm,
    read_arms,
    readable_part,
    worker_latency_s,
    write_arm,
)
from rw.types import (
    CallStatus,
    Group,
    Mode,
    Query,
    Role,
    ScoredTrajectory,
    Segment,
    Status,
    Trajectory,
    Verdict,
    WorkerCall,
)

QUERY = Query("q1", "math", "math", "What is 2 + 3?", "5")


def call(node, turn, latency_s, input_tokens=10, output_tokens=3, worker_id="worker_1"):
    return WorkerCall(
        node, worker_id, Role.EXECUTOR, (), "solve", "5", input_tokens, output_tokens, 1e-6, latency_s, 1,
        CallStatus.OK, turn=turn,
    )  # fmt: skip


def scored(calls):
    segments = np.array([Segment.PROMPT] * 5 + [Segment.MODE] * 2 + [Segment.INJECTED] + [Segment.INNER] * 3, np.uint8)
    trajectory = Trajectory(
        "q1", 0, Mode.AGENTIC, False, np.arange(11, dtype=np.int32), segments, np.zeros(11, np.float32), 5, calls,
        "5", Status.ANSWERED,
    )  # fmt: skip
    return ScoredTrajectory(trajectory, Verdict(True, kind="pass"))


def measured(*calls):
    one = scored(calls)
    return outcome(Group(0, QUERY, None, (one,)), one)


def test_tokens_calls_and_verdict_of_a_rollout():
    found = measured(call("n1", 1, 0.5), call("n2", 2, 0.25, 20, 7, "worker_2"))
    assert (found.router_input_tokens, found.router_output_tokens) == (6, 5)
    assert (found.worker_input_tokens, found.worker_output_tokens) == (30, 10)
    assert (found.dataset, found.domain, found.answer, found.verdict) == ("math", "math", "5", "pass")
    assert found.workers == ("worker_1", "worker_2")
    assert found.cost_usd == pytest.approx(2e-6)


def test_tokens_are_unknown_where_one_call_lacks_its_usage():
    found = measured(call("n1", 1, 0.5), call("n2", 2, 0.25, None, 7))
    assert (found.worker_input_tokens, found.worker_output_tokens) == (None, 10)


def test_calls_of_a_turn_run_in_parallel():
    calls = [call("n1", 1, 0.5), call("n2", 1, 2.0), call("n3", 2, 0.25)]
    assert worker_latency_s(calls) == pytest.approx(2.25)
    assert worker_latency_s([]) == 0.0


def test_a_graded_answer_counts_with_its_grade():
    outcome = measured()
    assert outcome.value == 1.0
    assert dataclasses.replace(outcome, score=0.25).value == 0.25


def test_an_arm_is_read_as_it_was_written(tmp_path):
    result = ArmResult("trained", {"split": "test"}, (measured(call("n1", 1, 0.5)), measured()))
    write_arm(tmp_path, result)
    assert read_arm(arm_path(tmp_path, "trained")) == result


def test_an_arm_of_an_older_run_is_read_and_says_what_it_does_not_know(tmp_path):
    path = arm_path(tmp_path, "trained")
    path.parent.mkdir()
    fields = ("query_id", "kind", "mode", "status", "violation", "cause", "correct", "cost_usd", "workers")
    line = {name: value for name, value in dataclasses.asdict(measured()).items() if name in fields}
    path.write_text(json.dumps({"arm": "trained", "split": "test"}) + "\n" + json.dumps(line) + "\n")
    (read,) = read_arm(path).outcomes
    assert read == Outcome(**{**line, "workers": ()})
    assert (read.latency_s, read.answer, read.dataset, read.value) == (None, None, "", 1.0)


def test_a_field_that_no_outcome_has_is_refused(tmp_path):
    path = arm_path(tmp_path, "trained")
    path.parent.mkdir()
    path.write_text('{"arm": "trained"}\n{"query_id": "q1", "colour": 1, "workers": []}\n')
    with pytest.raises(DataError, match="line 2"):
        read_arm(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cost_usd": "much"}, "cost_usd"),
        ({"cost_usd": float("nan")}, "cost_usd nan is no number"),
        ({"score": 2.5}, "score 2.5 is not in"),
        ({"correct": "yes"}, "correct"),
        ({"workers": "worker_1"}, "workers"),
        ({"status": "odd"}, "'odd' is not a valid Status"),
    ],
)
def test_a_line_that_no_question_can_leave_is_refused(tmp_path, changes, said):
    path = write_arm(tmp_path, ArmResult("trained", {"queries": 1}, (measured(call("n1", 1, 0.5)),)))
    header, line = path.read_text().splitlines()
    path.write_text(f"{header}\n{json.dumps(json.loads(line) | changes)}\n")
    with pytest.raises(DataError, match=f"line 2: not an evaluation .*{said}.*; the command that made it answers"):
        read_arm(path)
    assert readable_part(path) == ArmResult("trained", {"queries": 1}, ())


def test_an_arm_that_was_cut_or_is_there_twice_is_refused(tmp_path):
    path = write_arm(tmp_path, ArmResult("trained", {"queries": 1}, (measured(call("n1", 1, 0.5)),)))
    (path.parent / "copy.jsonl").write_text(path.read_text())
    with pytest.raises(DataError, match="trained.jsonl holds arm 'trained', as another file"):
        read_arms(tmp_path)
    path.write_text(path.read_text().splitlines()[0])
    with pytest.raises(DataError, match="0 of 1 questions are there"):
        read_arm(path)
