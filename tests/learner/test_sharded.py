"""A step on a mesh of eight devices is the step on one: losses, gradients, moments and updates on recorded groups."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest

from rw.errors import ConfigError
from rw.learner.checkpoint import Checkpoints, RunIdentity
from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.learner.programs import make_update
from rw.learner.state import fingerprint, init_state
from rw.learner.step import TERMS, Learner
from rw.model.qwen3 import init_params
from rw.sharding import make_mesh, param_shardings

from .conftest import relative_difference
from .recorded import LEARNER, MODEL, SUPPORT, recorded_groups, recorded_mode_candidates

OPTIMIZER = Optimizer(OptimizerConfig(learning_rate=1e-3))
MESHES = ((1, 1, 1), (8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 4, 2))
WITH_SUPPORT = {"mode_candidates": recorded_mode_candidates, "support_coefficient": SUPPORT}


@pytest.fixture(scope="module")
def recorded_params():
    return init_params(jax.random.key(0), MODEL)


@pytest.fixture(scope="module")
def recorded_reference(recorded_params):
    """Another router, so that the KL term has a gradient."""
    return jax.tree.map(lambda p, q: p + 0.05 * q, recorded_params, init_params(jax.random.key(1), MODEL))


def mesh_of(shape):
    return make_mesh(shape, devices=jax.devices()[: math.prod(shape)], n_kv_heads=MODEL.n_kv_heads)


def one_step(mesh, params, reference, terms):
    """(gradient of each term, state, metrics, parameters before) of one step, with the support term if it is one."""
    learner = Learner(MODEL, OPTIMIZER, reference, LEARNER, mesh)
    before = learner.placement.params(params)
    options = WITH_SUPPORT if "support" in terms else {}
    gradients = learner.gradients(
        before, recorded_groups(), terms, mode_candidates=options.get("mode_candidates"), cold_start=False
    )
    given = init_state(before, OPTIMIZER, 0)
    state, metrics = learner.step(given, recorded_groups(), cold_start=False, **options)
    assert all(x.is_deleted() for x in jax.tree.leaves((given.params, given.opt_state)))  # given away
    assert not any(x.is_deleted() for x in jax.tree.leaves((before, learner.reference_params)))
    return gradients, state, metrics, before


@pytest.fixture(scope="module")
def on_one_device(recorded_params, recorded_reference):
    """The same by terms, each set of terms computed once."""
    return functools.cache(lambda terms: one_step(None, recorded_params, recorded_reference, terms))


def update(state, before):
    return jax.tree.map(lambda new, old: np.float64(new) - np.float64(old), state.params, before)


@pytest.mark.parametrize(
    "shape, terms",
    [((2, 2, 2), TERMS[:3]), *(pytest.param(shape, TERMS, marks=pytest.mark.full) for shape in MESHES)],
    ids=lambda value: "+".join(value) if value[0] in TERMS else "x".join(map(str, value)),
)
def test_a_step_on_a_mesh_is_the_step_on_one_device(shape, terms, on_one_device, recorded_params, recorded_reference):
    mesh = mesh_of(shape)
    expected_gradients, expected, expected_metrics, before = on_one_device(terms)
    gradients, state, metrics, placed = one_step(mesh, recorded_params, recorded_reference, terms)
    for term in terms:
        assert any(np.any(x) for x in expected_gradients[term].values())
        assert relative_difference(expected_gradients[term], gradients[term]) < 1e-5, term
    names = ("loss/total", "loss/pg_mode", "loss/pg_inner", "loss/kl", "grad_norm", "policy/kl_max")
    for name in (*names, *(["loss/support"] if "support" in terms else [])):
        assert metrics[name] == pytest.approx(expected_metrics[name], rel=1e-5, abs=1e-7), name
    assert metrics["N_mode"] == expected_metrics["N_mode"] and metrics["N_inner"] == expected_metrics["N_inner"]
    assert relative_difference(expected.opt_state[1].mu, state.opt_state[1].mu) < 1e-5
    assert relative_difference(expected.opt_state[1].nu, state.opt_state[1].nu) < 1e-5
    moved = update(expected, before)
    assert max(np.abs(x).max() for x in moved.values()) > 9e-4  # a first step of Adam moves a weight by the rate
    assert relative_difference(moved, update(state, placed)) < 1e-3
    for tree in (state.params, state.opt_state[1].mu, state.opt_state[1].nu, *gradients.values()):
        for name, sharding in param_shardings(mesh, recorded_params).items():
            assert tree[name].sharding.is_equivalent_to(sharding, tree[name].ndim), name


def test_an_update_writes_over_the_state_that_it_is_given(recorded_params):
    """Its buffers become the new state's; a device is given its parts of state and gradient, and no more."""
    mesh = mesh_of((2, 2, 2))
    params = jax.device_put(recorded_params, param_shardings(mesh, recorded_params))
    state = init_state(params, OPTIMIZER, 0)
    update = make_update(OPTIMIZER)
    memory = update.lower(state, params, np.float32(0)).compile().memory_analysis()
    on_each = sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(state))
    gradient = sum(math.prod(x.sharding.shard_shape(x.shape)) * 4 for x in jax.tree.leaves(params))
    assert memory.alias_size_in_bytes >= on_each
    assert memory.argument_size_in_bytes == pytest.approx(on_each + gradient, rel=0.01)
    new, _ = update(state, params, np.float32(0))
    assert all(x.is_deleted() for x in jax.tree.leaves((state.params, state.opt_state)))
    for old, x in zip(jax.tree.leaves((params, params)), jax.tree.leaves(new.opt_state[1][1:]), strict=True):
        assert x.sharding.is_equivalent_to(old.sharding, x.ndim)


@pytest.mark.full
def test_three_steps_and_a_checkpoint_of_a_sharded_state(recorded_params, recorded_reference, tmp_path):
    """Also continues from the checkpoint, bit for bit."""
    learners = [Learner(MODEL, OPTIMIZER, recorded_reference, LEARNER, mesh) for mesh in (None, mesh_of((2, 2, 2)))]
    states = [init_state(learner.placement.params(recorded_params), OPTIMIZER, 0) for learner in learners]
    options = {"cold_start": False, **WITH_SUPPORT}
    for step in range(3):
        results = [
            learner.step(state, recorded_groups(step), **options)
            for learner, state in zip(learners, states, strict=True)
        ]
        states, (expected, metrics) = [state for state, _ in results], [metrics for _, metrics in results]
        assert metrics["loss/total"] == pytest.approx(expected["loss/total"], rel=1e-4, abs=1e-6)
    assert relative_difference(states[0].opt_state[1].mu, states[1].opt_state[1].mu) < 1e-3
    with Checkpoints(tmp_path, RunIdentity({}, "t", "r", 0)) as checkpoints:
        checkpoints.save(states[1])
        restored = checkpoints.restore(states[1])
    assert fingerprint(restored) == fingerprint(states[1])
    first, _ = learners[1].step(restored, recorded_groups(), **options)
    second, _ = learners[1].step(states[1], recorded_groups(), **options)
    assert int(first.step) == 4 and fingerprint(first) == fingerprint(second)


def test_rows_that_do_not_divide_over_the_mesh_are_refused(recorded_reference):
    config = dataclasses.replace(LEARNER, batch=dataclasses.replace(LEARNER.batch, micro_batch=6))
    with pytest.raises(
        ConfigError, match=r"micro_batch=6 .* data·fsdp = 4 .* multiple of 4, or these one of \[1, 2, 3\]"
    ):
        Learner(MODEL, OPTIMIZER, recorded_reference, config, mesh_of((2, 2, 2)))
