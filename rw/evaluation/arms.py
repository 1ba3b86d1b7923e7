"""The arms beside the router: scripted routers of the simulated world."""

from __future__ import annotations

from collections.abc import Sequence

from rw.simulation.policies import RANDOM_WORKERS, BestPlans, Policy
from rw.types import Mode


def scripted_routers(arms: Sequence[str]) -> dict[str, Policy]:
    """The scripted routers that `arms` asks for, by arm.

    `scripted_{mode}`: in that mode alone, the best plan and Workers of each kind of question; `oracle`: each kind in
    its best mode too; `random`: random modes and Workers. All but the last know the skills that a router must learn.
    """
    routers: dict[str, Policy] = {}
    if "scripted" in arms:
        routers |= {f"scripted_{mode.word}": BestPlans(mode) for mode in Mode}
    if "random" in arms:
        routers["random"] = RANDOM_WORKERS
    if "oracle" in arms:
        routers["oracle"] = BestPlans()
    return routers
