"""From groups to rows: who is in V, which tokens are the policy's, and that padding says nothing."""

import dataclasses

import numpy as np
import pytest

from rw.core.advantages import AdvantageConfig, comet, grpo
from rw.errors import ConfigError, DataError
from rw.learner.batch import (
    PADDING_POSITION,
    BatchConfig,
    empty_micro_batch,
    group_batch,
    layout,
    micro_batches,
    padding_share,
    plain_rows,
    policy_positions,
    token_counts,
    token_rows,
)
from rw.types import NO_MODE, Advantages, Group, GroupBatch, Mode, Segment, Status

from .conftest import make_call, make_groups, make_query, make_trajectory, replace_rollout, score

P, J, O, M, I = Segment.PROMPT, Segment.INJECTED, Segment.OBSERVATION, Segment.MODE, Segment.INNER
CONFIG = BatchConfig(micro_batch=2, length_buckets=(8, 16), policy_buckets=(2, 4))


def trajectory_of(segments, *, rollout=0, query_id="q0", mode=Mode.MULTI, **fields):
    """Tokens 100, 101, …, log-probs -1, -2, … on the sampled ones."""
    segments = np.array([int(s) for s in segments], np.uint8)
    sampled = np.isin(segments, [int(M), int(I)])
    base = make_trajectory(np.random.default_rng(0), query_id, rollout, mode)
    return dataclasses.replace(
        base,
        tokens=np.arange(100, 100 + len(segments), dtype=np.int32),
        segments=segments,
        sampled_logprobs=np.where(sampled, -1.0 - np.arange(len(segments)), 0).astype(np.float32),
        **fields,
    )


def group_of(*scored, index=0, forced_mode=None):
    return Group(index, make_query(index), forced_mode, tuple(scored))


def rewards_of(groups, **options):
    options = {"reference_cost_usd": 2e-3, "efficiency_weight": 0.3, "cold_start": False, **options}
    return group_batch(groups, **options)


def test_rewards_modes_and_v_of_every_status():
    segments = [P, P, M, I]
    group = group_of(
        score(trajectory_of(segments, calls=(make_call(1e-3), make_call(1e-3))), True),
        score(trajectory_of(segments), False),
        score(trajectory_of(segments, status=Status.EXHAUSTED, answer=None), False),
        score(trajectory_of(segments, mode=None, status=Status.TERMINAL_INVALID, answer=None), False),
        score(trajectory_of(segments, status=Status.INFRASTRUCTURE_FAILURE, answer=None), False),
        forced_mode=None,
    )
    batch = rewards_of([group])
    # The correct one spent the reference cost: S_cost = 1/2.
    np.testing.assert_array_equal(batch.rewards[0, :4], [[1, 0.5], [0, 0], [0, 0], [-1, -1]])
    assert batch.mode.tolist() == [[1, 1, 1, NO_MODE, 1]]
    assert batch.retained.tolist() == [[True, True, True, True, False]]
    assert batch.forced.tolist() == [False]


@pytest.mark.parametrize(
    ("options", "retained"),
    [
        ({}, [True, False, False, False]),
        ({"cold_start": True}, [True, True, True, True]),
        ({"efficiency_weight": 0.0}, [True, True, True, True]),
    ],
)
def test_an_incomplete_cost_record_leaves_v_only_where_cost_is_rewarded(options, retained):
    segments, unpriced = [P, M, I], (make_call(1e-3), make_call(None))
    group = group_of(
        score(trajectory_of(segments), True),
        score(trajectory_of(segments, calls=unpriced), True),
        score(trajectory_of(segments, calls=unpriced), False),
        score(trajectory_of(segments, calls=unpriced, status=Status.TERMINAL_INVALID), False),
    )
    batch = rewards_of([group], **options)
    assert batch.retained.tolist() == [retained]
    advantages = comet(batch, AdvantageConfig(options.get("efficiency_weight", 0.3), options.get("cold_start", False)))
    assert np.isfinite(np.asarray(advantages.grpo)).all()  # a cost that nobody knows is never counted as zero


def test_exclusion_reaches_the_statistics_of_its_group():
    segments = [P, M, I]
    outcomes = [True, True, False, False]
    rollouts = [score(trajectory_of(segments, rollout=k, calls=()), correct) for k, correct in enumerate(outcomes)]
    rollouts[1] = score(trajectory_of(segments, rollout=1, status=Status.INFRASTRUCTURE_FAILURE), False)
    advantages = grpo(rewards_of([group_of(*rollouts)]), AdvantageConfig(0.0))
    np.testing.assert_allclose(advantages.grpo, [[1.1547, 0, -0.57735, -0.57735]], rtol=1e-4)


def test_uneven_groups_are_filled_up_outside_v():
    rng = np.random.default_rng(0)
    groups = [
        group_of(*(score(make_trajectory(rng, f"q{g}", k, Mode.SINGLE), k % 2 == 0) for k in range(size)), index=g)
        for g, size in enumerate((4, 3, 1))
    ]
    batch = rewards_of(groups)
    assert batch.retained.sum(axis=1).tolist() == [4, 3, 1]
    rows = token_rows(groups, batch, comet(batch, AdvantageConfig(0.0)))
    names = [f"rollout {k} of query q{g}" for g, size in enumerate((4, 3, 1)) for k in range(size)]
    assert [row.name for row in rows] == names


def test_a_rollout_without_policy_tokens_is_never_a_sample():
    group = group_of(score(trajectory_of([P, P, J]), False), score(trajectory_of([P, M, I]), True))
    assert rewards_of([group]).retained.tolist() == [[False, True]]


def test_policy_tokens_are_those_sampled_whatever_their_text():
    # A demonstration inside the prompt and a forced mode read like assistant turns; neither was sampled.
    forced = trajectory_of([P, P, P, J, J, J, I, O, I, I], forced=True)
    group = group_of(score(forced, True), score(trajectory_of([P, J, I]), False), forced_mode=Mode.MULTI)
    batch = rewards_of([group])
    rows = token_rows([group], batch, comet(batch, AdvantageConfig(0.0)))
    assert policy_positions(rows[0].segments).tolist() == [6, 8, 9]
    counts = token_counts(rows)
    assert (counts.mode, counts.inner, counts.kl) == (0, 4, 4)


def test_every_turn_keeps_its_tokens_and_its_advantage():
    turn = [I] * 60 + [O] * 5
    segments = [P] * 4 + [M] * 3 + [J] + turn * 3
    config = BatchConfig(micro_batch=1, length_buckets=(256,), policy_buckets=(64, 192))
    advantage = Advantages(*(np.ones((1, 1), np.float32),) * 3)
    group = group_of(score(trajectory_of(segments), True))
    (micro,) = micro_batches(token_rows([group], rewards_of([group]), advantage), config, by_length=True)
    assert np.count_nonzero(micro.policy.advantage) == 183 == np.isin(segments, [int(M), int(I)]).sum()
    assert micro.policy.tokens.shape == (1, 192)


def test_token_advantages_of_free_and_forced_groups():
    advantage = Advantages(grpo=np.full((2, 1), 3.0), mode=np.full((2, 1), 1.0), inner=np.full((2, 1), 2.0))
    free = group_of(score(trajectory_of([P, M, I]), True))
    forced = group_of(score(trajectory_of([P, J, I], forced=True), True), index=1, forced_mode=Mode.MULTI)
    batch = GroupBatch(np.zeros((2, 1, 2)), np.ones((2, 1), np.int32), np.ones((2, 1), bool), np.array([False, True]))
    (micro,) = micro_batches(token_rows([free, forced], batch, advantage), CONFIG, by_length=False)
    assert micro.policy.advantage.tolist() == [[1, 2], [3, 0]]
    assert micro.policy.segments.tolist() == [[M, I], [I, Segment.PAD]]


def test_counts_leave_out_excluded_rollouts_and_keep_gated_groups():
    groups = make_groups(3, count=3, rollouts=4)
    batch = rewards_of(groups)
    rows = token_rows(groups, batch, comet(batch, AdvantageConfig(0.3)))
    everything = np.concatenate([s.trajectory.segments for group in groups for s in group.rollouts])
    counts = token_counts(rows)
    assert counts.mode == np.sum(everything == M) and counts.inner == np.sum(everything == I)
    lost = groups[1].rollouts[2].trajectory.segments
    groups = replace_rollout(groups, 1, 2, status=Status.INFRASTRUCTURE_FAILURE)
    batch = rewards_of(groups)
    fewer = token_counts(token_rows(groups, batch, comet(batch, AdvantageConfig(0.3))))
    assert counts.mode - fewer.mode == np.sum(lost == M) and counts.inner - fewer.inner == np.sum(lost == I)
    assert counts.kl - fewer.kl == np.sum(lost == M) + np.sum(lost == I)
    assert token_counts([]) == (0, 0, 0)


def test_answers_of_any_length_have_one_vote():
    short, long = [P, M, I, I], [P, M] + [I] * 40
    make = lambda lengths: group_of(  # noqa: E731
        *(score(trajectory_of(s, rollout=k, calls=()), k < 2) for k, s in enumerate(lengths))
    )
    config = AdvantageConfig(0.0)
    plain = comet(rewards_of([make([short] * 4)]), config)
    stretched = comet(rewards_of([make([long, short, short, short])]), config)
    np.testing.assert_array_equal(plain.grpo, stretched.grpo)


def test_padded_micro_batches_literally():
    rows = plain_rows([trajectory_of(segments) for segments in ([P, P, M, O, I, I], [P, I], [P, M, I])])
    first, second = micro_batches(rows, CONFIG, by_length=False)
    assert first.tokens.tolist() == [[100, 101, 102, 103, 104, 105, 0, 0], [100, 101, 0, 0, 0, 0, 0, 0]]
    pad = PADDING_POSITION
    assert first.positions.tolist() == [[0, 1, 2, 3, 4, 5, pad, pad], [0, 1, pad, pad, pad, pad, pad, pad]]
    assert first.predictors.tolist() == [[1, 3, 4, 0], [0, 0, 0, 0]]  # the state before each policy token
    assert first.policy.tokens.tolist() == [[102, 104, 105, 0], [101, 0, 0, 0]]
    assert first.policy.positions.tolist() == [[2, 4, 5, pad], [1, pad, pad, pad]]
    assert first.policy.segments.tolist() == [[M, I, I, 0], [I, 0, 0, 0]]
    assert first.policy.old_logprobs.tolist() == [[-3, -5, -6, 0], [-2, 0, 0, 0]]
    assert first.policy.retained.tolist() == [True, True] and first.sequences is None
    assert second.tokens.shape == (2, 8) and second.policy.tokens.shape == (2, 2)
    assert second.policy.retained.tolist() == [True, False]
    assert layout(rows, CONFIG, by_length=False) == [[(0,), (1,)], [(2,)]]
    assert padding_share([first, second]) == 1 - 11 / 32


def test_rows_of_like_length_share_a_micro_batch():
    lengths = [12, 3, 11, 4]
    rows = plain_rows([trajectory_of([P] + [I] * (n - 1), query_id=f"q{n}") for n in lengths])
    assert layout(rows, CONFIG, by_length=True) == [[(1,), (3,)], [(2,), (0,)]]
    assert [micro.tokens.shape[1] for micro in micro_batches(rows, CONFIG, by_length=True)] == [8, 16]
    assert layout(rows, CONFIG, by_length=False) == [[(0,), (1,)], [(2,), (3,)]]
    # Of an odd number of rows it is a short one that has a micro-batch to itself.
    assert layout(rows[:3], CONFIG, by_length=True) == [[(1,)], [(2,), (0,)]]


def test_only_shapes_that_are_announced_occur():
    rows = plain_rows([trajectory_of([P] + [I] * n, query_id=f"q{n}") for n in range(1, 16)])
    shapes = {(m.tokens.shape[1], m.policy.tokens.shape[1]) for m in micro_batches(rows, CONFIG, by_length=False)}
    assert shapes <= set(CONFIG.shapes()) == {(8, 2), (8, 4), (8, 8), (16, 2), (16, 4), (16, 16)}
    assert (16, 16) in shapes  # more policy tokens than any policy bucket: all of the row


def test_a_row_that_fits_no_bucket_is_named():
    with pytest.raises(ConfigError, match=r"rollout 0 of query q9 has 17 tokens, .*length_buckets \(8, 16\): add"):
        micro_batches(plain_rows([trajectory_of([P] + [I] * 16, query_id="q9")]), CONFIG, by_length=True)


def test_arrays_of_different_lengths_are_refused():
    broken = dataclasses.replace(trajectory_of([P, M, I]), sampled_logprobs=np.zeros(2, np.float32))
    with pytest.raises(DataError, match=r"rollout 0 of query q0: .* differ in length, \[2, 3\]"):
        plain_rows([broken])
    with pytest.raises(DataError, match="first token is marked as sampled"):
        plain_rows([trajectory_of([I, I])])


def test_an_empty_micro_batch_holds_no_token():
    micro = empty_micro_batch(8, 4, CONFIG)
    assert not micro.policy.retained.any() and (micro.positions == PADDING_POSITION).all()
    assert padding_share([micro]) == 1 and micro.policy.tokens.shape == (2, 4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("micro_batch", -1),
        ("length_buckets", ()),
        ("length_buckets", (16, 8)),
        ("policy_buckets", (0, 4)),
        ("old_policy", "x"),
        ("packing", "x"),
    ],
)
def test_illegal_shapes_are_named(field, value):
    with pytest.raises(ConfigError, match=f"batch.{field}="):
        BatchConfig(**{field: value})
