"""Weights and moments are float32 whatever the model computes in: small updates add up."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rw.core.losses import LossConfig
from rw.errors import ConfigError
from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.learner.programs import make_update
from rw.learner.state import init_state
from rw.learner.step import Learner
from rw.model.qwen3 import FINAL_NORM, init_params

from .recorded import LEARNER, MODEL, recorded_groups

OPTIMIZER = Optimizer(OptimizerConfig(learning_rate=1e-6, weight_decay=0.0))
BFLOAT16 = dataclasses.replace(MODEL, compute_dtype="bfloat16")


def test_an_update_of_a_millionth_survives_a_hundred_steps():
    """Weights near 1 move by 1e-4 in float32; in bfloat16 they would not move at all."""
    params = {FINAL_NORM: jnp.linspace(0.9, 1.1, 16)}
    update, state = make_update(OPTIMIZER), init_state(params, OPTIMIZER, 0)
    narrow = params[FINAL_NORM].astype(jnp.bfloat16)
    for _ in range(100):
        state, _ = update(state, {FINAL_NORM: jnp.full(16, 0.01)}, jnp.float32(0))
        narrow = (narrow - 1e-6).astype(jnp.bfloat16)
    np.testing.assert_allclose(params[FINAL_NORM] - state.params[FINAL_NORM], 1e-4, rtol=0.05)
    np.testing.assert_array_equal(narrow, params[FINAL_NORM].astype(jnp.bfloat16))


@pytest.mark.full
def test_a_step_that_computes_in_bfloat16_moves_float32_weights():
    params = init_params(jax.random.key(0), BFLOAT16)
    learner = Learner(BFLOAT16, OPTIMIZER, params, dataclasses.replace(LEARNER, loss=LossConfig(kl_coefficient=0.0)))
    state, metrics = learner.step(init_state(params, OPTIMIZER, 0), recorded_groups()[:2], cold_start=False)
    floats = [x for x in jax.tree.leaves((state.params, state.opt_state)) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert len(floats) == 3 * len(params) and {x.dtype for x in floats} == {jnp.dtype("float32")}
    assert np.isfinite(metrics["loss/total"]) and metrics["grad_norm"] > 0
    moved = [np.abs(np.float64(state.params[name]) - np.float64(x)) for name, x in params.items()]
    touched = np.concatenate([x[x > 0] for x in moved])
    assert touched.size > 0.5 * sum(x.size for x in moved)
    assert 0.9e-6 < np.median(touched) < 1.1e-6


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_parameters_too_narrow_for_small_updates_are_refused(dtype):
    params = jax.eval_shape(lambda: init_params(jax.random.key(0), dataclasses.replace(MODEL, param_dtype=dtype)))
    with pytest.raises(ConfigError, match=f"param_dtype={dtype}: .* 'float32', with model.compute_dtype='{dtype}'"):
        OPTIMIZER.init(params)
