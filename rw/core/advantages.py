"""Group-relative advantages of COMET-GRPO (Eqs. 6-7, 14-16) and the advantage of each token (Eq. 18).

An advantage function takes a GroupBatch and an AdvantageConfig and returns Advantages; `ADVANTAGES` names ours, and
`resolve` finds anybody's. It sees rewards, modes and V, never tokens: a long answer has one vote, like a short one.

Axes: G groups, K rollouts per query, C reward components (task, efficiency), T tokens. Statistics stay within a group.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable

import jax.numpy as jnp

from rw.core.masked import divide, fill, masked_mean, masked_sum
from rw.errors import ConfigError
from rw.imported import imported_function
from rw.types import Advantages, GroupBatch, Segment


@dataclasses.dataclass(frozen=True)
class AdvantageConfig:
    """α and the two stabilisers of σ. In cold start only the task component counts, whatever α is."""

    efficiency_weight: float  # α, fixed within a run
    cold_start: bool = False
    std_epsilon: float = 1e-6  # ε, added to σ
    std_gate: float = 1e-4  # a component with σ below it contributes nothing

    def __post_init__(self):
        if not 0 <= self.efficiency_weight <= 1:
            raise ConfigError(f"efficiency_weight is {self.efficiency_weight}; it must lie in [0, 1]")
        if not self.std_epsilon > 0 or not self.std_gate >= 0:
            raise ConfigError(f"std_epsilon {self.std_epsilon} must be above 0, std_gate {self.std_gate} at least 0")


def group_peers(batch: GroupBatch):
    """peers[g, i, j], bool[G, K, K]: rollouts i and j are both in V."""
    return batch.retained[:, :, None] & batch.retained[:, None, :]


def mode_peers(batch: GroupBatch):
    """peers[g, i, j], bool[G, K, K]: rollouts i and j are both in V_m. Having declared no mode is a mode of its own.

    The paper does not say where a rollout belongs that broke the grammar before it declared a mode. All of these have
    reward -1, so as one mode they get A_inner = 0 and A_mode = A_GRPO, on the tokens of the turn that failed.
    """
    return group_peers(batch) & (batch.mode[:, :, None] == batch.mode[:, None, :])


def from_smallest(rewards, mask):
    """Rewards less the smallest of their group, f32[G, K, C], 0 outside `mask`: a shift that no statistic notices.

    Scores near 0.9 that differ by 1e-3 would keep four digits through the rounding of a float32 mean; near 0, seven.
    The smallest is a value, not a sum, so however a compiler fuses this, the same number is taken off everywhere.
    """
    smallest = jnp.min(fill(rewards, mask, jnp.inf), axis=1, keepdims=True, initial=jnp.inf)  # of no rollouts, too
    return fill(rewards - smallest, mask)


def peer_mean(rewards, peers):
    """μ_c or μ_{m,c} for every rollout, f32[G, K, C], by the choice of `peers`. RouteWeaver, Eq. 14.

    Both means come from this one reduction, so where the peers are equal they are equal to the last bit and cancel.
    """
    return masked_mean(rewards[:, None, :, :], peers[..., None], axis=2)


def group_std(rewards, group_mean, retained):
    """σ_c f32[G, 1, C]: Bessel-corrected over V, two-pass and centred; 0 where |V| < 2. RouteWeaver, Eq. 14."""
    mask = retained[..., None]
    squares = jnp.square(fill(rewards - group_mean, mask))
    variance = divide(masked_sum(squares, mask, axis=1), jnp.sum(mask, axis=1) - 1)
    return jnp.sqrt(variance)[:, None, :]


def normalise(deviation, std, config: AdvantageConfig):
    """deviation / (σ_c + ε), and 0 where σ_c is below the gate. RouteWeaver, Eqs. 6 and 15, Component-wise gating."""
    return jnp.where(std < config.std_gate, 0, deviation / (std + config.std_epsilon))


def component_advantages(batch: GroupBatch, config: AdvantageConfig):
    """(A_GRPO, A_mode, A_inner) per component, each f32[G, K, C], 0 outside V. RouteWeaver, Eq. 15."""
    mask = batch.retained[..., None]
    rewards = from_smallest(batch.rewards, mask)
    group_mean = peer_mean(rewards, group_peers(batch))
    mode_mean = peer_mean(rewards, mode_peers(batch))
    std = group_std(rewards, group_mean, batch.retained)
    deviations = (rewards - group_mean, mode_mean - group_mean, rewards - mode_mean)
    return tuple(fill(normalise(deviation, std, config), mask) for deviation in deviations)


def mix(component, config: AdvantageConfig):
    """(1 - α) A_task + α A_eff, f32[G, K]; in cold start A_task. RouteWeaver, Eqs. 7 and 16.

    A component of weight 0 is left out rather than multiplied: where α is 0, a cost that nobody measured (NaN) must not
    matter. Weights are not rescaled where a component is gated.
    """
    weights = (1.0, 0.0) if config.cold_start else (1.0 - config.efficiency_weight, config.efficiency_weight)
    weights = jnp.asarray(weights, component.dtype)
    return jnp.sum(jnp.where(weights == 0, 0, weights * component), axis=-1)


def comet(batch: GroupBatch, config: AdvantageConfig) -> Advantages:
    """Separate advantages for the mode decision and for execution within the mode. RouteWeaver, Eqs. 6-7, 14-16.

    Args:
        batch: rewards f32[G, K, 2] (any value outside V, NaN too), mode i32[G, K], retained bool[G, K].
    Returns:
        Advantages f32[G, K], 0 outside V; all 0 for a group with fewer than two retained rollouts.
    """
    grpo_component, mode_component, inner_component = components = component_advantages(_checked(batch), config)
    return Advantages(
        grpo=mix(grpo_component, config),
        mode=mix(mode_component, config),
        inner=mix(inner_component, config),
        components=components,
    )


def grpo(batch: GroupBatch, config: AdvantageConfig) -> Advantages:
    """Ordinary GRPO: A_GRPO for every policy token, mode and inner alike. The ablation without COMET-GRPO."""
    components = component_advantages(_checked(batch), config)
    advantage = mix(components[0], config)
    return Advantages(grpo=advantage, mode=advantage, inner=advantage, components=components)


def token_advantage(advantages: Advantages, forced, segments):
    """The advantage Â of each token. RouteWeaver, Eq. 18.

    Args:
        advantages: grpo, mode, inner f32[B], one a row. Rows may be laid out as [G, K] too; all three arguments alike.
        forced: bool[B]. The mode of a forced group is injected, so such a row has no mode token.
        segments: u8[B, T], Segment codes.
    Returns:
        f32[B, T], 0 on tokens that are not the policy's.
    """
    inner = jnp.where(forced, advantages.grpo, advantages.inner)
    mode = jnp.where(forced, 0, advantages.mode)
    is_mode, is_inner = segments == int(Segment.MODE), segments == int(Segment.INNER)
    return jnp.where(is_mode, mode[..., None], jnp.where(is_inner, inner[..., None], 0))


AdvantageFunction = Callable[[GroupBatch, AdvantageConfig], Advantages]
ADVANTAGES: dict[str, AdvantageFunction] = {"comet": comet, "grpo": grpo}


def resolve(advantage: str | AdvantageFunction) -> AdvantageFunction:
    """The advantage function of that name: a key of ADVANTAGES, "package.module:function", or a function as it is.

    Raises:
        ConfigError: there is no such name, module or function.
    """
    if callable(advantage):
        return advantage
    if advantage in ADVANTAGES:
        return ADVANTAGES[advantage]
    if ":" not in advantage:
        near = difflib.get_close_matches(advantage, ADVANTAGES, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigError(
            f"unknown advantage {advantage!r}{hint}; use one of {sorted(ADVANTAGES)} or 'package.module:function'"
        )
    return imported_function(advantage, "advantage")


def _checked(batch: GroupBatch) -> GroupBatch:
    """The batch as arrays, rewards at least float32. Raises ValueError where shapes do not fit."""
    rewards = jnp.asarray(batch.rewards)
    rewards = rewards.astype(jnp.promote_types(rewards.dtype, jnp.float32))
    mode, retained = jnp.asarray(batch.mode), jnp.asarray(batch.retained, bool)
    if rewards.ndim != 3 or rewards.shape[-1] != 2 or not rewards.shape[:2] == mode.shape == retained.shape:
        raise ValueError(
            f"rewards must be [G, K, 2], mode and retained [G, K]; got {rewards.shape}, {mode.shape}, {retained.shape}"
        )
    return GroupBatch(rewards, mode, retained, batch.forced)
