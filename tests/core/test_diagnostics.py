"""Each metric of rewards, advantages and tokens by literal numbers."""

import math

import jax
import numpy as np
import pytest

from rw.core import advantages, diagnostics
from rw.core.advantages import AdvantageConfig
from rw.core.losses import LossConfig, clipped_token_loss
from rw.types import NO_MODE, GroupBatch, Mode, Segment, TokenBatch

PAD, PROMPT, INJECTED, OBSERVATION, MODE, INNER = Segment
SINGLE, MULTI, AGENTIC = Mode
NAN = float("nan")


def groups(rewards, mode, retained=True, forced=False) -> GroupBatch:
    """A batch from literal [G][K] pairs of rewards."""
    rewards = np.array(rewards, np.float64)
    return GroupBatch(
        rewards=rewards,
        mode=np.array(mode, np.int32),
        retained=np.broadcast_to(np.array(retained), rewards.shape[:2]),
        forced=np.broadcast_to(np.array(forced), rewards.shape[:1]),
    )


comet = jax.jit(advantages.comet, static_argnums=1)


# Rewards


def test_rewards_and_accuracy_are_over_v_in_parts_by_mode_and_domain():
    batch = groups(
        [[(1, 0.5), (0, 0), (-1, -1)], [(1, 0.25), (1, 0.75), (NAN, NAN)]],
        [[SINGLE, SINGLE, NO_MODE], [MULTI, SINGLE, AGENTIC]],
        retained=[[True, True, True], [True, True, False]],
    )
    result = diagnostics.reward_metrics(batch, ["math", "code"])
    assert result["accuracy"] == 0.6
    assert result["reward/task/mean"] == pytest.approx(0.4)
    assert result["reward/task/std"] == pytest.approx(math.sqrt(0.8))  # sum of squares 3.2 over 4
    assert result["reward/eff/mean"] == pytest.approx(0.1)
    assert (result["accuracy/mode/single"], result["accuracy/mode/multi"]) == (pytest.approx(2 / 3), 1.0)
    assert (result["accuracy/mode/none"], result["reward/task/mean/mode/none"]) == (0.0, -1.0)
    assert "accuracy/mode/agentic" not in result  # its only rollout is excluded
    assert (result["accuracy/domain/math"], result["accuracy/domain/code"]) == (pytest.approx(1 / 3), 1.0)
    assert result["reward/eff/mean/domain/code"] == 0.5


def test_an_unmeasured_cost_leaves_the_task_reward_alone_and_never_counts_as_zero():
    result = diagnostics.reward_metrics(groups([[(1, NAN), (1, 0.5)]], [[SINGLE, SINGLE]]), ["math"])
    assert (result["reward/task/mean"], result["reward/eff/mean"], result["accuracy"]) == (1.0, 0.5, 1.0)


def test_correlation_of_the_two_rewards():
    batch = groups([[(1, 0.5), (0, 0), (-1, -1), (1, 1)]], [[SINGLE] * 4])
    result = diagnostics.reward_metrics(batch, ["math"])
    assert result["reward/task_eff_corr"] == pytest.approx(np.corrcoef([1, 0, -1, 1], [0.5, 0, -1, 1])[0, 1])
    same = diagnostics.reward_metrics(groups([[(1, 0.5), (1, 0.6)]], [[SINGLE] * 2]), ["math"])
    assert "reward/task_eff_corr" not in same  # no variance, no correlation


# Groups


def test_zero_variance_is_asked_of_each_component_by_itself():
    batch = groups(
        [
            [(1, 0.2), (1, 0.8), (1, 0.8)],  # all correct, costs differ: only the task is gated
            [(0, 0), (0, 0), (0, 0)],  # both gated
            [(1, 0.5), (0, 0), (0, 0)],  # none
            [(1, 0.5), (0, 0), (0, 0)],  # a single retained rollout: both gated
            [(1, NAN), (0, 0), (0, 0)],  # efficiency unmeasured: asked of the task only
            [(1, 0.5), (0, 0), (0, 0)],  # nothing retained: not asked
        ],
        [[SINGLE] * 3] * 6,
        retained=[[True] * 3] * 3 + [[True, False, False], [True] * 3, [False] * 3],
    )
    result = diagnostics.group_metrics(batch)
    assert result["group/zero_var_frac/task"] == 3 / 5
    assert result["group/zero_var_frac/eff"] == 2 / 4
    assert result["group/zero_var_frac/both"] == 2 / 4
    assert [result[f"group/size_hist/{n}"] for n in range(4)] == [1, 1, 0, 4]


@pytest.mark.parametrize("spread, gated", [(1.40e-4, 1.0), (1.43e-4, 0.0)])
def test_the_gate_of_zero_variance_is_that_of_the_advantage(spread, gated):
    batch = groups([[(0.9, 0.9), (0.9 + spread, 0.9)]], [[SINGLE] * 2])
    assert diagnostics.group_metrics(batch)["group/zero_var_frac/task"] == gated


def test_modes_per_group_counts_declared_modes_in_v_of_free_groups():
    batch = groups(
        np.zeros((4, 3, 2)),
        [[SINGLE, MULTI, AGENTIC], [SINGLE, SINGLE, NO_MODE], [SINGLE, MULTI, SINGLE], [MULTI] * 3],
        retained=[[True] * 3, [True] * 3, [True, False, True], [True] * 3],
        forced=[False, False, False, True],
    )
    result = diagnostics.group_metrics(batch)
    assert result["group/modes_per_group"] == pytest.approx((3 + 1 + 1) / 3)
    assert result["group/multi_mode_frac"] == pytest.approx(1 / 3)


# Advantages


def test_advantages_are_described_as_tokens_get_them():
    batch = groups(
        [[(1, 0), (0, 0), (0, 0), (NAN, NAN)], [(1, 0), (0, 0), (0, 0), (0, 0)]],
        [[SINGLE, MULTI, MULTI, AGENTIC], [MULTI] * 4],
        retained=[[True, True, True, False], [True] * 4],
        forced=[False, True],
    )
    result = diagnostics.advantage_metrics(batch, comet(batch, AdvantageConfig(0.0)))
    sigma = math.sqrt(1 / 3)  # of (1, 0, 0)
    assert result["adv/mode/mean"] == pytest.approx(0, abs=1e-6)
    assert result["adv/mode/absmax"] == pytest.approx(2 / 3 / sigma, rel=1e-5)
    assert result["adv/mode/std"] == pytest.approx(np.std([2 / 3, -1 / 3, -1 / 3], ddof=1) / sigma, rel=1e-5)
    assert result["adv/inner/absmax"] == pytest.approx(1.5, rel=1e-5)  # the forced group's A_GRPO of (1, 0, 0, 0)
    assert result["adv/inner/mean"] == pytest.approx(0, abs=1e-6)
    assert result["adv/inner_zero_frac"] == pytest.approx(1 / 7)


def test_dilution_shows_in_the_efficiency_advantage_of_the_dearest_correct_rollout():
    rewards = [[(1, 0.9), (1, 0.4), (0, 0), (0, 0)], [(0, 0)] * 4]
    batch = groups(rewards, [[SINGLE] * 4] * 2)
    scores = np.array([0.9, 0.4, 0.0, 0.0])
    want = (0.4 - scores.mean()) / scores.std(ddof=1)
    result = diagnostics.advantage_metrics(batch, comet(batch, AdvantageConfig(0.5)))
    assert result["adv/eff_of_dearest_correct"] == pytest.approx(want, rel=1e-4)
    assert want > 0  # dearer than the other, and still rewarded


def test_nothing_retained_leaves_the_metrics_out():
    batch = groups(np.full((1, 2, 2), NAN), [[NO_MODE] * 2], retained=False)
    assert diagnostics.reward_metrics(batch, ["math"]) == {}
    assert diagnostics.advantage_metrics(batch, comet(batch, AdvantageConfig(0.5))) == {}
    assert diagnostics.group_metrics(batch) == {"group/size_hist/0": 1, "group/size_hist/1": 0, "group/size_hist/2": 0}


# Tokens

policy_metrics = jax.jit(diagnostics.policy_metrics, static_argnums=2)
token_slope = jax.jit(jax.grad(lambda ratio, advantage: clipped_token_loss(ratio, advantage, 0.2, 0.2, 3.0)))


def tokens(segments, ratio=1.0, advantage=1.0, reference=0.0, retained=True) -> tuple[TokenBatch, np.ndarray]:
    segments = np.array(segments, np.uint8)

    def like(values):
        return np.broadcast_to(np.asarray(values, np.float32), segments.shape)

    batch = TokenBatch(
        tokens=None,
        positions=None,
        segments=segments,
        advantage=like(advantage),
        old_logprobs=-np.log(like(ratio)),
        reference_logprobs=like(reference),
        retained=np.broadcast_to(np.array(retained), segments.shape[:1]),
    )
    return batch, np.zeros(segments.shape, np.float32)


def test_entropy_and_kl_are_means_per_segment():
    batch, logprobs = tokens([[PROMPT, MODE, INNER, INNER, OBSERVATION]], reference=[[9, -0.5, 0.0, 1.0, 9]])
    entropy = np.array([[NAN, 2.0, 1.0, 0.5, NAN]], np.float32)
    result = policy_metrics(logprobs, batch, LossConfig(), entropy=entropy)
    assert float(result["policy/entropy/mode"]) == 2.0
    assert float(result["policy/entropy/inner"]) == 0.75
    assert float(result["policy/kl_ref/mode"]) == pytest.approx(math.exp(-0.5) - 0.5, rel=1e-5)
    assert float(result["policy/kl_ref/inner"]) == pytest.approx((math.e - 2) / 2, rel=1e-5)
    assert float(result["policy/kl_max"]) == pytest.approx(math.e - 2, rel=1e-5)


def test_ratio_statistics():
    batch, logprobs = tokens([[INNER] * 4 + [OBSERVATION]], ratio=[[0.5, 1.0, 1.0, 2.0, 50.0]])
    result = policy_metrics(logprobs, batch, LossConfig())
    assert float(result["policy/ratio/mean"]) == pytest.approx(1.125)
    assert float(result["policy/ratio/min"]) == pytest.approx(0.5)
    assert float(result["policy/ratio/max"]) == pytest.approx(2.0)
    assert float(result["policy/ratio/p99"]) == pytest.approx(1.97)
    assert float(result["policy/approx_kl_old/k1"]) == pytest.approx(0.0, abs=1e-7)
    assert float(result["policy/approx_kl_old/k3"]) == pytest.approx((0.5 - 1 + math.log(2) + 2 - 1 - math.log(2)) / 4)


def test_before_an_update_ratios_are_one_and_divergences_zero():
    batch, logprobs = tokens([[MODE, INNER, INNER]])
    result = policy_metrics(logprobs, batch, LossConfig())
    assert [float(result[f"policy/ratio/{name}"]) for name in ("mean", "min", "max", "p99")] == [1.0] * 4
    assert float(result["policy/approx_kl_old/k1"]) == float(result["policy/approx_kl_old/k3"]) == 0.0


@pytest.mark.parametrize(
    "ratio, advantage, clipped",
    [
        (1.5, -1.0, []),  # only the dual clip bounds it from above
        (1.5, 1.0, ["high"]),
        (0.5, -1.0, ["low"]),
        (0.5, 1.0, []),
        (3.5, -1.0, ["dual"]),
        (3.5, 1.0, ["high"]),
        (0.5, 0.0, []),
        (1.1, 1.0, []),
    ],
)
def test_clip_fractions_count_what_a_clip_really_holds(ratio, advantage, clipped):
    batch, logprobs = tokens([[INNER]], ratio=ratio, advantage=advantage)
    result = policy_metrics(logprobs, batch, LossConfig())
    found = [name for name in ("low", "high", "dual") if float(result[f"policy/clip_frac/{name}"]) == 1.0]
    assert found == clipped
    slope = token_slope(ratio, advantage)
    assert (float(slope) == 0.0) == bool(clipped or not advantage)


def test_clip_fractions_are_over_policy_tokens_of_retained_rows():
    segments = [[INNER, INNER, MODE, INNER, OBSERVATION], [INNER] * 5]
    batch, logprobs = tokens(segments, ratio=[[1.5, 1.0, 1.0, 1.0, 1.5], [1.5] * 5], retained=[True, False])
    assert float(policy_metrics(logprobs, batch, LossConfig())["policy/clip_frac/high"]) == 0.25


def test_sampler_drift_is_told_per_token():
    mask = np.array([[True] * 4 + [False]])
    trainer = np.array([[-1.0, -1.0, -1.0, -1.0, NAN]], np.float32)
    sampled = np.array([[-1.0, -1.05, -1.2, -0.9, 0.0]], np.float32)
    result = diagnostics.sampler_metrics(trainer, sampled, mask)
    assert float(result["sampler/logp_diff/mean_abs"]) == pytest.approx(0.35 / 4, rel=1e-5)
    assert float(result["sampler/logp_diff/max"]) == pytest.approx(0.2, rel=1e-5)
    assert float(result["sampler/logp_diff/p95"]) == pytest.approx(0.1 + 0.85 * 0.1, rel=1e-5)
    # exp(0.05) = 1.051 and exp(-0.1) = 0.905 stay inside [0.9, 1.1], exp(0.2) = 1.221 does not
    assert float(result["sampler/ratio_outside_10pct"]) == 0.25


@pytest.mark.parametrize("hole", [NAN, np.inf, 1e9])
def test_masked_slots_do_not_matter(hole):
    segments = [[PROMPT, MODE, INNER, INNER, OBSERVATION], [INNER, INNER, PAD, PAD, PAD]]
    batch, logprobs = tokens(segments, ratio=1.3, advantage=-0.5, reference=-0.4, retained=[True, False])
    mask = np.isin(segments, (MODE, INNER)) & np.array([[True], [False]])
    dirty = TokenBatch(
        tokens=None,
        positions=None,
        segments=batch.segments,
        advantage=np.where(mask, batch.advantage, hole),
        old_logprobs=np.where(mask, batch.old_logprobs, hole),
        reference_logprobs=np.where(mask, batch.reference_logprobs, hole),
        retained=batch.retained,
    )
    entropy = sampled = np.where(mask, 0.5, hole).astype(np.float32)
    clean = policy_metrics(logprobs, batch, LossConfig(), entropy, sampled)
    found = policy_metrics(np.where(mask, logprobs, hole), dirty, LossConfig(), entropy, sampled)
    assert {name: float(value) for name, value in clean.items()} == {n: float(v) for n, v in found.items()}


def test_the_same_under_jit_and_no_token_is_no_alarm():
    batch, logprobs = tokens([[MODE, INNER, INNER]], ratio=[[0.5, 1.0, 4.0]], advantage=-1.0, reference=0.3)
    eager = diagnostics.policy_metrics(logprobs, batch, LossConfig(), logprobs, logprobs - 0.01)
    jitted = policy_metrics(logprobs, batch, LossConfig(), logprobs, logprobs - 0.01)
    assert eager.keys() == jitted.keys()
    for name in eager:
        assert float(jitted[name]) == pytest.approx(float(eager[name]), rel=1e-5, abs=1e-7)
    empty = policy_metrics(logprobs, batch._replace(retained=np.array([False])), LossConfig(), logprobs, logprobs)
    expected = {name: float("ratio/" in name) for name in empty}
    assert {name: float(value) for name, value in empty.items()} == expected
