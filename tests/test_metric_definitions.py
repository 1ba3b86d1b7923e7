"""Each metric of trajectories by literal numbers, and the writer that keeps them."""

import dataclasses
import json
import math
import pathlib
import struct

import numpy as np
import pytest

from rw import metrics
from rw.errors import ConfigError
from rw.metrics import MetricWriter
from rw.types import (
    CallStatus,
    Group,
    Mode,
    Query,
    ScoredTrajectory,
    Segment,
    Status,
    Trajectory,
    Verdict,
    Violation,
    WorkerCall,
)

PAD, PROMPT, INJECTED, OBSERVATION, MODE, INNER = Segment
SINGLE, MULTI, AGENTIC = Mode


def call(worker_id="worker_1", cost_usd=0.001, **values) -> WorkerCall:
    usage = (
        {"input_tokens": 100, "output_tokens": 20}
        if cost_usd is not None
        else dict.fromkeys(("input_tokens", "output_tokens"))
    )
    plain = {
        "node_id": "n1",
        "role": None,
        "references": (),
        "subquery": "?",
        "output": "!",
        "latency_s": 1.0,
        "attempts": 1,
        "status": CallStatus.OK,
        "finish_reason": "stop",
    }
    return WorkerCall(worker_id=worker_id, cost_usd=cost_usd, **{**plain, **usage, **values})


def rollout(mode=SINGLE, *, correct=None, status=Status.ANSWERED, segments=(), calls=(), **values) -> ScoredTrajectory:
    trajectory = Trajectory(
        query_id="q",
        rollout_index=0,
        mode=mode,
        forced=False,
        tokens=np.zeros(len(segments), np.int32),
        segments=np.array(segments, np.uint8),
        sampled_logprobs=np.zeros(len(segments), np.float32),
        prompt_length=0,
        calls=tuple(calls),
        answer=None,
        status=status,
        **values,
    )
    return ScoredTrajectory(trajectory, None if correct is None else Verdict(correct))


def failed(mode=SINGLE, cause="timeout", **values) -> ScoredTrajectory:
    return rollout(mode, status=Status.INFRASTRUCTURE_FAILURE, cause=cause, **values)


def invalid(mode, violation) -> ScoredTrajectory:
    return rollout(mode, status=Status.TERMINAL_INVALID, violation=violation)


def group(*rollouts, forced_mode=None, index=0) -> Group:
    return Group(index, Query(f"q{index}", "simulated", "math", "?", "!"), forced_mode, rollouts)


def everyone(*groups):
    """V: all but infrastructure failures."""
    return [[r.trajectory.status is not Status.INFRASTRUCTURE_FAILURE for r in g.rollouts] for g in groups]


# Modes


def test_sampled_frequency_counts_free_rollouts_whose_mode_turn_ended():
    free = group(
        rollout(SINGLE),
        rollout(SINGLE),
        failed(MULTI),  # lost later: what the router chose is known
        invalid(None, Violation.MODE_GRAMMAR),
        failed(None),  # lost before it chose
    )
    result = metrics.mode_metrics([free, group(rollout(AGENTIC), forced_mode=AGENTIC, index=1)])
    assert [result[f"mode/sampled_freq/{name}"] for name in ("single", "multi", "agentic", "none")] == [
        0.5,
        0.25,
        0,
        0.25,
    ]


def test_forced_frequency_counts_groups():
    forced = [group(rollout(mode), forced_mode=mode) for mode in (SINGLE, SINGLE, MULTI, AGENTIC)]
    result = metrics.mode_metrics([*forced, group(rollout(MULTI))])
    assert [result[f"mode/forced_freq/{mode.word}"] for mode in Mode] == [0.5, 0.25, 0.25]
    assert result["mode/forced_frac"] == 0.8
    assert result["mode/sampled_freq/multi"] == 1.0


# Lengths


def test_lengths_count_sampled_and_observation_tokens_turns_and_calls():
    long = rollout(
        segments=[PROMPT, MODE, MODE, INJECTED, INNER, OBSERVATION, OBSERVATION, OBSERVATION, INNER, PAD],
        calls=[call(), call()],
        turns=3,
    )
    short = rollout(segments=[PROMPT, MODE], turns=1)
    result = metrics.length_metrics([group(long, short)])
    for name, mean, largest in (("router_tokens", 2.5, 4), ("obs_tokens", 1.5, 3), ("turns", 2, 3), ("calls", 1, 2)):
        assert result[f"len/{name}/mean"] == mean
        assert result[f"len/{name}/max"] == largest
    assert result["len/router_tokens/p95"] == pytest.approx(1 + 0.95 * 3)


def test_an_excluded_rollout_still_has_its_raw_length():
    result = metrics.length_metrics([group(failed(segments=[PROMPT, MODE, INNER, INNER]))])
    assert result["len/router_tokens/max"] == 3


def test_truncations_are_told_apart_by_cause():
    rollouts = [
        rollout(status=Status.EXHAUSTED, cause="response_budget"),
        rollout(status=Status.EXHAUSTED, cause="response_budget"),
        rollout(AGENTIC, status=Status.EXHAUSTED, cause="turns"),
        invalid(None, Violation.MODE_TRUNCATED),
        invalid(None, Violation.MODE_GRAMMAR),
        *[rollout() for _ in range(3)],
    ]
    result = metrics.length_metrics([group(*rollouts)])
    assert result["len/truncated_frac/response_budget"] == 0.25
    assert result["len/truncated_frac/turns"] == 0.125
    assert result["len/truncated_frac/mode_truncated"] == 0.125


def test_an_exhausted_rollout_that_counts_as_invalid_is_still_a_truncated_one():
    rollouts = [rollout(status=Status.TERMINAL_INVALID, cause="response_budget"), rollout(), failed(cause="timeout")]
    shares = {name: value for name, value in metrics.length_metrics([group(*rollouts)]).items() if "truncated" in name}
    assert shares == {
        "len/truncated_frac/mode_truncated": 0.0,
        "len/truncated_frac/response_budget": 1 / 3,
        "len/truncated_frac/turns": 0.0,
    }


# Validity


def test_invalid_reasons_are_shares_of_v_and_sum_to_the_invalid_rate():
    rollouts = group(
        invalid(None, Violation.MODE_GRAMMAR),
        invalid(MULTI, Violation.BAD_REFERENCE),
        invalid(MULTI, Violation.BAD_REFERENCE),
        rollout(status=Status.EXHAUSTED, cause="turns"),
        rollout(correct=True),
        failed(),
    )
    result = metrics.invalid_metrics([rollouts], everyone(rollouts))
    assert (result["invalid/mode_grammar"], result["invalid/bad_reference"]) == (0.2, 0.4)
    assert result["invalid/total"] == pytest.approx(0.6)
    assert sum(result[f"invalid/{reason}"] for reason in Violation) == pytest.approx(result["invalid/total"])
    assert result["exhausted_frac"] == 0.2


def test_infrastructure_is_counted_by_cause_and_never_as_invalid():
    first = group(failed(cause="timeout"), failed(MULTI, cause="timeout"), failed(cause="scorer_fault"), rollout())
    lost = group(failed(cause="connect"), failed(), failed(), failed(), index=1)
    result = metrics.infrastructure_metrics([first, lost], everyone(first, lost))
    assert result["infra/timeout"] == 5
    assert (result["infra/scorer_fault"], result["infra/connect"], result["infra/reset"]) == (1, 1, 0)
    assert result["infra/excluded_frac"] == 7 / 8
    assert result["infra/groups_fully_lost"] == 1
    assert result["infra/unmeasured"] == 0
    assert metrics.invalid_metrics([first, lost], everyone(first, lost))["invalid/total"] == 0


def test_a_rollout_without_a_cost_record_is_excluded_but_no_failure():
    rollouts = group(rollout(), rollout(calls=[call(cost_usd=None)]))
    result = metrics.infrastructure_metrics([rollouts], [[True, False]])
    assert (result["infra/unmeasured"], result["infra/excluded_frac"]) == (1, 0.5)
    assert sum(result[f"infra/{cause}"] for cause in metrics.FailureCause) == 0


@pytest.mark.parametrize("lost, uneven", [((1, 2), 0), ((1, 3), 1), ((2, 2), 0), ((0, 1), 1), ((0, 0), 0)])
def test_exclusions_by_mode_warn_beyond_a_factor_of_two(lost, uneven):
    groups = [
        group(*[failed(mode)] * count, *[rollout(mode)] * (10 - count))
        for mode, count in zip((SINGLE, MULTI), lost, strict=True)
    ]
    result = metrics.infrastructure_metrics(groups, everyone(*groups))
    assert [result["infra/excluded_frac/single"], result["infra/excluded_frac/multi"]] == pytest.approx(
        [count / 10 for count in lost]
    )
    assert result["infra/excluded_unevenly"] == uneven
    assert "infra/excluded_frac/agentic" not in result  # none occurred


def test_retries_are_attempts_beyond_the_first():
    rollouts = group(
        rollout(calls=[call(attempts=3), call()]), failed(calls=[call(attempts=6, status=CallStatus.FAILED)])
    )
    assert metrics.infrastructure_metrics([rollouts], everyone(rollouts))["retries/total"] == 7


# Workers and cost


def test_worker_metrics_are_over_accepted_calls_of_each_worker():
    rollouts = group(
        rollout(calls=[call(latency_s=latency, queue_wait_s=10 * latency) for latency in (1.0, 2.0, 3.0, 4.0, 5.0)]),
        rollout(calls=[call("worker_2", None, finish_reason=None), call("worker_2", finish_reason="length")]),
        failed(calls=[call("worker_2", None, status=CallStatus.FAILED, latency_s=99.0)]),
    )
    result = metrics.worker_metrics([rollouts])
    assert [result[f"worker/worker_1/latency/p{p}"] for p in (50, 90, 99)] == pytest.approx([3.0, 4.6, 4.96])
    assert result["worker/worker_1/queue_wait/p50"] == 30.0
    assert result["worker/worker_1/tokens_in"] == 500 and result["worker/worker_1/tokens_out"] == 100
    assert result["worker/worker_1/finish_reason/stop"] == 1.0
    assert (result["worker/worker_1/calls"], result["worker/worker_1/failed"]) == (5, 0)
    assert (result["worker/worker_2/calls"], result["worker/worker_2/failed"]) == (2, 1)
    assert result["worker/worker_2/usage_missing"] == 1
    assert result["worker/worker_2/finish_reason/length"] == result["worker/worker_2/finish_reason/missing"] == 0.5
    assert result["worker/worker_2/latency/p99"] == 1.0


def test_cost_is_what_was_paid_and_its_distribution_what_was_measured():
    rollouts = group(
        rollout(correct=True, calls=[call(cost_usd=0.001), call(cost_usd=0.002)]),
        rollout(correct=False, calls=[call(cost_usd=0.001)]),
        invalid(None, Violation.MODE_GRAMMAR),
        rollout(correct=True, calls=[call(cost_usd=0.5), call(cost_usd=None)]),  # incomplete
        failed(calls=[call(cost_usd=0.25), call(cost_usd=None, status=CallStatus.CANCELLED)]),  # paid for
    )
    result = metrics.cost_metrics([rollouts], [[True, True, True, False, False]], 0.003, spent_before_usd=1.0)
    assert result["cost/per_step"] == pytest.approx(0.754)
    assert result["cost/total"] == pytest.approx(1.754)
    assert result["cost/unpriced_calls"] == 1
    assert result["cost/per_rollout"] == pytest.approx(0.004 / 3)
    assert result["cost/p95"] == pytest.approx(0.0028)  # of 0, 0.001, 0.003
    assert result["cost/p95_to_ref"] == pytest.approx(0.0028 / 0.003)
    assert result["cost/score_mean"] == pytest.approx(0.5)


def test_cost_holds_rejected_attempts_where_the_reward_does():
    rollouts = group(rollout(correct=True, calls=[call(cost_usd=0.001, retry_cost_usd=0.002)]))
    accepted, reported = (
        metrics.cost_metrics([rollouts], [[True]], 0.003, retry_cost=name) for name in ("accepted", "reported")
    )
    assert (accepted["cost/p95"], reported["cost/p95"]) == pytest.approx((0.001, 0.003))
    assert (accepted["cost/score_mean"], reported["cost/score_mean"]) == pytest.approx((0.75, 0.5))


def test_step_metrics_hold_all_of_them_and_leave_out_what_cannot_be_measured():
    rollouts = group(rollout(correct=True, segments=[PROMPT, MODE, INNER], calls=[call()], turns=2))
    result = metrics.step_metrics([rollouts], [[True]], reference_cost_usd=0.001)
    for name in ("mode/sampled_freq/single", "len/turns/mean", "invalid/total", "infra/timeout", "cost/score_mean"):
        assert name in result
    assert all(isinstance(value, float) and math.isfinite(value) for value in result.values())
    nothing = metrics.step_metrics([], np.zeros((0, 8), bool), reference_cost_usd=0.001)
    assert "len/turns/mean" not in nothing and "invalid/total" not in nothing and nothing["cost/total"] == 0


def test_a_smaller_group_is_filled_up_outside_v():
    small = group(rollout(correct=True), invalid(SINGLE, Violation.BAD_ROLE))
    retained = [[True, True, False, False]]
    assert metrics.invalid_metrics([small], retained)["invalid/total"] == 0.5
    assert metrics.infrastructure_metrics([small], retained)["infra/excluded_frac"] == 0


def test_modes_of_trajectories_are_those_of_the_enum():
    trajectory = dataclasses.replace(rollout(MULTI).trajectory, mode=Mode(1))
    result = metrics.mode_metrics([group(ScoredTrajectory(trajectory, None))])
    assert result["mode/sampled_freq/multi"] == 1.0


# The writer


@pytest.fixture
def workdir(tmp_path) -> pathlib.Path:
    return tmp_path


def rows(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(path: pathlib.Path) -> list[int]:
    return [row["step"] for row in rows(path)]


def writer(workdir) -> MetricWriter:
    return MetricWriter(workdir, tensorboard=False, clock=lambda: 1700000000.1234)


def test_rows_are_one_json_line_a_step_and_there_at_once(workdir):
    with writer(workdir) as w:
        w.write(1, {"loss/kl": np.float32(0.5), "note": "first", "flag": True, "none": None, "hist": np.array([1, 2])})
        assert rows(workdir / "metrics.jsonl") == [
            {
                "step": 1,
                "time_s": 1700000000.123,
                "loss/kl": 0.5,
                "note": "first",
                "flag": True,
                "none": None,
                "hist": [1, 2],
            }
        ]
        w.write(2, {"loss/kl": np.float64(0.25)})
        assert steps(workdir / "metrics.jsonl") == [1, 2]


def test_numbers_that_are_not_finite_are_strings_that_float_reads(workdir):
    with writer(workdir) as w:
        w.write(1, {"a": float("nan"), "b": np.float32("inf"), "c": {"d": [-np.inf, 1.0]}})
    row = rows(workdir / "metrics.jsonl")[0]
    assert (row["a"], row["b"], row["c"]) == ("nan", "inf", {"d": ["-inf", 1.0]})
    assert math.isnan(float(row["a"])) and float(row["b"]) == math.inf


def test_an_unwritable_value_leaves_the_file_whole(workdir):
    with writer(workdir) as w:
        with pytest.raises(TypeError):
            w.write(1, {"a": object()})
        w.write(1, {"a": 1})
    assert steps(workdir / "metrics.jsonl") == [1]


def test_a_step_cannot_be_written_twice(workdir):
    with writer(workdir) as w:
        w.write(2, {})
        for step in (2, 1):
            with pytest.raises(ValueError, match="resume"):
                w.write(step, {})
    with writer(workdir) as w, pytest.raises(ValueError, match="resume"):
        w.write(2, {})


def test_resume_sets_later_rows_aside_and_loses_none(workdir):
    with writer(workdir) as w:
        for step in range(1, 6):
            w.write(step, {"try": 1, "cost/total": step / 10})
    with writer(workdir) as w:
        assert w.resume(3) == 2
        assert w.last_row["cost/total"] == 0.3
        w.write(4, {"try": 2})
        w.write(5, {"try": 2})
    assert [(row["step"], row["try"]) for row in rows(workdir / "metrics.jsonl")] == [
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 2),
        (5, 2),
    ]
    assert [(row["step"], row["try"]) for row in rows(workdir / "metrics.superseded.jsonl")] == [(4, 1), (5, 1)]
    with writer(workdir) as w:
        assert w.resume(4) == 1
    assert steps(workdir / "metrics.superseded.jsonl") == [4, 5, 5]


def test_resume_at_the_last_step_changes_nothing(workdir):
    with writer(workdir) as w:
        w.write(1, {"a": 1})
        before = (workdir / "metrics.jsonl").read_bytes()
        assert w.resume(1) == 0
        assert w.resume(7) == 0
    assert (workdir / "metrics.jsonl").read_bytes() == before
    assert not (workdir / "metrics.superseded.jsonl").exists()


def test_a_fresh_run_resumes_from_nothing(workdir):
    with writer(workdir) as w:
        assert w.resume(0) == 0
        assert w.last_row == {"step": -1}
        w.write(0, {})
    assert steps(workdir / "metrics.jsonl") == [0]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_is_set_aside_and_the_rest_kept(workdir, cut):
    path = workdir / "metrics.jsonl"
    with writer(workdir) as w:
        w.write(1, {"a": "é"})
        w.write(2, {"a": "é"})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])
    with writer(workdir) as w:
        if cut == 1:  # only the line feed is missing: the row is whole
            w.resume(1)
        w.write(2, {"a": "again"})
    assert [row["a"] for row in rows(path)] == ["é", "again"]
    torn = whole.splitlines()[1]
    assert (workdir / "metrics.superseded.jsonl").read_bytes() == torn[: len(torn) + 1 - cut] + b"\n"


def test_a_row_that_lacks_only_its_line_feed_is_kept(workdir):
    path = workdir / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}')
    with writer(workdir) as w:
        w.write(2, {})
    assert steps(path) == [1, 2]


def test_a_kill_between_the_two_files_neither_loses_nor_doubles_a_row(workdir, monkeypatch):
    with writer(workdir) as w:
        for step in (1, 2, 3):
            w.write(step, {"a": step})
    replace, calls = metrics._replace, []

    def killed_after_the_first(path, lines):
        if calls:
            raise KeyboardInterrupt
        calls.append(path)
        replace(path, lines)

    with writer(workdir) as w:
        monkeypatch.setattr(metrics, "_replace", killed_after_the_first)
        with pytest.raises(KeyboardInterrupt):
            w.resume(1)
    assert steps(workdir / "metrics.jsonl") == [1, 2, 3]
    monkeypatch.setattr(metrics, "_replace", replace)
    with writer(workdir) as w:
        assert w.resume(1) == 2
    assert steps(workdir / "metrics.jsonl") == [1]
    assert steps(workdir / "metrics.superseded.jsonl") == [2, 3]


def raw_events(workdir) -> list:
    """All events of the TensorBoard files, read back from their TFRecord frames, oldest file first."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted((workdir / "tensorboard").glob("*tfevents*"), key=lambda path: path.name):
        data, offset = path.read_bytes(), 0
        while offset < len(data):
            (length,) = struct.unpack_from("<Q", data, offset)
            found.append(Event.FromString(data[offset + 12 : offset + 12 + length]))
            offset += 16 + length
    return found


def events(workdir) -> list[tuple[int, str, float]]:
    """(step, tag, value) of every scalar."""
    return [
        (event.step, value.tag, value.simple_value) for event in raw_events(workdir) for value in event.summary.value
    ]


def test_numbers_go_to_tensorboard_under_the_same_name_and_step(workdir):
    with MetricWriter(workdir) as w:
        w.write(3, {"loss/kl": 0.5, "note": "text", "none": None, "mode/sampled_freq/single": np.float32(0.25)})
        w.write(4, {"loss/kl": float("nan")})
    assert events(workdir) == [(3, "loss/kl", 0.5), (3, "mode/sampled_freq/single", 0.25)]


def test_tensorboard_without_its_package_is_refused(workdir, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    with pytest.raises(ConfigError, match="tensorboardX"):
        MetricWriter(workdir)
    MetricWriter(workdir, tensorboard=False).close()


def test_after_resume_tensorboard_is_told_to_drop_the_superseded_steps(workdir):
    from tensorboardX.proto.event_pb2 import SessionLog

    with MetricWriter(workdir) as w:
        w.write(1, {"a": 1.0})
        w.write(2, {"a": 2.0})
    with MetricWriter(workdir) as w:
        w.resume(1)
        w.write(2, {"a": 3.0})
    assert [(step, value) for step, _, value in events(workdir)] == [(1, 1.0), (2, 2.0), (2, 3.0)]
    starts = [event.step for event in raw_events(workdir) if event.session_log.status == SessionLog.START]
    assert starts == [2]  # TensorBoard shows nothing from this step on that came before this mark


def test_the_events_of_another_file_lie_in_a_folder_of_their_own(workdir):
    """In one folder, the restart that the second file begins with would take the first one's steps from the display."""
    with MetricWriter(workdir) as training, MetricWriter(workdir, name="validation") as validation:
        training.resume(0)
        validation.resume(0)
        training.write(1, {"a": 1.0})
        validation.write(1, {"eval/a": 2.0})
    assert events(workdir) == [(1, "a", 1.0)]
    (path,) = (workdir / "tensorboard" / "validation").iterdir()
    assert b"eval/a" in path.read_bytes()
