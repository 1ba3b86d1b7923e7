"""The step against the loss written the slow way, and what a step must leave alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rw.core.advantages import AdvantageConfig, comet, grpo
from rw.core.losses import LossConfig
from rw.errors import ConfigError, TrainingDivergedError
from rw.learner.batch import BatchConfig, micro_batches, token_counts
from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.learner.programs import check_not_diverged
from rw.learner.state import fingerprint, init_state
from rw.learner.step import Learner, LearnerConfig
from rw.types import Segment, Status

from . import oracle
from .conftest import MODEL, make_groups, mode_candidates, relative_difference, replace_rollout

ALPHA, BETA, LAMBDA = 0.3, 0.05, 0.4  # large β and λ_b, so that an error in any term shows
BATCH = BatchConfig(micro_batch=4, length_buckets=(40, 64), policy_buckets=(64,), logprob_chunk=16)
CONFIG = LearnerConfig(
    batch=BATCH,
    loss=LossConfig(kl_coefficient=BETA),
    advantage=AdvantageConfig(ALPHA),
    deterministic=True,
)
OPTIMIZER = Optimizer(OptimizerConfig(learning_rate=1e-3))


@pytest.fixture(scope="module")
def learner(reference_params):
    return Learner(MODEL, OPTIMIZER, reference_params, CONFIG)


@pytest.fixture(scope="module")
def oracle_gradient(reference_params):
    gradient = jax.jit(jax.value_and_grad(lambda p, a, w: oracle.term_loss(p, MODEL, reference_params, a, w)))
    return lambda params, groups, weights, **options: gradient(
        params, oracle.dense_arrays(groups, **{"efficiency_weight": ALPHA, **options}), jnp.asarray(weights)
    )


@pytest.fixture(scope="module")
def oracle_support():
    return jax.jit(jax.value_and_grad(lambda p, *a: oracle.support_loss(p, MODEL, *a), has_aux=True))


def excluded(groups, which):
    for g, k in which:
        groups = replace_rollout(groups, g, k, status=Status.INFRASTRUCTURE_FAILURE)
    return groups


@pytest.fixture(scope="module")
def groups():
    """Six groups of four, forced and free, ragged, two rollouts lost to infrastructure."""
    return excluded(make_groups(0), [(1, 2), (3, 0)])


def test_each_term_has_the_gradient_of_the_loss_written_out(learner, params, groups, oracle_gradient, oracle_support):
    gradients = learner.gradients(params, groups, mode_candidates=mode_candidates)
    for index, term in enumerate(("mode", "inner", "kl")):
        _, expected = oracle_gradient(params, groups, np.eye(3)[index])
        assert relative_difference(expected, gradients[term]) < 1e-5, term
    _, expected = oracle_support(params, *oracle.support_arrays(groups, mode_candidates))
    assert relative_difference(expected, gradients["support"]) < 1e-5


def test_no_term_depends_on_how_rows_are_spread_over_micro_batches(learner, params, groups):
    _, _, rows = learner._rows(groups, cold_start=False)
    normalisers = token_counts(rows)
    for term in range(3):
        weights = np.eye(3)[term]
        gradients = []
        for parts in (6, 11, 22):
            chunks = [rows[part::parts] for part in range(parts)]  # unequal in rows and in tokens
            micros = [micro for chunk in chunks for micro in micro_batches(chunk, BATCH, by_length=False)]
            assert len(micros) == parts
            gradients.append(learner._policy_gradient(params, micros, normalisers, weights)[0])
        assert relative_difference(gradients[0], gradients[1]) < 1e-5
        assert relative_difference(gradients[0], gradients[2]) < 1e-5


def test_one_step_is_adamw_on_the_whole_loss(learner, params, groups, oracle_gradient, oracle_support):
    state = init_state(params, OPTIMIZER, seed=0)
    state, metrics = learner.step(
        state, groups, cold_start=False, support_coefficient=LAMBDA, mode_candidates=mode_candidates
    )
    loss, gradient = oracle_gradient(params, groups, [1, 1, BETA])
    (support, mode_support), support_gradient = oracle_support(params, *oracle.support_arrays(groups, mode_candidates))
    gradient = jax.tree.map(lambda g, s: np.asarray(g + LAMBDA * s, np.float64), gradient, support_gradient)
    norm = np.sqrt(sum(np.sum(g**2) for g in jax.tree.leaves(gradient)))
    assert metrics["loss/total"] == pytest.approx(float(loss + LAMBDA * support), rel=1e-5)
    assert metrics["loss/support"] == pytest.approx(float(support), rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    p_bar = [metrics[f"mode/p_bar/{word}"] for word in ("single", "multi", "agentic")]
    np.testing.assert_allclose(p_bar, mode_support, rtol=1e-5)
    # First AdamW step by hand: both moments are unbiased to g and g², clipped to norm 1, decay on every parameter.
    clipped = jax.tree.map(lambda g: g / max(norm, 1.0), gradient)
    assert relative_difference(jax.tree.map(lambda g: 0.1 * g, clipped), state.opt_state[1].mu) < 1e-5
    assert relative_difference(jax.tree.map(lambda g: 0.001 * g**2, clipped), state.opt_state[1].nu) < 1e-5
    for name, old in params.items():
        g = clipped[name]
        expected = old - 1e-3 * (g / (np.abs(g) + 1e-8) + 0.01 * old)
        settled = np.abs(g) > 1e-5  # where |g| is near ε or rounding, the sign of the step is not
        np.testing.assert_allclose(np.asarray(state.params[name])[settled], expected[settled], atol=2e-6)
    assert (int(state.step), int(state.data_batch_index)) == (1, 1)
    assert metrics["update_norm"] > 0 and metrics["lr"] == pytest.approx(1e-3)


def test_counts_and_terms_are_reported_with_their_own_denominators(learner, params, groups):
    _, metrics = learner.step(init_state(params, OPTIMIZER, 0), groups, cold_start=False)
    kept = [s.trajectory for group in groups for s in group.rollouts]
    kept = np.concatenate([t.segments for t in kept if t.status is not Status.INFRASTRUCTURE_FAILURE])
    assert metrics["N_mode"] == np.sum(kept == Segment.MODE)
    assert metrics["N_inner"] == np.sum(kept == Segment.INNER)
    assert metrics["N_KL"] == metrics["N_mode"] + metrics["N_inner"]
    total = metrics["loss/pg_mode"] + metrics["loss/pg_inner"] + BETA * metrics["loss/kl"]
    assert metrics["loss/total"] == pytest.approx(total, rel=1e-6)
    assert metrics["policy/ratio/min"] == metrics["policy/ratio/max"] == 1
    assert metrics["policy/approx_kl_old/k3"] == 0 and "loss/support" not in metrics


def test_the_order_of_arrival_changes_no_bit(learner, params, groups):
    first, _ = learner.step(init_state(params, OPTIMIZER, 0), groups, cold_start=False)
    second, _ = learner.step(init_state(params, OPTIMIZER, 0), groups[::-1], cold_start=False)
    assert fingerprint(first.params) == fingerprint(second.params)
    assert fingerprint(first.opt_state) == fingerprint(second.opt_state)


def test_learner_and_sampler_agree_on_the_same_tokens_at_the_sampling_temperature(learner, params):
    groups = make_groups(5)
    arrays = oracle.dense_arrays(groups)
    logprobs = np.asarray(oracle.dense_logprobs(params, MODEL, arrays["tokens"], arrays["lengths"], 0.8))
    for row in range(24):
        g, k = divmod(row, 4)
        n = arrays["lengths"][row]
        groups = replace_rollout(groups, g, k, sampled_logprobs=logprobs[row, :n].astype(np.float32))
    _, metrics = learner.step(init_state(params, OPTIMIZER, 0), groups, cold_start=False)
    assert metrics["sampler/logp_diff/max"] < 1e-5 and metrics["sampler/ratio_outside_10pct"] == 0


def test_a_gated_group_pulls_to_the_reference_and_an_excluded_one_does_nothing(learner, params):
    everyone_right = [
        dataclasses.replace(group, rollouts=tuple(dataclasses.replace(s, verdict=None) for s in group.rollouts))
        for group in make_groups(1, count=2, forced=lambda index: False)
    ]
    everyone_right = [g for g in everyone_right if all(not s.correct for s in g.rollouts)]
    for g, group in enumerate(everyone_right):
        for k in range(len(group.rollouts)):
            everyone_right = replace_rollout(everyone_right, g, k, status=Status.EXHAUSTED)
    gradients = learner.gradients(params, everyone_right, ("mode", "inner", "kl"))
    assert all(not np.any(leaf) for term in ("mode", "inner") for leaf in jax.tree.leaves(gradients[term]))
    assert relative_difference(gradients["kl"], jax.tree.map(jnp.zeros_like, gradients["kl"])) == 1
    gone = excluded(everyone_right, [(g, k) for g in range(2) for k in range(4)])
    gradients = learner.gradients(params, gone, ("mode", "inner", "kl"))
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradients))


def test_tokens_of_an_excluded_rollout_move_nothing(learner, params, groups):
    changed = replace_rollout(
        groups,
        1,
        2,
        status=Status.INFRASTRUCTURE_FAILURE,
        tokens=groups[1].rollouts[2].trajectory.tokens[::-1].copy(),
        sampled_logprobs=np.full(len(groups[1].rollouts[2].trajectory.tokens), np.nan, np.float32),
    )
    first, metrics = learner.step(init_state(params, OPTIMIZER, 0), groups, cold_start=False)
    second, _ = learner.step(init_state(params, OPTIMIZER, 0), changed, cold_start=False)
    assert fingerprint(first.params) == fingerprint(second.params) and np.isfinite(metrics["sampler/logp_diff/max"])


def test_cold_start_trains_on_the_task_alone_with_one_token_mean(learner, params, oracle_gradient):
    groups = make_groups(2, forced=lambda index: index != 1)  # one free group, so that the two means differ
    options = {"cold_start": True}
    expected, expected_gradient = oracle_gradient(params, groups, [1, 1, BETA], **options)
    state, metrics = learner.step(
        init_state(params, OPTIMIZER, 0), groups, support_coefficient=LAMBDA, mode_candidates=mode_candidates, **options
    )
    assert metrics["loss/total"] == pytest.approx(float(expected), rel=1e-5)
    norm = np.sqrt(sum(np.sum(np.square(g)) for g in jax.tree.leaves(expected_gradient)))
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
    assert "loss/support" not in metrics and "mode/p_bar/multi" not in metrics


def test_a_non_finite_step_is_skipped_counted_and_moves_on(learner, params, groups):
    state = init_state(params, OPTIMIZER, 0)
    state, _ = learner.step(state, groups, cold_start=False)
    broken = dict(state.params)
    broken["model.norm.weight"] = broken["model.norm.weight"].at[0].set(jnp.nan)
    whole, moments = jax.tree.map(jnp.copy, state.params), fingerprint(state.opt_state)
    state = state._replace(params=broken)
    before = fingerprint(state.params)
    for skips in (1, 2):
        state, metrics = learner.step(state, groups, cold_start=False)
        assert fingerprint(state.params) == before and fingerprint(state.opt_state) == moments
        assert metrics["nonfinite_skips"] == skips and not np.isfinite(metrics["loss/total"])
        assert (int(state.step), int(state.data_batch_index)) == (1 + skips, 1 + skips)
    # A finite step ends the row of skips; the sum stays.
    state, metrics = learner.step(state._replace(params=whole), groups, cold_start=False)
    assert state.nonfinite_skips.tolist() == [0, 2] and metrics["nonfinite_skips"] == 2
    assert fingerprint(state.opt_state) != moments


def test_the_third_non_finite_step_in_a_row_is_divergence(learner, params, groups):
    state = init_state({**params, "model.norm.weight": params["model.norm.weight"] * jnp.nan}, OPTIMIZER, 0)
    for _ in range(2):
        state, _ = learner.step(state, groups, cold_start=False)
        check_not_diverged(state)
    state, _ = learner.step(state, groups, cold_start=False)
    with pytest.raises(TrainingDivergedError, match="3 steps in a row, the last of them step 3: look"):
        check_not_diverged(state)


def test_a_batch_lost_to_infrastructure_leaves_the_router_as_it_is(learner, params):
    lost = excluded(make_groups(4), [(g, k) for g in range(6) for k in range(4)])
    state = init_state(params, OPTIMIZER, 0)
    before = fingerprint((state.params, state.opt_state))
    state, metrics = learner.step(
        state, lost, cold_start=False, support_coefficient=LAMBDA, mode_candidates=mode_candidates
    )
    assert fingerprint((state.params, state.opt_state)) == before
    assert (int(state.step), int(state.data_batch_index)) == (1, 1)
    assert metrics["rows"] == 0 and metrics["N_KL"] == 0 and "grad_norm" not in metrics
    assert metrics["mode/p_bar/agentic"] > 0  # measured on queries, which are not lost


def test_the_reference_survives_ten_steps_bit_for_bit(params, groups, learner):
    before = fingerprint(learner.reference_params)
    state = init_state(params, OPTIMIZER, 0)
    for _ in range(10):
        state, _ = learner.step(state, groups, cold_start=False)
    assert fingerprint(learner.reference_params) == before
    assert fingerprint(params) != fingerprint(state.params)  # and `params` were copied, not given away


def test_the_kl_coefficient_acts_only_away_from_the_reference(params, reference_params, groups, learner):
    away, there = (learner.gradients(p, groups, ("kl",))["kl"] for p in (params, reference_params))
    zero = jax.tree.map(jnp.zeros_like, there)
    assert relative_difference(away, jax.tree.map(jnp.subtract, away, there)) < 1e-5  # two programs round alike to 1e-7
    assert relative_difference(away, zero) == 1
    with_kl, _ = learner.step(init_state(params, OPTIMIZER, 0), groups, cold_start=False)
    free = Learner(MODEL, OPTIMIZER, reference_params, dataclasses.replace(CONFIG, loss=LossConfig(kl_coefficient=0.0)))
    without, metrics = free.step(init_state(params, OPTIMIZER, 0), groups, cold_start=False)
    assert relative_difference(with_kl.opt_state[1].mu, without.opt_state[1].mu) > 1e-3
    assert "loss/kl" not in metrics and "policy/kl_max" not in metrics and metrics["N_KL"] > 0


def test_ragged_lengths_compile_nothing_after_warm_up(reference_params, params):
    learner = Learner(MODEL, OPTIMIZER, reference_params, CONFIG)
    state = init_state(params, OPTIMIZER, 0)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, duration, **_: compiled.append(name) if "backend_compile" in name else None
    )
    learner.warm_up(state)
    assert compiled
    options = {"support_coefficient": LAMBDA, "mode_candidates": mode_candidates}
    state, _ = learner.step(state, make_groups(6), cold_start=False, **options)  # small host-side shapes, the update
    compiled.clear()
    shapes = set()
    for seed, bounds in ((7, (18, 30)), (8, (30, 48)), (9, (18, 48))):
        groups = make_groups(seed, lengths=bounds)
        shapes |= {max(len(s.trajectory.tokens) for s in group.rollouts) > 40 for group in groups}
        state, metrics = learner.step(state, groups, cold_start=seed == 7, **options)
    assert shapes == {False, True} and metrics["micro_batches"] == 6
    assert compiled == []


def test_plain_grpo_takes_one_advantage_and_one_token_mean(reference_params, params, groups, oracle_gradient):
    config = dataclasses.replace(
        CONFIG, advantage_function="grpo", loss=LossConfig(kl_coefficient=BETA, reduction="global")
    )
    learner = Learner(MODEL, OPTIMIZER, reference_params, config)
    expected, _ = oracle_gradient(params, groups, [1, 1, BETA], advantage=grpo)
    _, metrics = learner.step(init_state(params, OPTIMIZER, 0), groups, cold_start=False)
    assert metrics["loss/total"] == pytest.approx(float(expected), rel=1e-5)


def negated(batch, config):
    """An advantage function from outside the core."""
    return jax.tree.map(jnp.negative, comet(batch, config))


def wrong_shape(batch, config):
    return jax.tree.map(lambda a: a[0], comet(batch, config))


def test_an_advantage_function_of_ones_own(reference_params, params, groups):
    make = lambda function: Learner(  # noqa: E731
        MODEL, OPTIMIZER, reference_params, dataclasses.replace(CONFIG, advantage_function=function)
    )
    with pytest.raises(ConfigError, match=r"returned grpo of shape \(4,\); it must be \[G, K\] = \(6, 4\)"):
        make(wrong_shape).step(init_state(params, OPTIMIZER, 0), groups, cold_start=False)
    _, _, rows = make(negated)._rows(groups, cold_start=False)
    _, _, plain = make("comet")._rows(groups, cold_start=False)
    assert [row.advantage.grpo for row in rows] == [-row.advantage.grpo for row in plain]


def test_an_advantage_function_may_write_into_its_batch(learner, reference_params, params, groups):
    def careless(batch, config):
        advantages = jax.tree.map(np.array, comet(batch, config))
        batch.rewards[:], batch.mode[:], batch.retained[:], batch.forced[:] = 0, 0, False, True
        return advantages

    writing = Learner(MODEL, OPTIMIZER, reference_params, dataclasses.replace(CONFIG, advantage_function=careless))
    ours, theirs = (
        made.step(init_state(params, OPTIMIZER, 0), groups, cold_start=False)[1] for made in (writing, learner)
    )
    assert {name for name in ours if ours[name] != theirs[name]} <= {"perf/reference_s", "perf/update_s"}


@pytest.mark.full
def test_the_samplers_log_probs_can_be_the_old_policy(reference_params, params):
    config = dataclasses.replace(
        CONFIG, batch=dataclasses.replace(BATCH, old_policy="sampler"), loss=LossConfig(kl_coefficient=0.0)
    )
    learner = Learner(MODEL, OPTIMIZER, reference_params, config)
    groups = make_groups(5)
    arrays = oracle.dense_arrays(groups, efficiency_weight=ALPHA)
    logprobs = np.asarray(oracle.dense_logprobs(params, MODEL, arrays["tokens"], arrays["lengths"], 0.8))
    rng = np.random.default_rng(0)
    log_ratio = rng.uniform(-0.5, 1.5, logprobs.shape).astype(np.float32)
    for row in range(24):
        g, k = divmod(row, 4)
        n = arrays["lengths"][row]
        groups = replace_rollout(groups, g, k, sampled_logprobs=(logprobs - log_ratio)[row, :n])
    _, metrics = learner.step(init_state(params, OPTIMIZER, 0), groups, cold_start=False)
    ratio = np.exp(log_ratio)
    for name in ("mode", "inner"):
        weighted = arrays[name]  # A of each token over the count of its segment
        loss = -np.minimum(ratio * weighted, np.clip(ratio, 0.8, 1.2) * weighted)
        loss = np.where(weighted < 0, np.minimum(loss, -3 * weighted), loss)
        assert metrics[f"loss/pg_{name}"] == pytest.approx(loss.sum(), rel=1e-4)
    held = arrays["kl"] > 0
    assert metrics["policy/ratio/max"] == pytest.approx(ratio[held].max(), rel=1e-4)
    assert metrics["policy/clip_frac/dual"] > 0 and metrics["policy/clip_frac/high"] > 0


def test_a_state_beside_bound_parameters_is_bound_from_its_start(params):
    bound = jax.device_put(params, jax.devices()[0])
    for leaf in jax.tree.leaves(init_state(bound, OPTIMIZER, 0)):
        assert leaf.committed and leaf.devices() == {jax.devices()[0]}
