"""The facade of the room: one trajectory's protocol from prompt to answer, without IO, clock or concurrency.

An episode asks a Dialogue for the next turn's limits, hands it what was sampled, sends the calls that it plans and
hands it the replies. The dialogue decides everything else.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from rw.errors import ConfigError, DataError
from rw.protocol.actions import Action, Answer, DeclareMode, Route
from rw.protocol.chat import TokenCodec, TurnText
from rw.protocol.config import ProtocolConfig
from rw.protocol.context import Context, Piece
from rw.protocol.framing import Framing
from rw.protocol.modes import advance, initial_state, judge
from rw.protocol.prompts import Prompts
from rw.protocol.stop import first_stop, stop_tags
from rw.types import Mode, Query, Role, Segment, Status, Violation, WorkerCard

RESPONSE_BUDGET, TURNS = "response_budget", "turns"  # causes of exhaustion


@dataclasses.dataclass(frozen=True)
class TurnLimits:
    """How far the next router turn may go."""

    max_tokens: int
    stop_tags: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class PlannedCall:
    """An accepted route, ready to send: `content` is the whole user message for the Worker."""

    node_id: str
    worker_id: str
    role: Role | None
    references: tuple[str, ...]
    subquery: str
    content: str


class RouterProtocol:
    """What all dialogues of a run share: codec, prompts, Workers, switches, and the pieces made from them."""

    def __init__(self, codec: TokenCodec, prompts: Prompts, cards: Sequence[WorkerCard], config: ProtocolConfig):
        """Raises ConfigError for no Workers, a Worker id twice, or one that no attribute can spell."""
        self.codec, self.prompts, self.cards, self.config = codec, prompts, tuple(cards), config
        self.worker_ids = tuple(card.id for card in self.cards)
        if not self.cards or len(set(self.worker_ids)) < len(self.cards):
            raise ConfigError(f"Worker ids {self.worker_ids}: at least one, each once")
        for worker_id in self.worker_ids:
            if not re.fullmatch(r"[A-Za-z0-9_.-]+", worker_id):
                raise ConfigError(f"Worker id {worker_id!r} may hold letters, digits and _ . - only")
        self.framing = Framing(codec, prompts, self.cards, config)
        self._mode_tag, self._candidates = self.framing.candidate_contents()

    def prompt_tokens(self, query: Query) -> np.ndarray:
        """Turn 1's prompt with its frame, i32[n]."""
        return self.framing.prompt(query)

    def check_fits(self, query: Query) -> None:
        """Raises DataError for a query whose prompt is over the limit; a prompt is never cut."""
        self._fitting_prompt(query)

    def mode_candidates(self, query: Query) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """What the support term scores: prompt and `<mode>`, i32[T], and each mode's content tokens in Mode order."""
        return np.concatenate([self._fitting_prompt(query), self._mode_tag]), self._candidates

    def dialogue(self, query: Query, forced_mode: Mode | None = None) -> Dialogue:
        """A new trajectory; raises DataError for a query that does not fit."""
        return Dialogue(self, query, forced_mode)

    def _fitting_prompt(self, query: Query) -> np.ndarray:
        tokens = self.prompt_tokens(query)
        if len(tokens) > self.config.prompt_limit:
            limit = self.config.prompt_limit
            raise DataError(
                f"query {query.id!r}: its prompt takes {len(tokens)} tokens, over prompt_limit {limit}; raise "
                "protocol.prompt_limit, or leave longer ones out (rw data prepare --tokenizer, --prompt-limit)"
            )
        return tokens


class Dialogue:
    """One trajectory's protocol state: the context, the mode machine, and how it ended.

    Attributes:
        turn: index of the next router turn; 0 is the mode turn, so a forced dialogue starts at 1.
        status: None while running.
        cause: what exhausted it, `response_budget` or `turns`.
    """

    def __init__(self, protocol: RouterProtocol, query: Query, forced_mode: Mode | None = None):
        self._protocol, self._query = protocol, query
        self.context = Context(protocol._fitting_prompt(query))
        self.state = initial_state(protocol.worker_ids, protocol.config)
        self.turn = 0
        self.answer: str | None = None
        self.status: Status | None = None
        self.violation: Violation | None = None
        self.cause: str | None = None
        self._replies: dict[str, str] = {}
        self._awaited = 0  # replies that the next step needs
        if forced_mode is not None:
            self.turn = 1
            self.state = advance(self.state, (DeclareMode(forced_mode),))
            declaration = protocol.framing.forced_mode(forced_mode)
            self._insert([*declaration, *protocol.framing.rules(self.state, closed=False)])

    @property
    def mode(self) -> Mode | None:
        """The mode declared or forced, if any."""
        return self.state.mode

    @property
    def tokens_left(self) -> int:
        """Tokens left of the response budget."""
        return self._protocol.config.response_budget - self.context.response_length

    def next_turn(self) -> TurnLimits | None:
        """Limits of the next router turn, or None once the trajectory has ended; may itself end it as exhausted."""
        if self._awaited:
            raise RuntimeError(f"{self._awaited} replies are due before the next turn")
        if self.status is None and self.mode is Mode.AGENTIC and self.state.turns_left < 1:
            self._exhaust(TURNS)
        if self.status is not None:
            return None
        limit = self._protocol.config.mode_turn_limit if self.mode is None else self.tokens_left
        return TurnLimits(min(limit, self.tokens_left), stop_tags(self.mode))

    def take_turn(
        self, tokens: Sequence[int] | np.ndarray, logprobs: Sequence[float] | np.ndarray, stop: str
    ) -> tuple[PlannedCall, ...]:
        """Appends a sampled turn as it is, judges it and moves on.

        Args:
            tokens: sampled ids, i32[n], n ≥ 1, the one that completed a stop tag or ended the turn last.
            logprobs: f32[n].
            stop: why the sampler stopped: `tag`, `end_token` or `length`.

        Returns:
            The calls to send; empty where there is nothing to send (mode turn, answer, any end).

        Raises:
            ValueError: a turn that no sampler may return under these limits.
            RuntimeError: the trajectory has ended, or replies are due.
        """
        limits = self.next_turn()
        if limits is None:
            raise RuntimeError(f"the trajectory has ended: {self.status}")
        tokens = np.asarray(tokens)
        turn = self._protocol.codec.decode_turn(tokens)
        is_complete = self._check_turn(tokens, turn, limits, stop)
        self.context.append_sampled(tokens, logprobs, Segment.MODE if self.mode is None else Segment.INNER)
        self.turn += 1
        used_all = len(tokens) >= self._protocol.config.mode_turn_limit or (not is_complete and self.tokens_left > 0)
        if self.mode is None and used_all:
            self.state = dataclasses.replace(self.state, turn_truncated=True)
        elif not is_complete:
            self._end_cut_turn(turn)
            return ()
        actions, violation = judge(turn.text, self.state, turn.control_spans)
        if violation is not None:
            self._invalidate(violation)
            return ()
        return self._accept(actions, closed=int(tokens[-1]) == self._protocol.codec.im_end)

    def take_replies(self, replies: Sequence[str], remarks: Sequence[str] = ()) -> None:
        """Inserts the outputs of the planned calls, in their order, or ends as exhausted where they do not fit.

        Args:
            remarks: one a reply or none at all: what the environment adds behind each. The router reads it inside the
                observation; no Worker does.
        """
        if len(replies) != self._awaited or not replies:
            raise RuntimeError(f"{self._awaited} replies are due, not {len(replies)}")
        self._awaited = 0
        nodes = self.state.nodes[len(self.state.nodes) - len(replies) :]
        self._replies.update({node.id: reply for node, reply in zip(nodes, replies, strict=True)})
        closed = int(self.context.tokens[-1]) == self._protocol.codec.im_end
        shown = [reply + remark for reply, remark in zip(replies, remarks, strict=True)] if remarks else replies
        self._insert(self._protocol.framing.observations(self.state, shown, closed, self.tokens_left))

    def _check_turn(self, tokens: np.ndarray, turn: TurnText, limits: TurnLimits, stop: str) -> bool:
        """Whether the turn ended by itself; ValueError where the sampler broke its contract."""
        if not 1 <= len(tokens) <= limits.max_tokens:
            raise ValueError(f"{len(tokens)} sampled tokens; a turn has 1 to {limits.max_tokens}")
        codec, tags = self._protocol.codec, [tag.encode() for tag in limits.stop_tags]
        if first_stop(codec.decode_bytes(tokens[:-1]), tags) is not None:
            raise ValueError("tokens follow the one that completed a stop tag")
        has_tag = first_stop(turn.text, limits.stop_tags) is not None
        has_end = int(tokens[-1]) in codec.end_tokens
        if stop not in ("tag", "end_token", "length"):
            raise ValueError(f"stop {stop!r} is not one of tag, end_token, length")
        if (stop == "tag" and not has_tag) or (stop == "end_token" and not has_end):
            raise ValueError(f"the turn stopped by {stop!r} but its last token is neither: {turn.text[-40:]!r}")
        return has_tag or has_end

    def _accept(self, actions: tuple[Action, ...], closed: bool) -> tuple[PlannedCall, ...]:
        before, self.state = self.state, advance(self.state, actions)
        first = actions[0]
        if isinstance(first, Answer):
            self.answer, self.status = first.text, Status.ANSWERED
        elif isinstance(first, DeclareMode):
            self._insert(self._protocol.framing.rules(self.state, closed))
        else:
            self._awaited = len(actions)
            nodes = self.state.nodes[len(before.nodes) :]
            return tuple(self._plan(node.id, route) for node, route in zip(nodes, actions, strict=True))
        return ()

    def _plan(self, node_id: str, route: Route) -> PlannedCall:
        roles = {node.id: node.role for node in self.state.nodes}
        shows_previous = self.mode is Mode.MULTI and self._protocol.config.multi_previous == "reply" and self._replies
        content = self._protocol.prompts.worker_message(
            self._query.prompt,
            route.subquery,
            route.role,
            [(name, roles[name], self._replies[name]) for name in route.references],
            next(reversed(self._replies.values())) if shows_previous else None,
        )
        return PlannedCall(node_id, route.worker_id, route.role, route.references, route.subquery, content)

    def _insert(self, pieces: Sequence[Piece]) -> None:
        """Appends pieces if at least one more token can be sampled after them, or ends as exhausted."""
        if sum(len(ids) for ids, _ in pieces) >= self.tokens_left:
            self._exhaust(RESPONSE_BUDGET)
        else:
            self.context.append_inserted(pieces)

    def _end_cut_turn(self, turn: TurnText) -> None:
        """A turn that the response budget cut: not judged, unless the released code's reading is asked for."""
        if self._protocol.config.exhausted == "judged":
            _, violation = judge(turn.text, self.state, turn.control_spans)
            if violation is not None:
                self._invalidate(violation)
                return
        self._exhaust(RESPONSE_BUDGET)

    def _invalidate(self, violation: Violation) -> None:
        self.status, self.violation = Status.TERMINAL_INVALID, violation

    def _exhaust(self, cause: str) -> None:
        counts_invalid = self._protocol.config.exhausted == "invalid"
        self.status = Status.TERMINAL_INVALID if counts_invalid else Status.EXHAUSTED
        self.cause = cause
