"""The optimiser: AdamW behind a global-norm clip, as the paper trains. Knows no model and no data."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rw.errors import ConfigError

SCHEDULES = ("constant", "cosine")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW as in RouteWeaver, Appendix C.3: constant rate, decay on every parameter, one global clip, no warm-up.

    `schedule="cosine"` falls from `learning_rate` to `final_ratio` of it over `total_steps` applied updates (supervised
    warm starts); `warmup_steps` of them rise linearly from zero first.
    """

    learning_rate: float = 1e-6
    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    schedule: str = "constant"
    total_steps: int = 0
    warmup_steps: int = 0
    final_ratio: float = 0.0

    def __post_init__(self):
        ranges = {
            "learning_rate": (0 <= self.learning_rate < math.inf, "a number of at least 0"),
            "b1": (0 <= self.b1 < 1, "in [0, 1)"),
            "b2": (0 <= self.b2 < 1, "in [0, 1)"),
            "epsilon": (0 < self.epsilon < math.inf, "a number above 0"),
            "weight_decay": (0 <= self.weight_decay < math.inf, "a number of at least 0"),
            "clip_norm": (self.clip_norm > 0, "above 0"),
        }
        for name, (fits, legal) in ranges.items():
            if not fits:
                raise ConfigError(f"optimizer.{name}={getattr(self, name)!r} must be {legal}")


class Optimizer:
    """`init`, `update` and the learning rate of a state. The state's moments are in the parameters' dtype."""

    def __init__(self, config: OptimizerConfig):
        self.config = config
        self._rate = _rate(config)
        self._transform = optax.chain(
            optax.clip_by_global_norm(config.clip_norm),
            optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.epsilon),
            optax.add_decayed_weights(config.weight_decay),
            optax.scale_by_learning_rate(self._rate),
        )

    def init(self, params: Any) -> Any:
        """Zero moments and counts. Raises ConfigError on parameters in which a small update would be lost."""
        for dtype in {leaf.dtype for leaf in jax.tree.leaves(params)}:
            if jnp.finfo(dtype).bits < 32:
                raise ConfigError(
                    f"model.param_dtype={dtype.name}: a weight near 1 would not move by updates below "
                    f"{jnp.finfo(dtype).eps / 4:.0e}; train in 'float32', with model.compute_dtype={dtype.name!r}"
                )
        return self._transform.init(params)

    @jax.named_scope("optimizer")
    def update(self, grads: Any, opt_state: Any, params: Any) -> tuple[Any, Any]:
        """(updates to add to the parameters, new state)."""
        return self._transform.update(grads, opt_state, params)

    def learning_rate(self, opt_state: Any) -> jax.Array:
        """f32[]: the rate of the next update applied to this state."""
        return jnp.asarray(self._rate(applied_updates(opt_state)), jnp.float32)


def applied_updates(opt_state: Any) -> jax.Array:
    """i32[]: updates applied so far. Skipped steps do not count, so bias correction and schedule ignore them."""
    return opt_state[1].count


def _rate(config: OptimizerConfig) -> optax.Schedule:
    if config.schedule not in SCHEDULES:
        raise ConfigError(f"optimizer.schedule is {config.schedule!r}; legal values: {', '.join(SCHEDULES)}")
    if config.schedule == "constant":
        return optax.constant_schedule(config.learning_rate)
    if not 0 <= config.warmup_steps < config.total_steps:
        raise ConfigError(
            f"optimizer.warmup_steps is {config.warmup_steps} and total_steps {config.total_steps}; a cosine schedule "
            "needs 0 <= warmup_steps < total_steps"
        )
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0 if config.warmup_steps else config.learning_rate,
        peak_value=config.learning_rate,
        warmup_steps=config.warmup_steps,
        decay_steps=config.total_steps,
        end_value=config.learning_rate * config.final_ratio,
    )
