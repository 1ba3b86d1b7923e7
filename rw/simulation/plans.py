"""Plans: what a scripted router asks of whom, and the action text that says so.

A plan fixes a mode and its calls, turn by turn; the answer is always a copy of the last observation's answer. The best
plan of a kind of question in a mode follows from the Workers' skills alone.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from rw.simulation.messages import answer_body
from rw.simulation.skills import WORKERS, WorkerProfile
from rw.simulation.world import DIFFICULTIES, STEP_SKILLS, Kind
from rw.types import Mode, Role

END_OF_TURN = "<|im_end|>"
ANSWER_WORDS = 12  # a copied answer is cut to this many words: long replies hold explanations, short answers score
NO_ANSWER = "unknown"


@dataclasses.dataclass(frozen=True)
class PlannedRoute:
    """One route: a Worker, its sub-query, and in agentic mode its role and the nodes it is shown."""

    worker_id: str
    subquery: str
    role: Role | None = None
    references: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        role = "" if self.role is None else f' role="{self.role}"'
        references = f' refs="{",".join(self.references)}"' if self.references else ""
        return f'<route model="{self.worker_id}"{role}{references}>{self.subquery}</route>'


@dataclasses.dataclass(frozen=True)
class Plan:
    """A mode and the routes of each action turn before the answer."""

    mode: Mode
    turns: tuple[tuple[PlannedRoute, ...], ...]

    def action(self, turn: int, observations: Sequence[str]) -> str:
        """The router's text of a turn: 0 declares the mode; after the planned turns comes the answer.

        Args:
          turn: index of the turn, 0 for the mode turn.
          observations: bodies of all replies so far, in order.
        """
        if turn == 0:
            return f"<mode>{self.mode.word}</mode>"
        if turn <= len(self.turns):
            routes = "".join(route.text for route in self.turns[turn - 1])
            return routes + END_OF_TURN if self.mode is Mode.AGENTIC else routes
        return f"<answer>{copied_answer(observations[-1]) if observations else NO_ANSWER}</answer>"


def copied_answer(observation: str) -> str:
    """The answer that a reply gives: the body of its last answer tag, or its first line that is not blank.

    Cut to ANSWER_WORDS words, without angle brackets, so that no reply can close or open a tag of the router's.
    """
    body = answer_body(observation)
    if body is None:
        body = next((line for line in observation.splitlines() if line.strip()), "")
    words = re.sub(r"[<>]", " ", body).split()
    return " ".join(words[:ANSWER_WORDS]) or NO_ANSWER


def single(worker_id: str, subquery: str = "solve") -> Plan:
    """One call."""
    return Plan(Mode.SINGLE, ((PlannedRoute(worker_id, subquery),),))


def multi(*routes: tuple[str, str]) -> Plan:
    """Calls one after the other, as (Worker id, sub-query)."""
    return Plan(Mode.MULTI, tuple((PlannedRoute(worker_id, subquery),) for worker_id, subquery in routes))


def team(layers: tuple[tuple[str, ...], ...], summarizer_id: str, subquery: str = "solve", pick: str = "pick") -> Plan:
    """Layers of executors that do not see each other, then a summarizer that sees them all."""
    executors = tuple(
        tuple(PlannedRoute(worker_id, subquery, Role.EXECUTOR) for worker_id in layer) for layer in layers
    )
    nodes = tuple(f"n{number + 1}" for number in range(sum(len(layer) for layer in layers)))
    return Plan(Mode.AGENTIC, (*executors, (PlannedRoute(summarizer_id, pick, Role.SUMMARIZER, nodes),)))


def _ranked(score) -> list[WorkerProfile]:
    """Workers from best to worst; the cheaper first where two are equal."""
    return sorted(WORKERS, key=lambda profile: (-score(profile), profile.price_level, profile.id))


def _ranked_by_skill(skill: str) -> list[str]:
    return [profile.id for profile in _ranked(lambda profile: profile.mean_skill(skill))]


def _whole_chain(profile: WorkerProfile, kind: Kind) -> float:
    first, second = STEP_SKILLS[kind]
    both = [profile.step_skill(first, level) * profile.step_skill(second, level) for level in DIFFICULTIES]
    return sum(both) / len(both)


def single_plans(kind: Kind) -> tuple[Plan, ...]:
    """The single plans of a kind, from the best Worker to the worst."""
    if len(STEP_SKILLS[kind]) == 2:
        return tuple(single(profile.id) for profile in _ranked(lambda profile: _whole_chain(profile, kind)))
    return tuple(single(worker_id) for worker_id in _ranked_by_skill(STEP_SKILLS[kind][0]))


def best_plan(kind: Kind, mode: Mode) -> Plan:
    """The plan most likely to be right for a kind of question in a mode; the cheaper where two are equal."""
    skill = STEP_SKILLS[kind]
    ranked = [_ranked_by_skill(name) for name in skill]
    if mode is Mode.SINGLE:
        return single_plans(kind)[0]
    cheapest = min(WORKERS, key=lambda profile: profile.price_level).id
    if mode is Mode.MULTI:
        if len(skill) == 2:
            return multi((ranked[0][0], "step one"), (ranked[1][0], "step two"))
        first = ranked[0][0] if kind is Kind.REASON_SEARCH else cheapest  # only a search's first reply matters
        return multi((first, "solve"), (ranked[0][0], "solve"))
    if kind is Kind.REASON_SEARCH:
        recogniser = _ranked(lambda profile: profile.recognition)[0].id
        searchers = tuple(ranked[0][:3])
        return team((searchers, searchers), recogniser)
    if len(skill) == 2:
        first = PlannedRoute(ranked[0][0], "step one", Role.EXECUTOR)
        second = tuple(PlannedRoute(name, "step two", Role.EXECUTOR, ("n1",)) for name in ranked[1][:3])
        last = PlannedRoute(cheapest, "pick", Role.SUMMARIZER, ("n2", "n3", "n4"))
        return Plan(Mode.AGENTIC, ((first,), second, (last,)))
    return team((tuple(ranked[0][:3]),), cheapest)


def best_mode(kind: Kind) -> Mode:
    """The mode that the world makes best for a kind of question."""
    if kind is Kind.REASON_SEARCH:
        return Mode.AGENTIC
    return Mode.MULTI if len(STEP_SKILLS[kind]) == 2 else Mode.SINGLE
