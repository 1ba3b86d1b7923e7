"""Running a plan straight against simulated Workers, without sockets, tokens or a router: what a plan is worth.

The figures are those of an episode that follows the plan: the same messages' content, the same replies, the same price.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from rw.protocol.prompts import Prompts
from rw.simulation import skills
from rw.simulation.plans import Plan, PlannedRoute, copied_answer
from rw.simulation.policies import Policy
from rw.simulation.workers import SimulatedWorld, count_tokens
from rw.types import Mode, Query

TEMPLATES = "short"  # the template set that small routers are trained with


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


def worker_messages(query: Query, plan: Plan, turn: int, replies: Sequence[str], prompts: Prompts) -> list[str]:
    """The messages of a plan's turn (from 1 on), given all replies so far in the order of their calls."""
    routes_so_far = [route for routes in plan.turns for route in routes]

    def message(route: PlannedRoute) -> str:
        if plan.mode is not Mode.AGENTIC:
            return prompts.worker_message(query.prompt, route.subquery, previous=replies[-1] if replies else None)
        numbers = [int(name.removeprefix("n")) - 1 for name in route.references]
        shown = [(f"n{number + 1}", routes_so_far[number].role, replies[number]) for number in numbers]
        return prompts.worker_message(query.prompt, route.subquery, route.role, shown)

    return [message(route) for route in plan.turns[turn - 1]]


def run_plan(
    world: SimulatedWorld, query: Query, plan: Plan, episode: str = "0/0/0", prompts: Prompts | None = None
) -> Trial:
    """Runs a plan for a query; `episode` (step/group/rollout) tells the coins of repeated searches apart."""
    prompts = Prompts.load(TEMPLATES) if prompts is None else prompts
    replies: list[str] = []
    cost_usd = 0.0
    for turn, routes in enumerate(plan.turns, start=1):
        messages = worker_messages(query, plan, turn, replies, prompts)
        for place, (route, content) in enumerate(zip(routes, messages, strict=True)):
            replies.append(world.reply(route.worker_id, content, f"{episode}/{turn}/{place}"))
            tokens = count_tokens(content) * skills.INPUT_PRICE + count_tokens(replies[-1]) * skills.OUTPUT_PRICE
            cost_usd += tokens * skills.PROFILES[route.worker_id].price_level / 1e6
    answer = copied_answer(replies[-1])
    return Trial(answer, answer == query.reference, cost_usd, len(replies))


def run_policy(
    world: SimulatedWorld, queries: Iterable[Query], policy: Policy, forced_mode: Mode | None = None, rollout: int = 0
) -> tuple[Trial, ...]:
    """One trial a query, each with coins of its own."""
    prompts = Prompts.load(TEMPLATES)
    return tuple(
        run_plan(world, query, policy.plan(query, rollout, forced_mode), f"0/{number}/{rollout}", prompts)
        for number, query in enumerate(queries)
    )


def summarise(trials: Iterable[Trial]) -> Summary:
    """Accuracy and mean cost."""
    trials = tuple(trials)
    count = max(1, len(trials))
    correct = sum(trial.correct for trial in trials) / count
    return Summary(correct, sum(trial.cost_usd for trial in trials) / count, len(trials))
