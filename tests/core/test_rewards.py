import dataclasses
import math

import numpy as np
import pytest

from rw.core.rewards import cost_score, efficiency_reward, is_retained, task_reward, trajectory_rewards
from rw.errors import ConfigError
from rw.types import CallStatus, Mode, ScoredTrajectory, Status, Trajectory, Verdict, Violation, WorkerCall

REFERENCE_COST_USD = 0.0070716653


def worker_call(cost_usd, status=CallStatus.OK) -> WorkerCall:
    return WorkerCall("n1", "worker_1", None, (), "?", "!", 10, 5, cost_usd, 0.5, 1, status)


def rollout(status, costs_usd=(), correct=None, violation=None) -> ScoredTrajectory:
    empty = np.zeros(0)
    trajectory = Trajectory(
        query_id="q",
        rollout_index=0,
        mode=Mode.SINGLE,
        forced=False,
        tokens=empty.astype(np.int32),
        segments=empty.astype(np.uint8),
        sampled_logprobs=empty.astype(np.float32),
        prompt_length=0,
        calls=tuple(worker_call(cost) for cost in costs_usd),
        answer="a",
        status=status,
        violation=violation,
    )
    return ScoredTrajectory(trajectory, None if correct is None else Verdict(correct))


def test_cost_score_is_one_for_free_and_a_half_at_the_reference_cost():
    assert cost_score(0.0, REFERENCE_COST_USD) == 1.0
    assert cost_score(REFERENCE_COST_USD, REFERENCE_COST_USD) == 0.5
    assert cost_score(3 * REFERENCE_COST_USD, REFERENCE_COST_USD) == pytest.approx(0.25, abs=1e-15)


def test_rewards_of_the_three_outcomes():
    valid, correct = np.array([True, True, False, False]), np.array([True, False, False, True])
    np.testing.assert_array_equal(task_reward(valid, correct), [1.0, 0.0, -1.0, -1.0])
    np.testing.assert_array_equal(efficiency_reward(valid, correct, np.full(4, 0.02), 0.01), [1 / 3, 0.0, -1.0, -1.0])


def test_cost_adds_up_over_calls_and_moves_correct_rollouts_only():
    assert trajectory_rewards(rollout(Status.ANSWERED, (0.001, 0.002), correct=True), 0.003) == (1.0, 0.5)
    assert trajectory_rewards(rollout(Status.ANSWERED, (0.001, 0.002), correct=False), 0.003) == (0.0, 0.0)
    assert trajectory_rewards(rollout(Status.TERMINAL_INVALID, (0.9,), violation=Violation.BAD_ROLE), 0.003) == (-1, -1)


def test_exhausted_is_wrong_unless_the_run_calls_it_invalid():
    exhausted = rollout(Status.EXHAUSTED, (0.001,))
    assert trajectory_rewards(exhausted, 0.003) == (0.0, 0.0)
    assert trajectory_rewards(exhausted, 0.003, exhausted_is_invalid=True) == (-1.0, -1.0)


def test_a_missing_cost_is_nan_and_never_zero():
    task, efficiency = trajectory_rewards(rollout(Status.ANSWERED, (0.001, None), correct=True), 0.003)
    assert task == 1.0 and math.isnan(efficiency)
    assert trajectory_rewards(rollout(Status.ANSWERED, (None,), correct=False), 0.003) == (0.0, 0.0)


def test_an_infrastructure_failure_has_no_reward_and_leaves_v():
    failed = rollout(Status.INFRASTRUCTURE_FAILURE, (0.001,))
    assert all(math.isnan(reward) for reward in trajectory_rewards(failed, 0.003))
    assert not is_retained(failed.trajectory, efficiency_weight=0.0, cold_start=True)


@pytest.mark.parametrize("status", [Status.ANSWERED, Status.EXHAUSTED, Status.TERMINAL_INVALID])
def test_an_incomplete_cost_record_leaves_v_whatever_the_outcome_where_cost_counts(status):
    trajectory = rollout(status, (0.001, None)).trajectory
    assert not is_retained(trajectory, efficiency_weight=0.3, cold_start=False)
    assert is_retained(trajectory, efficiency_weight=0.3, cold_start=True)
    assert is_retained(trajectory, efficiency_weight=0.0, cold_start=False)
    assert is_retained(rollout(status, (0.001, 0.0)).trajectory, efficiency_weight=0.3, cold_start=False)


def test_calls_that_were_never_answered_make_no_cost_record_incomplete():
    trajectory = rollout(Status.TERMINAL_INVALID, (0.001,)).trajectory
    cancelled = worker_call(None, CallStatus.CANCELLED)
    trajectory = Trajectory(**{**vars(trajectory), "calls": (*trajectory.calls, cancelled)})
    assert is_retained(trajectory, efficiency_weight=0.3, cold_start=False)


@pytest.mark.parametrize("reference_cost_usd", [0.0, -1.0, float("nan")])
def test_reference_cost_must_be_positive(reference_cost_usd):
    with pytest.raises(ConfigError, match="reference_cost_usd"):
        trajectory_rewards(rollout(Status.ANSWERED, correct=True), reference_cost_usd)


def test_the_cost_of_rejected_attempts_counts_where_the_run_says_so():
    calls = tuple(
        dataclasses.replace(worker_call(0.001, status), retry_cost_usd=retry_cost_usd)
        for status, retry_cost_usd in ((CallStatus.OK, 0.002), (CallStatus.OK, 0.0), (CallStatus.CANCELLED, 0.5))
    )
    scored = rollout(Status.ANSWERED, correct=True)
    scored = dataclasses.replace(scored, trajectory=dataclasses.replace(scored.trajectory, calls=calls))
    assert trajectory_rewards(scored, 0.002) == (1.0, pytest.approx(0.5))
    assert trajectory_rewards(scored, 0.002, retry_cost="reported") == (1.0, pytest.approx(1 / 3))
    unpriced = dataclasses.replace(calls[0], cost_usd=None)
    scored = dataclasses.replace(scored, trajectory=dataclasses.replace(scored.trajectory, calls=(unpriced,)))
    assert math.isnan(trajectory_rewards(scored, 0.002, retry_cost="reported")[1])
