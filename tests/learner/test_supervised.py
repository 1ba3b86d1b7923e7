"""Warm-start steps: cross-entropy on what the scripted router wrote, and on nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rw.errors import ConfigError, TrainingDivergedError
from rw.learner.batch import BatchConfig
from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.learner.state import fingerprint, init_state
from rw.learner.supervised import SupervisedConfig, SupervisedLearner
from rw.types import Mode, Segment

from . import oracle
from .conftest import MODEL, make_groups, make_trajectory, relative_difference

BATCH = BatchConfig(micro_batch=4, length_buckets=(64,), policy_buckets=(64,), logprob_chunk=16)
OPTIMIZER = Optimizer(OptimizerConfig(learning_rate=3e-3, schedule="cosine", total_steps=40, weight_decay=0.0))
WEIGHT = 2.5


@pytest.fixture(scope="module")
def trajectories():
    return [scored.trajectory for group in make_groups(0, count=2) for scored in group.rollouts]  # one group is forced


@pytest.fixture(scope="module")
def learner(params):
    return SupervisedLearner(
        MODEL, OPTIMIZER, params, SupervisedConfig(batch=BATCH, mode_weight=WEIGHT, deterministic=True)
    )


def test_a_step_descends_the_weighted_mean_over_policy_tokens(learner, params, trajectories):
    arrays = oracle.dense_arrays(make_groups(0, count=2))
    width = arrays["tokens"].shape[1]
    segments = np.stack([np.pad(t.segments, (0, width - len(t.segments))) for t in trajectories])
    weights = np.where(segments == Segment.MODE, WEIGHT, 0.0) + (segments == Segment.INNER)

    def loss(p):
        logprobs = oracle.dense_logprobs(p, MODEL, arrays["tokens"], arrays["lengths"], 1.0)
        return -(weights * logprobs).sum() / weights.sum(), logprobs

    (expected, logprobs), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    state, metrics = learner.step(init_state(params, OPTIMIZER, 0), trajectories)
    assert metrics["loss/total"] == pytest.approx(float(expected), rel=1e-5)
    assert metrics["loss/mode"] == pytest.approx(-float(logprobs[segments == Segment.MODE].mean()), rel=1e-5)
    assert metrics["loss/inner"] == pytest.approx(-float(logprobs[segments == Segment.INNER].mean()), rel=1e-5)
    assert metrics["N_mode"] == 12 and metrics["N_inner"] == np.sum(segments == Segment.INNER)
    norm = np.sqrt(sum(np.sum(np.square(g)) for g in jax.tree.leaves(gradient)))
    clipped = jax.tree.map(lambda g: 0.1 * g / max(norm, 1), gradient)
    assert relative_difference(clipped, state.opt_state[1].mu) < 1e-5
    assert (int(state.step), int(state.data_batch_index)) == (1, 1)


def test_repeated_steps_learn_the_trajectories(learner, params, trajectories):
    state, losses = init_state(params, OPTIMIZER, 0), []
    for _ in range(30):
        state, metrics = learner.step(state, trajectories)
        losses.append(metrics["loss/total"])
    assert losses[-1] < 0.7 * losses[0]
    assert metrics["lr"] < 1e-3


def test_what_was_not_sampled_teaches_nothing(learner, params):
    forced = make_trajectory(np.random.default_rng(0), "q", 0, Mode.MULTI, forced=True)
    _, metrics = learner.step(init_state(params, OPTIMIZER, 0), [forced])
    assert "loss/mode" not in metrics and metrics["N_mode"] == 0 and metrics["N_inner"] > 0
    silent = make_trajectory(np.random.default_rng(0), "q", 0, Mode.MULTI)
    silent.segments[:] = Segment.PROMPT
    state = init_state(params, OPTIMIZER, 0)
    before = fingerprint((state.params, state.opt_state))
    state, metrics = learner.step(state, [silent])
    assert fingerprint((state.params, state.opt_state)) == before and int(state.step) == 1
    assert metrics["N_inner"] == 0


def test_non_finite_steps_are_skipped_and_end_the_run(learner, params, trajectories):
    broken = {**params, "model.norm.weight": params["model.norm.weight"] * jnp.nan}
    state = init_state(broken, OPTIMIZER, 0)
    before = fingerprint(state.opt_state)
    for _ in range(2):
        state, _ = learner.step(state, trajectories)
    assert fingerprint(state.opt_state) == before and state.nonfinite_skips.tolist() == [2, 2]
    with pytest.raises(TrainingDivergedError):
        learner.step(state, trajectories)


def test_illegal_values_are_named():
    with pytest.raises(ConfigError, match="mode_weight -1 must be at least 0"):
        SupervisedConfig(mode_weight=-1)
    with pytest.raises(ConfigError, match="temperature 0 must be above 0"):
        SupervisedConfig(temperature=0)
