"""Scripted routers: baselines, warm-start data and deterministic tests run them through the same episodes as a model.

A policy makes a plan for a query; `next_action` writes the plan's text turn by turn, and `script` lends a policy to a
scripted sampler. Every choice is a function of (policy seed, query id, rollout): no state, no clock.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from rw.errors import ConfigError
from rw.simulation.plans import Plan, best_mode, best_plan, multi, single, team
from rw.simulation.skills import WORKER_IDS
from rw.simulation.world import Kind, chance, digest
from rw.types import Mode, Query

_MODE = re.compile(r"<mode>\s*(single|multi|agentic)\s*</mode>")
_OBSERVATION = re.compile(r"<observation[^>]*>(.*?)</observation>", re.DOTALL)
HABIT_MODE_PROBABILITIES = (0.5, 0.3, 0.2)


class Policy(Protocol):
    """What a scripted router is: a plan for every query, rollout, and forced mode (None where it may choose)."""

    def plan(self, query: Query, rollout: int, forced_mode: Mode | None) -> Plan: ...


def next_action(
    policy: Policy, query: Query, rollout: int, forced_mode: Mode | None, turn: int, observations: Sequence[str]
) -> str:
    """The text of the router's turn: turn 0 declares the mode, the last one answers."""
    return policy.plan(query, rollout, forced_mode).action(turn, observations)


def script(policy: Policy, query_of: Callable[[str], Query]):
    """A policy as the script of a scripted sampler.

    Args:
      policy: what plans.
      query_of: gives the query of an id.

    Returns:
      A function of (turn request, view of the context) that writes the turn. It plans without a forced mode in turn 0
      and with the mode that stands in the context afterwards, so it follows forced and free modes alike.
    """

    def write(request, view) -> str:
        query = query_of(request.episode.query_id)
        mode = None if request.turn == 0 else declared_mode(view.response)
        observations = _OBSERVATION.findall(view.response)
        return next_action(policy, query, request.episode.rollout, mode, request.turn, observations)

    return write


def declared_mode(response: str) -> Mode:
    """The mode that stands first in what follows the prompt, forced or sampled."""
    match = _MODE.search(response)
    if match is None:
        raise ValueError(f"no mode is declared in {response[:80]!r}")
    return Mode[match[1].upper()]


def kind_of(query: Query) -> Kind:
    """The kind of a simulated query; ConfigError for a query of another data set."""
    try:
        return Kind(query.metadata["type"])
    except (KeyError, ValueError):
        raise ConfigError(
            f"query {query.id} of {query.dataset} is no simulated one; its best plan is unknown"
        ) from None


@dataclasses.dataclass(frozen=True)
class BestPlans:
    """Best plan of each kind in its best mode: the oracle. With `mode` set, the best plans of that one mode."""

    mode: Mode | None = None

    def plan(self, query: Query, rollout: int, forced_mode: Mode | None) -> Plan:
        kind = kind_of(query)
        mode = forced_mode if forced_mode is not None else self.mode
        return best_plan(kind, best_mode(kind) if mode is None else mode)


@dataclasses.dataclass(frozen=True)
class FixedWorker:
    """One mode and one Worker for everything."""

    mode: Mode
    worker_id: str

    def plan(self, query: Query, rollout: int, forced_mode: Mode | None) -> Plan:
        worker_id = self.worker_id
        mode = self.mode if forced_mode is None else forced_mode
        if mode is Mode.SINGLE:
            return single(worker_id)
        if mode is Mode.MULTI:
            return multi((worker_id, "step one"), (worker_id, "step two"))
        return team(((worker_id,), (worker_id,)), worker_id)


@dataclasses.dataclass(frozen=True)
class Phrases:
    """The sub-queries of a policy."""

    solve: str = "solve"
    first: str = "step one"
    second: str = "step two"
    pick: str = "pick"


SHORT_PHRASES = Phrases()
QUESTION_PHRASES = Phrases(*["answer the question"] * 3, pick="pick the best answer")


@dataclasses.dataclass(frozen=True)
class HabitPolicy:
    """A router with arbitrary habits, unrelated to skill: what a warm start imitates before it has learnt anything.

    Each kind of query has its own mode probabilities (a permutation of HABIT_MODE_PROBABILITIES) and two favourite
    Workers that get `favourite_share` of the picks; the rest go to any Worker. This teaches a network to read the kind
    without teaching it what is good. A single call, two calls in multi, two or three executors and a summarizer.

    Args:
      seed: decides the habits and every pick.
      worker_ids: the Workers to choose from; at least three for agentic plans with three executors.
      mode_prior: probabilities of (single, multi, agentic) for every kind alike, or None for habits by kind.
      favourite_share: 0 picks among all Workers evenly.
      phrases: the sub-queries.
      distinct: whether the two Workers of a multi plan differ.
    """

    seed: int
    worker_ids: tuple[str, ...] = WORKER_IDS
    mode_prior: tuple[float, float, float] | None = None
    favourite_share: float = 0.5
    phrases: Phrases = SHORT_PHRASES
    distinct: bool = False
    executors: tuple[int, ...] = (2, 3)

    def __post_init__(self):
        prior = self.mode_prior
        if prior is not None and (len(prior) != 3 or min(prior) < 0 or abs(sum(prior) - 1) > 1e-6):
            raise ConfigError(f"mode_prior={prior} must be three probabilities (single, multi, agentic) that sum to 1")
        if len(self.worker_ids) < max(self.executors):
            raise ConfigError(
                f"the warm start's teams of {max(self.executors)} need as many Workers, and the config has "
                f"{len(self.worker_ids)}: add some, or begin from parameters (init.source='params')"
            )

    def mode_probabilities(self, query: Query) -> tuple[float, float, float]:
        """Probabilities of (single, multi, agentic) when the policy may choose."""
        if self.mode_prior is not None:
            return self.mode_prior
        order = sorted(Mode, key=lambda mode: digest("mode habit", self.seed, _habit_key(query), mode.word))
        ranks = {mode: HABIT_MODE_PROBABILITIES[place] for place, mode in enumerate(order)}
        return (ranks[Mode.SINGLE], ranks[Mode.MULTI], ranks[Mode.AGENTIC])

    def favourites(self, query: Query) -> tuple[str, str]:
        """The two Workers that this kind of query mostly goes to."""
        order = sorted(self.worker_ids, key=lambda name: digest("favourite", self.seed, _habit_key(query), name))
        return (order[0], order[1])

    def plan(self, query: Query, rollout: int, forced_mode: Mode | None) -> Plan:
        draw = functools.partial(chance, "habit", self.seed, query.id, rollout)
        mode = self._choose_mode(query, draw("mode")) if forced_mode is None else forced_mode
        if mode is Mode.SINGLE:
            return single(self._pick(query, draw, "single", ()), self.phrases.solve)
        if mode is Mode.MULTI:
            first = self._pick(query, draw, "first", ())
            second = self._pick(query, draw, "second", (first,) if self.distinct else ())
            return multi((first, self.phrases.first), (second, self.phrases.second))
        count = self.executors[int(draw("executors") * len(self.executors))]
        executors: tuple[str, ...] = ()
        for number in range(count):  # the same route twice in a layer would be a violation
            executors += (self._pick(query, draw, f"executor {number}", executors),)
        summarizer = self._pick(query, draw, "summarizer", ())
        return team((executors,), summarizer, self.phrases.solve, self.phrases.pick)

    def _choose_mode(self, query: Query, position: float) -> Mode:
        probabilities = self.mode_probabilities(query)
        for mode in Mode:
            if position < probabilities[mode]:
                return mode
            position -= probabilities[mode]
        return max(Mode, key=lambda mode: probabilities[mode])  # rounding left nothing over

    def _pick(self, query: Query, draw: Callable[[str], float], what: str, taken: tuple[str, ...]) -> str:
        favoured = draw(f"{what} by favour") < self.favourite_share
        names = [name for name in (self.favourites(query) if favoured else self.worker_ids) if name not in taken]
        names = names or [name for name in self.worker_ids if name not in taken]
        return names[int(draw(what) * len(names))]


def _habit_key(query: Query) -> str:
    return query.metadata.get("type", query.domain)


def opinions(seed: int, worker_ids: Sequence[str], mode_prior: tuple[float, float, float] | None = None) -> HabitPolicy:
    """A router for any real questions: asks random Workers for their opinion and copies the last reply's answer.

    Single is one opinion, multi two different ones, agentic two executors and a summarizer.
    """
    return HabitPolicy(
        seed,
        tuple(worker_ids),
        mode_prior=(1 / 3, 1 / 3, 1 / 3) if mode_prior is None else mode_prior,
        favourite_share=0.0,
        phrases=QUESTION_PHRASES,
        distinct=True,
        executors=(2,),
    )


RANDOM_WORKERS = HabitPolicy(0, mode_prior=(1 / 3, 1 / 3, 1 / 3), favourite_share=0.0)
