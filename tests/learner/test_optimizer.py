"""AdamW with a global clip, and its two schedules."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rw.errors import ConfigError
from rw.learner.optimizer import Optimizer, OptimizerConfig, applied_updates


def run(config, gradients):
    optimizer = Optimizer(config)
    params = {"w": jnp.array([1.0, -2.0]), "norm": jnp.array([3.0])}
    state, rates = optimizer.init(params), []
    for gradient in gradients:
        rates.append(float(optimizer.learning_rate(state)))
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params, state, rates


def test_the_papers_values_are_the_defaults():
    config = OptimizerConfig()
    assert (config.learning_rate, config.b1, config.b2, config.epsilon) == (1e-6, 0.9, 0.999, 1e-8)
    assert (config.weight_decay, config.clip_norm, config.schedule) == (0.01, 1.0, "constant")


def test_two_steps_by_hand():
    # Norm 5 is clipped to 1: g = (0.6, 0, 0.8). Then a gradient of norm 0.5, which stays.
    first = {"w": jnp.array([3.0, 0.0]), "norm": jnp.array([4.0])}
    gradients = [first, {"w": jnp.array([0.3, 0.4]), "norm": jnp.zeros(1)}]
    params, state, rates = run(OptimizerConfig(learning_rate=0.1), gradients)
    p, g1, g2 = np.array([1.0, -2.0, 3.0]), np.array([0.6, 0.0, 0.8]), np.array([0.3, 0.4, 0.0])
    p = p - 0.1 * (g1 / (np.abs(g1) + 1e-8) + 0.01 * p)
    m, v = (0.9 * 0.1 * g1 + 0.1 * g2) / (1 - 0.9**2), (0.999 * 0.001 * g1**2 + 0.001 * g2**2) / (1 - 0.999**2)
    p = p - 0.1 * (m / (np.sqrt(v) + 1e-8) + 0.01 * p)
    np.testing.assert_allclose([*params["w"], *params["norm"]], p, rtol=1e-5)
    assert rates == pytest.approx([0.1, 0.1]) and int(applied_updates(state)) == 2


def test_cosine_falls_from_the_peak_to_its_share():
    config = OptimizerConfig(learning_rate=1.0, schedule="cosine", total_steps=4, final_ratio=0.2)
    zero = {"w": jnp.zeros(2), "norm": jnp.zeros(1)}
    _, _, rates = run(config, [zero] * 6)
    expected = [0.2 + 0.8 * 0.5 * (1 + np.cos(np.pi * min(t, 4) / 4)) for t in range(6)]
    assert rates == pytest.approx(expected)


def test_cosine_can_rise_first():
    config = OptimizerConfig(learning_rate=1.0, schedule="cosine", total_steps=4, warmup_steps=2)
    zero = {"w": jnp.zeros(2), "norm": jnp.zeros(1)}
    assert run(config, [zero] * 4)[2] == pytest.approx([0, 0.5, 1, 0.5])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schedule": "linear"}, "optimizer.schedule is 'linear'; legal values: constant, cosine"),
        ({"schedule": "cosine"}, "total_steps 0"),
        ({"schedule": "cosine", "total_steps": 3, "warmup_steps": 3}, "warmup_steps is 3 and total_steps 3"),
    ],
)
def test_illegal_schedules_are_named(fields, message):
    with pytest.raises(ConfigError, match=message):
        Optimizer(OptimizerConfig(**fields))


@pytest.mark.parametrize(
    ("field", "value"),
    [("learning_rate", -1e-6), ("learning_rate", float("inf")), ("b1", 1.0), ("b2", 1.5), ("epsilon", 0.0),
     ("weight_decay", -0.1), ("clip_norm", 0.0)],
)  # fmt: skip
def test_numbers_that_no_optimiser_can_have_are_named(field, value):
    with pytest.raises(ConfigError, match=f"optimizer.{field}={value!r} must be "):
        OptimizerConfig(**{field: value})
