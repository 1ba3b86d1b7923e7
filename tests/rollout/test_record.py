"""Trajectories as readable JSON lines, and back without losing a bit."""

import dataclasses
import json
import lzma

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from rw.errors import DataError
from rw.rollout.record import TrajectoryWriter, describe, load_trajectory, read_groups, segment_runs
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
    Violation,
    WorkerCall,
)

QUERY = Query(
    id="nq/7",
    dataset="trivia_qa",
    domain="recall",
    prompt="Capital of Perú?",
    reference=("Lima", "Ciudad"),
    metadata={"question": "Capital?"},
)
P, J, O, M, I = Segment.PROMPT, Segment.INJECTED, Segment.OBSERVATION, Segment.MODE, Segment.INNER


def call(**changes):
    made = WorkerCall(
        node_id="n1",
        worker_id="worker_2",
        role=None,
        references=(),
        subquery="Capital?",
        output="Lima ☀",
        input_tokens=40,
        output_tokens=3,
        cost_usd=0.000125,
        latency_s=1.5,
        attempts=2,
        status=CallStatus.OK,
        finish_reason="stop",
        queue_wait_s=0.25,
    )
    return dataclasses.replace(made, **changes)


def trajectory(codec, pieces, **changes):
    """`pieces` are (segment, text), every sampled token with its own log-prob."""
    ids = [codec.encode_text(text) for _, text in pieces]
    segments = np.concatenate(
        [np.full(len(part), segment, np.uint8) for (segment, _), part in zip(pieces, ids, strict=True)]
    )
    sampled = np.isin(segments, (M, I))
    logprobs = np.where(sampled, -np.arange(1, len(segments) + 1) / 7, 0).astype(np.float32)
    made = Trajectory(
        query_id=QUERY.id,
        rollout_index=3,
        mode=Mode.SINGLE,
        forced=False,
        tokens=np.concatenate(ids).astype(np.int32),
        segments=segments,
        sampled_logprobs=logprobs,
        prompt_length=int((segments == P).sum()),
        calls=(call(),),
        answer="Lima",
        status=Status.ANSWERED,
        policy_version=4,
        turns=3,
    )
    return dataclasses.replace(made, **changes)


SINGLE = [
    (P, "Capital of Perú?"),
    (M, "<mode>single</mode>"),
    (J, "rules"),
    (I, '<route model="worker_2">Capital?</route>'),
    (J, "\nuser\n"),
    (O, "<observation>Lima ☀</observation>"),
    (J, "\nassistant\n"),
    (I, "<answer>Lima</answer>"),
]


def assert_equal(left: ScoredTrajectory, right: ScoredTrajectory):
    for field in dataclasses.fields(Trajectory):
        a, b = getattr(left.trajectory, field.name), getattr(right.trajectory, field.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes(), field.name
        else:
            assert a == b and type(a) is type(b), field.name
    assert left.verdict == right.verdict


def test_record_of_a_single_rollout_reads_as_it_happened(codec):
    scored = ScoredTrajectory(trajectory(codec, SINGLE), Verdict(True, detail="alias"))
    record = describe(scored, QUERY, codec, step=12, rewards={"task": 1.0, "efficiency": 0.5}, with_arrays=False)
    assert json.loads(json.dumps(record)) == {
        "step": 12,
        "query_id": "nq/7",
        "dataset": "trivia_qa",
        "domain": "recall",
        "rollout": 3,
        "question": "Capital of Perú?",
        "mode": "single",
        "forced": False,
        "status": "answered",
        "violation": None,
        "cause": None,
        "turns": [
            {"segment": "prompt", "text": "Capital of Perú?"},
            {"segment": "mode", "text": "<mode>single</mode>"},
            {"segment": "injected", "text": "rules"},
            {"segment": "inner", "text": '<route model="worker_2">Capital?</route>'},
            {"segment": "injected", "text": "\nuser\n"},
            {"segment": "observation", "text": "<observation>Lima ☀</observation>"},
            {"segment": "injected", "text": "\nassistant\n"},
            {"segment": "inner", "text": "<answer>Lima</answer>"},
        ],
        "answer": "Lima",
        "reference": ["Lima", "Ciudad"],
        "metadata": {"question": "Capital?"},
        "correct": True,
        "verdict": {"correct": True, "detail": "alias", "tier": "", "kind": "", "scorer": ""},
        "rewards": {"task": 1.0, "efficiency": 0.5},
        "cost_usd": 0.000125,
        "calls": [
            {
                "node_id": "n1",
                "worker_id": "worker_2",
                "role": None,
                "references": [],
                "subquery": "Capital?",
                "output": "Lima ☀",
                "input_tokens": 40,
                "output_tokens": 3,
                "cost_usd": 0.000125,
                "latency_s": 1.5,
                "attempts": 2,
                "status": "ok",
                "failure": None,
                "finish_reason": "stop",
                "queue_wait_s": 0.25,
                "retry_cost_usd": 0.0,
                "turn": None,
            }
        ],
        "policy_version": 4,
        "router_turns": 3,
        "prompt_length": len(codec.encode_text("Capital of Perú?")),
    }


ENDS = [
    dict(),
    dict(mode=None, answer=None, calls=(), status=Status.TERMINAL_INVALID, violation=Violation.MODE_GRAMMAR),
    dict(mode=Mode.MULTI, forced=True, answer=None, status=Status.EXHAUSTED, cause="response_budget"),
    dict(
        mode=Mode.AGENTIC,
        answer=None,
        status=Status.INFRASTRUCTURE_FAILURE,
        cause="server_error",
        calls=(
            call(role=Role.PLANNER, cost_usd=None, input_tokens=None, status=CallStatus.FAILED, failure="server_error"),
            call(node_id="n2", role=Role.EXECUTOR, references=("n1",), status=CallStatus.CANCELLED, cost_usd=None),
        ),
    ),
]


@pytest.mark.parametrize("changes", ENDS, ids=["answered", "invalid", "exhausted", "failed"])
def test_record_rebuilds_the_trajectory(codec, changes):
    made = trajectory(codec, SINGLE, **changes)
    scored = ScoredTrajectory(made, Verdict(False, tier="a") if made.status is Status.ANSWERED else None)
    line = json.dumps(describe(scored, QUERY, codec, step=1), ensure_ascii=False)
    assert_equal(load_trajectory(json.loads(line)), scored)


@given(
    runs=st.lists(st.tuples(st.sampled_from([int(s) for s in Segment][1:]), st.integers(1, 4)), max_size=8),
    numbers=st.lists(st.floats(min_value=-(2.0**100), max_value=0, width=32), min_size=32, max_size=32),
)
def test_tokens_segments_and_logprobs_come_back_bit_for_bit(codec, runs, numbers):
    segments = np.array([code for code, length in runs for _ in range(length)], np.uint8)
    logprobs = np.where(np.isin(segments, (M, I)), np.array(numbers, np.float32)[: len(segments)], 0)
    made = trajectory(
        codec,
        SINGLE,
        tokens=np.arange(len(segments), dtype=np.int32) * 4001 % 151_000,
        segments=segments,
        sampled_logprobs=logprobs.astype(np.float32),
    )
    scored = ScoredTrajectory(made, None)
    record = json.loads(json.dumps(describe(scored, QUERY, codec, step=1)))
    assert_equal(load_trajectory(record), scored)


def test_record_without_arrays_cannot_be_rebuilt(codec):
    record = describe(ScoredTrajectory(trajectory(codec, SINGLE), None), QUERY, codec, step=1, with_arrays=False)
    with pytest.raises(DataError, match="rollout 3 of nq/7 holds no arrays"):
        load_trajectory(record)


def test_segment_runs():
    assert segment_runs(np.array([1, 1, 4, 2, 2, 2, 5], np.uint8)) == [(1, 0, 2), (4, 2, 3), (2, 3, 6), (5, 6, 7)]
    assert segment_runs(np.zeros(0, np.uint8)) == []


def test_writer_leaves_one_whole_file_a_step(codec, tmp_path):
    answered = ScoredTrajectory(trajectory(codec, SINGLE), Verdict(True))
    failed = ScoredTrajectory(
        trajectory(codec, SINGLE, answer=None, status=Status.INFRASTRUCTURE_FAILURE, cause="timeout"), None
    )
    broken = ScoredTrajectory(trajectory(codec, SINGLE, calls=(call(output="half \ud83d a pair"),)), Verdict(False))
    groups = [Group(0, QUERY, None, (answered, failed)), Group(1, QUERY, Mode.SINGLE, (broken, answered))]
    rewards = np.array([[[1, 0.75], [0, 0]], [[0, 0], [1, np.nan]]], np.float32)
    writer = TrajectoryWriter(tmp_path, codec)
    writer.write(12, groups[:1])
    path = writer.write(12, groups, rewards)
    assert path == tmp_path / "trajectories" / "step_000012.jsonl"
    assert [file.name for file in path.parent.iterdir()] == ["step_000012.jsonl"]
    text = path.read_text(encoding="utf-8")
    assert "Perú" in text and "☀" in text
    records = [json.loads(line) for line in text.splitlines()]
    assert [record["rewards"] for record in records] == [
        {"task": 1.0, "efficiency": 0.75},
        None,
        {"task": 0.0, "efficiency": 0.0},
        {"task": 1.0, "efficiency": None},  # not measured: its cost record is incomplete
    ]
    for record, scored in zip(records, [answered, failed, broken, answered], strict=True):
        assert_equal(load_trajectory(record), scored)


def some_groups(codec) -> list[Group]:
    """One group with its mode assigned and one without."""
    other = Query(id="sim-1", dataset="simulated", domain="arith", prompt="3 + 4?", reference="7")
    forced = trajectory(codec, SINGLE, forced=True)
    free = trajectory(codec, SINGLE, query_id=other.id)
    failed = dict(mode=None, answer=None, calls=(), status=Status.TERMINAL_INVALID, violation=Violation.MODE_GRAMMAR)
    return [
        Group(0, QUERY, Mode.SINGLE, tuple(ScoredTrajectory(forced, Verdict(correct)) for correct in (True, False))),
        Group(1, other, None, (ScoredTrajectory(dataclasses.replace(free, **failed), None),) * 2),
    ]


def assert_same_groups(read, groups):
    assert [(g.index, g.query, g.forced_mode) for g in read] == [(g.index, g.query, g.forced_mode) for g in groups]
    for ours, theirs in zip(read, groups, strict=True):
        for left, right in zip(ours.rollouts, theirs.rollouts, strict=True):
            assert_equal(left, right)


def test_groups_come_back_from_their_file_and_from_its_xz(codec, tmp_path):
    groups = some_groups(codec)
    path = TrajectoryWriter(tmp_path, codec).write(3, groups)
    assert_same_groups(read_groups(path), groups)
    packed = tmp_path / "step.jsonl.xz"
    packed.write_bytes(lzma.compress(path.read_bytes()))
    assert_same_groups(read_groups(packed), groups)


def test_a_line_separator_within_a_text_ends_no_record(codec, tmp_path):
    query = dataclasses.replace(QUERY, prompt="one\u2028two\x85three")
    path = TrajectoryWriter(tmp_path, codec).write(3, [dataclasses.replace(some_groups(codec)[0], query=query)])
    assert read_groups(path)[0].query == query


def test_files_that_hold_no_groups_are_refused(codec, tmp_path):
    with pytest.raises(DataError, match="none.jsonl cannot be read"):
        read_groups(tmp_path / "none.jsonl")
    packed = tmp_path / "broken.jsonl.xz"
    packed.write_bytes(b"not xz")
    with pytest.raises(DataError, match="broken.jsonl.xz cannot be read"):
        read_groups(packed)
    without = TrajectoryWriter(tmp_path, codec, with_arrays=False).write(3, some_groups(codec))
    with pytest.raises(DataError, match="step_000003.jsonl, line 1, are not those of a run: the record .* no arrays"):
        read_groups(without)
    whole = json.loads(TrajectoryWriter(tmp_path, codec).write(4, some_groups(codec)).read_text().split("\n")[0])
    for spoilt in ({"mode": 5}, {"arrays": {**whole["arrays"], "segments": [[999, 1]]}}):
        (tmp_path / "spoilt.jsonl").write_text(json.dumps(whole | spoilt) + "\n")
        with pytest.raises(DataError, match="spoilt.jsonl, line 1, are not those of a run"):
            read_groups(tmp_path / "spoilt.jsonl")
    other = tmp_path / "metrics.jsonl"
    other.write_text('{"step": 1}\n')
    with pytest.raises(DataError, match="metrics.jsonl, line 1, are not those of a run: KeyError: 'rollout'"):
        read_groups(other)


def test_files_of_steps_that_run_again_are_set_aside(codec, tmp_path):
    writer = TrajectoryWriter(tmp_path, codec)
    assert writer.resume(0) == 0
    groups = [Group(0, QUERY, None, (ScoredTrajectory(trajectory(codec, SINGLE), Verdict(True)),))]
    for step in (9, 10, 11):
        writer.write(step, groups)
    assert TrajectoryWriter(tmp_path, codec).resume(9) == 2
    files = sorted(str(path.relative_to(writer.folder)) for path in writer.folder.rglob("*.jsonl"))
    assert files == ["step_000009.jsonl", "superseded/step_000010.jsonl", "superseded/step_000011.jsonl"]
    writer.write(10, groups)
    (tmp_path / "trajectories" / "step_000011 (copy).jsonl").touch()
    assert writer.resume(9) == 1 and writer.resume(9) == 0
