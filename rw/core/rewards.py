"""Trajectory rewards (Eq. 5) and the retention rule: which rollouts enter the set V.

Host arithmetic in float64: nothing here needs a device, and costs of 1e-5 USD should not be rounded before they are
compared. A quantity that was not measured is NaN, never 0.
"""

from __future__ import annotations

import numpy as np

from rw.errors import ConfigError
from rw.types import ScoredTrajectory, Status, Trajectory


def cost_score(cost_usd, reference_cost_usd):
    """S_cost in (0, 1]: 1 at no cost, 1/2 at the reference cost. RouteWeaver, Eq. 5: S_cost = 1 / (1 + C / C_ref).

    Args:
        cost_usd: C(τ), Worker cost in USD, any shape; NaN where the cost record is incomplete.
        reference_cost_usd: C_ref in USD, above 0.
    """
    return 1.0 / (1.0 + cost_usd / reference_cost_usd)


def task_reward(valid, correct):
    """r_task f64: 1 valid and correct, 0 valid but wrong, -1 terminal-invalid. RouteWeaver, Eq. 5."""
    return np.where(valid, np.where(correct, 1.0, 0.0), -1.0)


def efficiency_reward(valid, correct, cost_usd, reference_cost_usd):
    """r_eff f64: S_cost valid and correct, 0 valid but wrong, -1 terminal-invalid. RouteWeaver, Eq. 5.

    Cost moves correct rollouts only; a correct one whose cost is NaN gets NaN.
    """
    return np.where(valid, np.where(correct, cost_score(cost_usd, reference_cost_usd), 0.0), -1.0)


def is_valid(trajectory: Trajectory, exhausted_is_invalid: bool = False) -> bool:
    """Whether the trajectory broke no rule. One whose budget is used up broke none, unless the run says otherwise."""
    if trajectory.status is Status.EXHAUSTED:
        return not exhausted_is_invalid
    return trajectory.status is not Status.TERMINAL_INVALID


def is_retained(trajectory: Trajectory, efficiency_weight: float, cold_start: bool) -> bool:
    """Whether the rollout belongs to V (RouteWeaver, Appendix C.1).

    An infrastructure failure is never attributed to the router. Where the efficiency reward is in use (α > 0, after
    cold start), an incomplete cost record excludes as well, whatever the outcome: to keep the wrong rollouts and drop
    the correct ones would bias V.
    """
    if trajectory.status is Status.INFRASTRUCTURE_FAILURE:
        return False
    uses_cost = efficiency_weight > 0 and not cold_start
    return not (uses_cost and trajectory.cost_usd is None)


def trajectory_rewards(
    scored: ScoredTrajectory,
    reference_cost_usd: float,
    exhausted_is_invalid: bool = False,
    retry_cost: str = "accepted",
) -> tuple[float, float]:
    """(r_task, r_eff) of one rollout (RouteWeaver, Eq. 5); (NaN, NaN) after an infrastructure failure.

    Args:
        retry_cost: one of types.RETRY_COSTS. The paper counts accepted attempts.

    Raises:
        ConfigError: the reference cost is not above 0.
    """
    if not reference_cost_usd > 0:
        raise ConfigError(f"reference_cost_usd is {reference_cost_usd}; it must be above 0")
    trajectory = scored.trajectory
    if trajectory.status is Status.INFRASTRUCTURE_FAILURE:
        return float("nan"), float("nan")
    valid = is_valid(trajectory, exhausted_is_invalid)
    counted_usd = trajectory.counted_cost_usd(retry_cost)
    cost_usd = float("nan") if counted_usd is None else counted_usd
    task = task_reward(valid, scored.correct)
    efficiency = efficiency_reward(valid, scored.correct, cost_usd, reference_cost_usd)
    return float(task), float(efficiency)
