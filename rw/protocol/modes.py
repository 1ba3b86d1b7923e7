"""The three mode machines: which actions a mode allows in which state, and the first reason why a turn is illegal.

Reasons are looked for over the whole turn in the order of `types.Violation`; the first that applies is reported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from rw.protocol import grammar
from rw.protocol.actions import Action, Answer, DeclareMode, Route
from rw.protocol.config import AGENTIC_CALLS, AGENTIC_TURNS, MULTI_CALLS, SINGLE_CALLS, ProtocolConfig
from rw.protocol.stop import OBSERVATION_TAG, stop_tags
from rw.types import Mode, Role, Violation

SIX_WORKERS = tuple(f"worker_{index}" for index in range(1, 7))  # the paper's pool
_ATTRIBUTES = {Mode.SINGLE: {"model"}, Mode.MULTI: {"model"}, Mode.AGENTIC: {"model", "role", "refs"}}
_MOST_CALLS = {Mode.SINGLE: SINGLE_CALLS, Mode.MULTI: MULTI_CALLS[1], Mode.AGENTIC: AGENTIC_CALLS}
_ROLES = frozenset(role.value for role in Role)


class Node(NamedTuple):
    """A completed call; its role is None outside agentic mode."""

    id: str
    role: Role | None


@dataclasses.dataclass(frozen=True)
class ModeState:
    """Everything that decides whether the next turn is legal. `mode` is None before the declaration."""

    worker_ids: tuple[str, ...]
    config: ProtocolConfig
    mode: Mode | None = None
    nodes: tuple[Node, ...] = ()
    turns_taken: int = 0  # action turns, the mode turn not counted
    turn_truncated: bool = False  # the mode turn used all its tokens

    @property
    def completed(self) -> tuple[str, ...]:
        """Ids of completed nodes: the legal references of the next layer."""
        return tuple(node.id for node in self.nodes)

    @property
    def summarizer_done(self) -> bool:
        return any(node.role is Role.SUMMARIZER for node in self.nodes)

    @property
    def calls_left(self) -> int:
        """Calls that the declared mode still allows, the summarizer's reserved one included."""
        return 0 if self.mode is None else _MOST_CALLS[self.mode] - len(self.nodes)

    @property
    def turns_left(self) -> int:
        """Agentic action turns left, the next one included."""
        return AGENTIC_TURNS - self.turns_taken


def initial_state(
    worker_ids: Sequence[str] = SIX_WORKERS, config: ProtocolConfig | None = None, forced_mode: Mode | None = None
) -> ModeState:
    """The state before the mode turn, or before the first action turn where the mode is forced."""
    return ModeState(tuple(worker_ids), config or ProtocolConfig(), forced_mode)


def advance(state: ModeState, actions: Sequence[Action]) -> ModeState:
    """The state after a legal turn; its calls count as completed, since no router turn comes before their replies."""
    if len(actions) == 1 and isinstance(actions[0], DeclareMode):
        return dataclasses.replace(state, mode=actions[0].mode, turn_truncated=False)
    routes = [action for action in actions if isinstance(action, Route)]
    new = tuple(Node(f"n{len(state.nodes) + count}", route.role) for count, route in enumerate(routes, 1))
    return dataclasses.replace(state, nodes=state.nodes + new, turns_taken=state.turns_taken + 1)


def judge(
    turn_text: str, state: ModeState, control_spans: Sequence[tuple[int, int]] | None = None
) -> tuple[tuple[Action, ...], Violation | None]:
    """The turn's actions, or the first reason why it is illegal.

    Args:
        turn_text: the turn's decoded text, control tokens visible.
        state: the state before the turn.
        control_spans: character spans of sampled control tokens; None takes every literal of one for a sampled one.

    Returns:
        (actions, None): one declaration, one answer, or one or more routes; or ((), violation).
    """
    spans = grammar.control_spans(turn_text) if control_spans is None else control_spans
    turn = grammar.cut_turn(turn_text, spans, stop_tags(state.mode))
    return _judge_declaration(turn, state) if state.mode is None else _judge_actions(turn, state)


def _judge_declaration(turn: grammar.Turn, state: ModeState) -> tuple[tuple[Action, ...], Violation | None]:
    if state.turn_truncated and turn.stop_tag is None:
        return (), Violation.MODE_TRUNCATED
    mode = grammar.parse_mode(turn.text, state.config.outside_text == "ignored")
    if mode is None or turn.holds_control:
        return (), Violation.MODE_GRAMMAR
    return (DeclareMode(mode),), None


def _judge_actions(turn: grammar.Turn, state: ModeState) -> tuple[tuple[Action, ...], Violation | None]:
    lenient = state.config.outside_text == "ignored"
    text = turn.text
    if lenient and turn.stop_tag == OBSERVATION_TAG:
        text = text[: -len(OBSERVATION_TAG)]
    found = grammar.find_elements(text, any_case=lenient)
    raw_routes, raw_answers = found.of("route"), found.of("answer")
    if grammar.holds_mode_tag(found.outside, any_case=lenient):
        return (), Violation.SECOND_MODE
    if turn.stop_tag == OBSERVATION_TAG and not lenient:
        return (), Violation.FABRICATED_OBSERVATION
    if turn.holds_control or not _is_one_action(raw_routes, raw_answers, state.mode):
        return (), Violation.ACTION_GRAMMAR
    if found.outside.strip() and not lenient:
        return (), Violation.ACTION_GRAMMAR
    if raw_answers:
        return _judge_answer(raw_answers[0], state)
    violation = _attribute_violation(raw_routes, state)
    if violation:
        return (), violation
    routes = tuple(_route(element) for element in raw_routes)
    violation = _limit_violation(routes, state)
    return ((), violation) if violation else (routes, None)


def _is_one_action(routes: Sequence[grammar.Element], answers: Sequence[grammar.Element], mode: Mode) -> bool:
    """One answer alone, or routes alone: several only as an agentic layer."""
    if answers:
        return len(answers) == 1 and not routes
    return len(routes) == 1 or (len(routes) > 1 and mode is Mode.AGENTIC)


def _judge_answer(answer: grammar.Element, state: ModeState) -> tuple[tuple[Action, ...], Violation | None]:
    if answer.attributes != ():
        return (), Violation.WRONG_ATTRIBUTES
    if state.mode is Mode.AGENTIC and state.config.agentic_rules == "released":
        premature = not state.summarizer_done
    else:
        premature = len(state.nodes) < (MULTI_CALLS[0] if state.mode is Mode.MULTI else 1)
    return ((), Violation.ANSWER_PREMATURE) if premature else ((Answer(answer.body),), None)


def _route(element: grammar.Element) -> Route:
    attributes = dict(element.attributes)
    role = Role(attributes["role"]) if "role" in attributes else None
    return Route(attributes["model"], element.body, role, grammar.parse_references(attributes.get("refs", "")))


def _attribute_violation(routes: Sequence[grammar.Element], state: ModeState) -> Violation | None:
    """What is wrong with the routes as written, before any rule of the mode."""

    def well_formed(attributes: tuple[tuple[str, str], ...] | None) -> bool:
        names = [name for name, _ in attributes or ()]
        return "model" in names and len(set(names)) == len(names) and set(names) <= _ATTRIBUTES[state.mode]

    if not all(well_formed(route.attributes) for route in routes):
        return Violation.WRONG_ATTRIBUTES
    if not all(route.body for route in routes):
        return Violation.EMPTY_SUBQUERY
    values = [dict(route.attributes) for route in routes]
    if state.mode is Mode.AGENTIC and not all(value.get("role") in _ROLES for value in values):
        return Violation.BAD_ROLE
    if not all(value["model"] in state.worker_ids for value in values):
        return Violation.UNKNOWN_WORKER
    return None


def _limit_violation(routes: Sequence[Route], state: ModeState) -> Violation | None:
    """What the mode's rules say against well-formed routes; a layer stands or falls whole."""
    released = state.mode is Mode.AGENTIC and state.config.agentic_rules == "released"
    if any(_has_bad_references(route, state, released) for route in routes):
        return Violation.BAD_REFERENCE
    if len(routes) > state.calls_left:
        return Violation.TOO_MANY_CALLS
    if released and _misplaces_summarizer(routes, state):
        return Violation.SUMMARIZER_MISPLACED
    if released and len({(route.role, route.worker_id, route.subquery) for route in routes}) < len(routes):
        return Violation.DUPLICATE_ROUTE
    return None


def _has_bad_references(route: Route, state: ModeState, released: bool) -> bool:
    if not set(route.references) <= set(state.completed):
        return True
    needed = route.role is Role.VERIFIER or (route.role is Role.SUMMARIZER and state.nodes)
    return released and bool(needed) and not route.references


def _misplaces_summarizer(routes: Sequence[Route], state: ModeState) -> bool:
    """A summarizer stands alone in its layer and ends the calls; any other layer leaves it one."""
    if state.summarizer_done:
        return True
    if any(route.role is Role.SUMMARIZER for route in routes):
        return len(routes) > 1
    return len(routes) >= state.calls_left
