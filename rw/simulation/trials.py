"""Running a plan straight against simulated Workers, without sockets, tokens or a router: what a plan is worth.

The figures are those of an episode that follows the plan: the same messages' content, the same replies, the same price.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rw.simulation import skills
from rw.simulation.messages import ShownReply, WorkerMessage, write_message
from rw.simulation.plans import Plan, copied_answer
from rw.simulation.policies import Policy
from rw.simulation.workers import SimulatedWorld, count_tokens
from rw.types import Mode, Query, Role

CLOSING = "End with <answer>your answer</answer>."


@dataclasses.dataclass(frozen=True)
class Trial:
    """What came of one plan."""

    answer: str
    correct: bool
    cost_usd: float
    calls: int


@dataclasses.dataclass(frozen=True)
class Summary:
    """Means over trials; 0 for none."""

    accuracy: float
    cost_usd: float
    trials: int


def run_plan(world: SimulatedWorld, query: Query, plan: Plan, episode: str = "0/0/0") -> Trial:
    """Runs a plan for a query; `episode` (step/group/rollout) tells the coins of repeated searches apart."""
    shown: dict[str, ShownReply] = {}
    cost_usd = 0.0
    for turn, routes in enumerate(plan.turns, start=1):
        earlier = dict(shown)
        for place, route in enumerate(routes):
            if plan.mode is Mode.MULTI:
                replies = tuple(dataclasses.replace(reply, node_id=None) for reply in list(earlier.values())[-1:])
            else:
                replies = tuple(earlier[name] for name in route.references)
            content = write_message(WorkerMessage(route.role, query.prompt, route.subquery, replies), CLOSING)
            text = world.reply(route.worker_id, content, f"{episode}/{turn}/{place}")
            node_id = f"n{len(shown) + 1}"
            shown[node_id] = ShownReply(node_id, route.role or Role.EXECUTOR, text)
            level = skills.PROFILES[route.worker_id].price_level
            tokens = count_tokens(content) * skills.INPUT_PRICE + count_tokens(text) * skills.OUTPUT_PRICE
            cost_usd += tokens * level / 1e6
    answer = copied_answer(list(shown.values())[-1].text)
    return Trial(answer, answer == query.reference, cost_usd, len(shown))


def run_policy(
    world: SimulatedWorld, queries: Iterable[Query], policy: Policy, forced_mode: Mode | None = None, rollout: int = 0
) -> tuple[Trial, ...]:
    """One trial a query, each with coins of its own."""
    return tuple(
        run_plan(world, query, policy.plan(query, rollout, forced_mode), f"0/{number}/{rollout}")
        for number, query in enumerate(queries)
    )


def summarise(trials: Iterable[Trial]) -> Summary:
    """Accuracy and mean cost."""
    trials = tuple(trials)
    count = max(1, len(trials))
    correct = sum(trial.correct for trial in trials) / count
    return Summary(correct, sum(trial.cost_usd for trial in trials) / count, len(trials))
