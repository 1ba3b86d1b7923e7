"""The recorded steps hold what a batch of the learner may hold."""

import numpy as np
import pytest

from rw.core.rewards import is_retained
from rw.types import Mode, Segment, Status

from .recorded import LEARNER, MODEL, STEPS, recorded_groups, recorded_mode_candidates


def trajectories(groups):
    return [scored.trajectory for group in groups for scored in group.rollouts]


@pytest.mark.parametrize("step", range(STEPS))
def test_every_step_holds_all_modes_statuses_and_unequal_lengths(step):
    groups = recorded_groups(step)
    assert [len(group.rollouts) for group in groups] == [4] * 6
    assert 0 < sum(group.forced_mode is not None for group in groups) < 6
    found = trajectories(groups)
    assert {trajectory.mode for trajectory in found} - {None} == set(Mode)
    assert {trajectory.status for trajectory in found} == set(Status)
    assert len({len(trajectory.tokens) for trajectory in found}) > 6
    assert 0 < sum(scored.correct for group in groups for scored in group.rollouts) < 24
    retained = [is_retained(trajectory, 0.1, cold_start=False) for trajectory in found]
    assert 0 < sum(retained) < 24
    assert max(len(trajectory.tokens) for trajectory in found) <= LEARNER.batch.length_buckets[-1]
    assert max(trajectory.tokens.max() for trajectory in found) < MODEL.vocab_size


def test_a_rollout_without_a_mode_is_among_them():
    assert any(trajectory.mode is None for trajectory in trajectories(recorded_groups(2)))


def test_mode_candidates_continue_the_recorded_prompts():
    for group in recorded_groups():
        prefix, contents = recorded_mode_candidates(group.query)
        for trajectory in trajectories([group]):
            prompt = trajectory.tokens[: trajectory.prompt_length]
            np.testing.assert_array_equal(prefix[: len(prompt)], prompt)
            if trajectory.mode is not None and not trajectory.forced:
                sampled = trajectory.tokens[trajectory.segments == Segment.MODE]
                declared = np.concatenate([prefix[len(prompt) :], contents[trajectory.mode]])
                np.testing.assert_array_equal(sampled[: len(declared)], declared)
