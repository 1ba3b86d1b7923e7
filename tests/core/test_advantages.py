import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rw.core.advantages import ADVANTAGES, AdvantageConfig, comet, grpo, resolve, token_advantage
from rw.errors import ConfigError
from rw.types import NO_MODE, Advantages, GroupBatch, Mode, Segment

SINGLE, MULTI, AGENTIC = Mode
TASK_ONLY = AdvantageConfig(efficiency_weight=0.0)
eager_comet = comet
comet = jax.jit(eager_comet, static_argnums=1)  # one compilation a shape, where eager compiles each operation
BOTH = pytest.mark.parametrize("function", [eager_comet, comet], ids=["eager", "jit"])


def one_group(task, mode=SINGLE, retained=True, efficiency=None, forced=False) -> GroupBatch:
    """A batch of one group; scalars are repeated for every rollout, and the efficiency defaults to the task reward."""
    task = np.asarray(task, np.float64)
    efficiency = task if efficiency is None else np.asarray(efficiency, np.float64)
    return GroupBatch(
        rewards=np.stack([task, efficiency], axis=-1)[None],
        mode=np.broadcast_to(np.asarray(mode, np.int32), task.shape)[None],
        retained=np.broadcast_to(np.asarray(retained, bool), task.shape)[None],
        forced=np.array([forced]),
    )


def oracle(rewards, mode, retained, weight, epsilon=1e-6, gate=1e-4):
    """NumPy float64, one rollout at a time."""
    result = np.zeros((3, len(mode)))
    for component, share in ((0, 1 - weight), (1, weight)):
        if share == 0:
            continue
        r = rewards[:, component]
        members = [i for i in range(len(mode)) if retained[i]]
        if len(members) < 2 or np.std(r[members], ddof=1) < gate:
            continue
        mean, std = np.mean(r[members]), np.std(r[members], ddof=1)
        for i in members:
            mode_mean = np.mean([r[j] for j in members if mode[j] == mode[i]])
            deviations = np.array([r[i] - mean, mode_mean - mean, r[i] - mode_mean])
            result[:, i] += share * deviations / (std + epsilon)
    return result


COST_SCORES = st.sampled_from([0.2, 0.35, 0.5, 0.501, 0.7, 0.93, 1.0])
OUTCOMES = st.one_of(st.tuples(st.just(1.0), COST_SCORES), st.sampled_from([(0.0, 0.0), (-1.0, -1.0)]))
ROLLOUTS = st.tuples(OUTCOMES, st.sampled_from([NO_MODE, SINGLE, MULTI, AGENTIC]), st.booleans())


@st.composite
def batches(draw):
    rollouts = draw(st.lists(ROLLOUTS, min_size=16, max_size=16))
    return GroupBatch(
        rewards=np.array([rollout[0] for rollout in rollouts]).reshape(2, 8, 2),
        mode=np.array([rollout[1] for rollout in rollouts], np.int32).reshape(2, 8),
        retained=np.array([rollout[2] for rollout in rollouts]).reshape(2, 8),
        forced=np.zeros(2, bool),
    )


@given(batches(), st.sampled_from([0.0, 0.3]), st.booleans())
def test_agrees_with_a_numpy_oracle(batch, weight, x64):
    with jax.enable_x64(x64):
        advantages = comet(batch, AdvantageConfig(weight))
    for g in range(2):
        want = oracle(batch.rewards[g], batch.mode[g], batch.retained[g], weight)
        got = np.stack([advantages.grpo[g], advantages.mode[g], advantages.inner[g]])
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 if x64 else 2e-5)


@given(batches(), st.sampled_from([0.0, 0.3]))
def test_identities_hold_per_component_and_mixed(batch, weight):
    with jax.enable_x64(True):
        advantages = comet(batch, AdvantageConfig(weight))
    mixed = [np.asarray(array)[..., None] for array in advantages[:3]]
    for grpo_, mode, inner in (mixed, [np.asarray(array) for array in advantages.components]):
        np.testing.assert_allclose(mode + inner, grpo_, atol=1e-12)
        np.testing.assert_allclose(mode.sum(axis=1), 0, atol=1e-12)
        for m in (NO_MODE, *Mode):
            members = (batch.mode == m)[..., None]
            np.testing.assert_allclose((inner * members).sum(axis=1), 0, atol=1e-12)
        assert not np.any(grpo_[~batch.retained]) and not np.any(mode[~batch.retained])


@given(batches(), st.permutations(range(8)))
def test_permuting_rollouts_permutes_advantages(batch, order):
    config = AdvantageConfig(0.3)
    permuted = GroupBatch(*(array[:, list(order)] for array in batch[:3]), batch.forced)
    with jax.enable_x64(True):
        before, after = comet(batch, config), comet(permuted, config)
    for name in ("grpo", "mode", "inner"):
        np.testing.assert_allclose(getattr(before, name)[:, list(order)], getattr(after, name), atol=1e-12)


@BOTH
def test_one_mode_only_has_exactly_no_mode_advantage(function):
    advantages = function(one_group([1, 0, 0, 1, 1, -1, 0], MULTI), TASK_ONLY)
    np.testing.assert_array_equal(advantages.mode, np.zeros((1, 7)))
    np.testing.assert_array_equal(advantages.inner, advantages.grpo)


@BOTH
def test_single_rollout_of_a_mode_has_exactly_no_inner_advantage(function):
    advantages = function(one_group([1, 0, 0, 1], [AGENTIC, SINGLE, SINGLE, SINGLE]), TASK_ONLY)
    assert advantages.inner[0, 0] == 0
    assert advantages.mode[0, 0] == advantages.grpo[0, 0] > 0


def test_excluded_rollouts_leave_the_statistics():
    advantages = comet(one_group([1, 1, 0, 0], retained=[True, False, True, True]), TASK_ONLY)
    np.testing.assert_allclose(advantages.grpo[0], [1.1547, 0, -0.57735, -0.57735], atol=1e-4)


@pytest.mark.parametrize("hole", [np.nan, np.inf, -1e30])
def test_what_an_excluded_slot_holds_does_not_matter(hole):
    retained = [True, False, True, True]
    clean = comet(one_group([1, 0, 0, 0], retained=retained), AdvantageConfig(0.3))
    dirty = comet(one_group([1, hole, 0, 0], retained=retained), AdvantageConfig(0.3))
    for clean_array, dirty_array in zip(jax.tree.leaves(clean), jax.tree.leaves(dirty), strict=True):
        np.testing.assert_array_equal(clean_array, dirty_array)


@pytest.mark.parametrize("retained", [[False] * 4, [True, False, False, False]])
def test_a_group_with_fewer_than_two_retained_rollouts_has_no_advantage(retained):
    advantages = comet(one_group([1, 0, 0, -1], retained=retained), AdvantageConfig(0.5))
    for array in jax.tree.leaves(advantages):
        np.testing.assert_array_equal(array, np.zeros_like(array))


@pytest.mark.parametrize("x64", [False, True])
def test_epsilon_is_added_to_sigma_and_the_gate_lies_below_it_with_nothing_between(x64):
    with jax.enable_x64(x64):
        above = comet(one_group([1.0, 1.001]), TASK_ONLY).grpo[0]
        below = comet(one_group([1.0, 1.00001]), TASK_ONLY).grpo[0]
    sigma = 0.001 / math.sqrt(2)
    want = 0.70710678 / (1 + 1e-6 / sigma)
    np.testing.assert_allclose(above, [-want, want], rtol=1e-5 if not x64 else 1e-8)
    np.testing.assert_array_equal(below, [0, 0])


@pytest.mark.parametrize("spread, gated", [(1.40e-4, True), (1.43e-4, False)])
def test_the_gate_lies_at_a_sigma_of_one_in_ten_thousand(spread, gated):
    advantages = comet(one_group([0.0, spread]), TASK_ONLY)  # sigma = spread / sqrt(2)
    assert bool(np.all(np.asarray(advantages.grpo) == 0)) == gated


@BOTH
def test_sigma_is_two_pass_and_survives_a_large_common_offset(function):
    advantages = function(one_group([1000.0, 1000.5, 1001.0]), TASK_ONLY)
    np.testing.assert_allclose(advantages.grpo[0], [-1, 0, 1], atol=1e-5)


def test_rare_success_weighs_most():
    advantages = comet(one_group([1, 0, 0, 0, 0, 0, 0, 0]), TASK_ONLY)
    np.testing.assert_allclose(advantages.grpo[0], [2.4749] + [-0.35355] * 7, atol=1e-4)


def test_equal_rewards_differ_in_cost_keep_the_efficiency_signal():
    batch = one_group(np.ones(4), efficiency=[0.2, 0.4, 0.6, 0.8])
    advantages = comet(batch, AdvantageConfig(0.3))
    np.testing.assert_array_equal(advantages.components[0][..., 0], np.zeros((1, 4)))
    np.testing.assert_allclose(advantages.grpo[0], 0.3 * np.array([-1.1619, -0.3873, 0.3873, 1.1619]), atol=1e-4)


def test_weights_act_after_normalisation_so_the_scale_of_a_component_does_not_matter():
    task, efficiency = [1, 0, 1, -1], np.array([0.3, 0.0, 0.8, -1.0])
    plain = comet(one_group(task, efficiency=efficiency), AdvantageConfig(0.3)).grpo
    scaled = comet(one_group(task, efficiency=10 * efficiency), AdvantageConfig(0.3)).grpo
    reweighted = comet(one_group(task, efficiency=efficiency), AdvantageConfig(0.5)).grpo
    np.testing.assert_allclose(plain, scaled, atol=1e-5)
    assert np.max(np.abs(plain - reweighted)) > 0.01


def test_components_are_never_summed_before_normalisation():
    # As sums both groups would give ±0.7071; kept apart, the efficiency of the first is gated.
    first = comet(one_group([0, 1], efficiency=[0, 0]), AdvantageConfig(0.5)).grpo[0]
    second = comet(one_group([0, 1], efficiency=[0, 1]), AdvantageConfig(0.5)).grpo[0]
    np.testing.assert_allclose(first, [-0.35355, 0.35355], atol=1e-4)
    np.testing.assert_allclose(second, [-0.70711, 0.70711], atol=1e-4)


def test_no_statistic_crosses_groups():
    one = one_group([1, 0, 0, 1], [SINGLE, SINGLE, MULTI, MULTI])
    other = one_group([1, 1, 1, -1], AGENTIC)
    both = GroupBatch(*(np.concatenate(arrays) for arrays in zip(one, other, strict=True)))
    alone, together = comet(one, TASK_ONLY), comet(both, TASK_ONLY)
    np.testing.assert_array_equal(alone.mode[0], together.mode[0])
    np.testing.assert_array_equal(alone.inner[0], together.inner[0])


def test_groups_of_uneven_size_are_padded_by_retention():
    sizes = (8, 7, 1)
    rewards = np.array([[1, 0, 1, 0, -1, 0, 1, 0]] * 3, np.float64)
    retained = np.arange(8)[None] < np.array(sizes)[:, None]
    batch = GroupBatch(np.stack([rewards] * 2, -1), np.zeros((3, 8), np.int32), retained, np.zeros(3, bool))
    advantages = comet(batch, TASK_ONLY)
    for g, size in enumerate(sizes):
        want = oracle(batch.rewards[g][:size], batch.mode[g][:size], [True] * size, 0.0)[0]
        np.testing.assert_allclose(advantages.grpo[g][:size], want, atol=1e-6)
        assert not np.any(advantages.grpo[g][size:])


def test_rollouts_without_a_mode_are_a_mode_of_their_own():
    advantages = comet(one_group([-1, 1, -1, 0], [NO_MODE, SINGLE, NO_MODE, SINGLE]), TASK_ONLY)
    np.testing.assert_array_equal(advantages.inner[0, [0, 2]], [0, 0])
    np.testing.assert_array_equal(advantages.mode[0, [0, 2]], advantages.grpo[0, [0, 2]])
    np.testing.assert_allclose(advantages.mode[0], [-0.78335, 0.78335, -0.78335, 0.78335], atol=1e-4)


def test_cold_start_ignores_the_efficiency_weight():
    batch = one_group([1, 0, 1, -1], efficiency=[0.9, 0.0, 0.1, -1.0])
    cold = comet(batch, AdvantageConfig(0.5, cold_start=True))
    np.testing.assert_array_equal(cold.grpo, comet(batch, TASK_ONLY).grpo)


@pytest.mark.parametrize("config", [TASK_ONLY, AdvantageConfig(0.5, cold_start=True)])
def test_an_unmeasured_cost_does_not_matter_where_cost_does_not_count(config):
    advantages = comet(one_group([1, 0, 1, -1], efficiency=[0.9, 0.0, np.nan, -1.0]), config)
    np.testing.assert_array_equal(advantages.grpo, comet(one_group([1, 0, 1, -1]), config).grpo)
    assert np.isnan(advantages.components[0][0, :, 1]).any()  # not measured, and not passed off as a number


def test_advantages_stay_float32_unless_x64_is_on():
    assert comet(one_group([1, 0]), TASK_ONLY).grpo.dtype == jnp.float32
    half = one_group([1, 0])._replace(rewards=jnp.ones((1, 2, 2), jnp.bfloat16))
    assert comet(half, TASK_ONLY).grpo.dtype == jnp.float32


def test_shapes_are_checked_at_the_door():
    batch = one_group([1, 0])
    with pytest.raises(ValueError, match=r"\[G, K, 2\]"):
        comet(batch._replace(rewards=batch.rewards[..., :1]), TASK_ONLY)
    with pytest.raises(ValueError, match=r"\[G, K\]"):
        grpo(batch._replace(mode=batch.mode[0]), TASK_ONLY)


@pytest.mark.parametrize("values", [{"efficiency_weight": 1.1}, {"efficiency_weight": -0.1}, {"std_epsilon": 0.0}])
def test_illegal_configs_are_refused(values):
    with pytest.raises(ConfigError):
        AdvantageConfig(**{"efficiency_weight": 0.0, **values})


# Tokens

PAD, PROMPT, INJECTED, OBSERVATION, MODE, INNER = Segment


def rows_of(advantages, forced, segments):
    """Token advantages of [G, K] rollouts that all have the same segments."""
    shape = advantages.grpo.shape
    forced = np.broadcast_to(np.asarray(forced)[:, None], shape)
    return token_advantage(advantages, forced, np.broadcast_to(np.array(segments, np.uint8), (*shape, len(segments))))


def test_free_tokens_get_mode_or_inner_and_forced_ones_the_group_advantage():
    free = one_group([1, 0, 0, 1], [SINGLE, SINGLE, MULTI, AGENTIC])
    forced = one_group([1, 0, 0, 0], MULTI, forced=True)
    batch = GroupBatch(*(np.concatenate(arrays) for arrays in zip(free, forced, strict=True)))
    advantages = comet(batch, TASK_ONLY)
    free_segments = [PROMPT, MODE, MODE, INJECTED, INNER, OBSERVATION, INNER, PAD]
    tokens = np.asarray(rows_of(advantages, batch.forced, free_segments))
    np.testing.assert_array_equal(tokens[0][:, [1, 2]], np.stack([advantages.mode[0]] * 2, 1))
    np.testing.assert_array_equal(tokens[0][:, [4, 6]], np.stack([advantages.inner[0]] * 2, 1))
    forced_segments = [PROMPT, INJECTED, INJECTED, INNER, OBSERVATION, INNER, PAD, PAD]
    tokens = np.asarray(rows_of(advantages, batch.forced, forced_segments))
    np.testing.assert_array_equal(tokens[1][:, [3, 5]], np.stack([advantages.grpo[1]] * 2, 1))
    np.testing.assert_array_equal(advantages.grpo[1], advantages.inner[1])
    assert not np.any(tokens[:, :, [0, 1, 2, 4, 6, 7]])


def test_token_advantages_by_row():
    advantages = Advantages(grpo=np.array([1.0, 2.0]), mode=np.array([3.0, 4.0]), inner=np.array([5.0, 6.0]))
    segments = np.array([[PROMPT, MODE, INNER, OBSERVATION, PAD]] * 2)
    got = token_advantage(advantages, np.array([False, True]), segments)
    np.testing.assert_array_equal(got, [[0, 3, 5, 0, 0], [0, 0, 2, 0, 0]])


def test_plain_grpo_gives_every_policy_token_the_same_advantage():
    batch = one_group([1, 0, 0, 1], [SINGLE, SINGLE, MULTI, AGENTIC])
    tokens = np.asarray(rows_of(grpo(batch, TASK_ONLY), batch.forced, [PROMPT, MODE, OBSERVATION, INNER]))
    expected = np.asarray(comet(batch, TASK_ONLY).grpo)
    np.testing.assert_array_equal(tokens[0], np.stack([0 * expected[0], expected[0], 0 * expected[0], expected[0]], 1))


def test_long_answers_have_no_larger_advantage():
    advantages = comet(one_group([1, 0, 0, 0], [SINGLE, SINGLE, MULTI, MULTI]), TASK_ONLY)
    short = np.asarray(rows_of(advantages, [False], [MODE] + [INNER] * 3))
    long = np.asarray(rows_of(advantages, [False], [MODE] + [INNER] * 30))
    np.testing.assert_array_equal(short[..., 1], long[..., 30])


def test_every_turn_of_a_trajectory_keeps_its_advantage():
    advantages = comet(one_group([1, 0, 0, 0], [SINGLE, SINGLE, MULTI, MULTI]), TASK_ONLY)
    segments = [PROMPT, MODE, INJECTED, INNER, INNER, OBSERVATION, INNER, OBSERVATION, INNER, PAD]
    tokens = np.asarray(rows_of(advantages, [False], segments))
    assert np.count_nonzero(tokens[0, 0]) == sum(segment in (MODE, INNER) for segment in segments)


# Lookup


def test_advantages_are_found_by_name_by_path_or_as_they_are():
    assert resolve("comet") is eager_comet and resolve("grpo") is grpo
    assert resolve("rw.core.advantages:grpo") is grpo
    mine = functools.partial(eager_comet)
    assert resolve(mine) is mine
    assert set(ADVANTAGES) == {"comet", "grpo"}


@pytest.mark.parametrize(
    "name, message",
    [
        ("commet", "did you mean 'comet'"),
        ("nowhere.to_be_found:f", "nowhere"),
        ("rw.core.advantages:nothing", "nothing"),
        ("rw.core.advantages:ADVANTAGES", "not a function"),
        (":f", "not of the form"),
    ],
)
def test_unknown_advantages_are_refused_in_one_line(name, message):
    with pytest.raises(ConfigError, match=message) as error:
        resolve(name)
    assert "\n" not in str(error.value)
