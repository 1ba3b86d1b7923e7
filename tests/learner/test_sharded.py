"""A step on a mesh of eight devices is the step on one: loss, gradients and moments."""

import dataclasses

import jax
import numpy as np
import pytest

from rw.core.advantages import AdvantageConfig
from rw.core.losses import LossConfig
from rw.errors import ConfigError
from rw.learner.batch import BatchConfig
from rw.learner.checkpoint import Checkpoints, RunIdentity
from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.learner.state import fingerprint, init_state
from rw.learner.step import Learner, LearnerConfig
from rw.sharding import make_mesh

from .conftest import MODEL, make_groups, mode_candidates, relative_difference

CONFIG = LearnerConfig(
    batch=BatchConfig(micro_batch=4, length_buckets=(64,), policy_buckets=(64,), logprob_chunk=16),
    loss=LossConfig(kl_coefficient=0.05),
    advantage=AdvantageConfig(0.3),
    deterministic=True,
)
OPTIMIZER = Optimizer(OptimizerConfig(learning_rate=1e-3))


@pytest.fixture(scope="module")
def mesh():
    return make_mesh((2, 2, 2))


def both_steps(mesh, params, reference_params, groups, **options):
    """(learner on the mesh, its state and metrics, those of one device) after the same step."""
    options = {"cold_start": False, **options}
    single = Learner(MODEL, OPTIMIZER, reference_params, CONFIG)
    state, metrics = single.step(init_state(params, OPTIMIZER, 0), groups, **options)
    sharded = Learner(MODEL, OPTIMIZER, reference_params, CONFIG, mesh)
    split = init_state(sharded.placement.params(params), OPTIMIZER, 0)
    query = split.opt_state[1].mu["model.layers.self_attn.q_proj.weight"]
    assert query.sharding.spec == jax.P(None, "fsdp", "tensor")  # moments lie as the parameters do
    split, split_metrics = sharded.step(split, groups, **options)
    assert split.params["model.layers.self_attn.q_proj.weight"].sharding == query.sharding
    return sharded, split, split_metrics, state, metrics


def assert_same_step(split, split_metrics, state, metrics):
    for name in ("loss/total", "grad_norm", "update_norm", "policy/kl_max"):
        assert split_metrics[name] == pytest.approx(metrics[name], rel=1e-5), name
    assert relative_difference(state.opt_state[1].mu, split.opt_state[1].mu) < 1e-5
    assert relative_difference(state.opt_state[1].nu, split.opt_state[1].nu) < 1e-5


def test_a_sharded_step_equals_one_on_a_single_device(mesh, params, reference_params):
    _, *results = both_steps(mesh, params, reference_params, make_groups(0, count=3))
    assert_same_step(*results)


@pytest.mark.full
def test_with_the_support_term_and_from_a_checkpoint_too(mesh, params, reference_params, tmp_path):
    groups, options = make_groups(0, count=4), {"support_coefficient": 0.4, "mode_candidates": mode_candidates}
    sharded, split, *results = both_steps(mesh, params, reference_params, groups, **options)
    assert_same_step(split, *results)
    assert results[0]["loss/support"] == pytest.approx(results[2]["loss/support"], rel=1e-5)
    with Checkpoints(tmp_path, RunIdentity({}, "t", "r", 0)) as checkpoints:
        checkpoints.save(split)
        restored = checkpoints.restore(split)
    assert fingerprint(restored) == fingerprint(split)
    first, _ = sharded.step(restored, groups, cold_start=False, **options)
    second, metrics = sharded.step(split, groups, cold_start=False, **options)
    assert int(first.step) == 2 and np.isfinite(metrics["loss/total"])
    assert fingerprint(first) == fingerprint(second)


def test_rows_that_do_not_divide_over_the_mesh_are_refused(mesh, reference_params):
    config = dataclasses.replace(CONFIG, batch=dataclasses.replace(CONFIG.batch, micro_batch=6))
    with pytest.raises(ConfigError, match="batch.micro_batch=6 does not divide over data·fsdp = 4 devices"):
        Learner(MODEL, OPTIMIZER, reference_params, config, mesh)
