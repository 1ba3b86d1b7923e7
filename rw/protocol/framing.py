"""What the environment inserts around router turns, as labelled token pieces.

Every piece (frame, rules, opening tag, body, closing tag) is tokenised by itself, so it has the same ids wherever it
stands and no text can reach into its neighbour. Qwen3's frame is written out in fragments: a chat template would render
the whole conversation anew, and rewrite old turns while at it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rw.errors import ConfigError
from rw.protocol.chat import TokenCodec
from rw.protocol.config import ProtocolConfig
from rw.protocol.context import Piece
from rw.protocol.modes import ModeState, Node
from rw.protocol.prompts import Prompts
from rw.types import Mode, Query, Role, Segment, WorkerCard

# The released code's shares where one turn's observations divide a budget.
TURN_OBSERVATIONS, TURN_RESERVE, FEWEST_OBSERVATION = 4096, 1024, 256


def _joined(pieces: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(pieces).astype(np.int32)


class Framing:
    """Token pieces for one set of prompts, Workers and switches; all constant pieces are tokenised once."""

    def __init__(self, codec: TokenCodec, prompts: Prompts, cards: Sequence[WorkerCard], config: ProtocolConfig):
        """Raises ConfigError where an observation's wrapper would not fit its limit."""
        self._codec, self._prompts, self._config = codec, prompts, config
        text = codec.encode_text
        before, after = prompts.selector_parts()
        catalogue = prompts.catalogue(cards)
        self._before, self._after = text(before), text(after)
        self._system = text(catalogue) if config.catalogue == "system" else None
        self._rules = {mode: prompts.rules(mode, config.agentic_rules) for mode in Mode}
        if config.catalogue == "rules":
            self._rules = {mode: f"{rules}\n\n{catalogue}" for mode, rules in self._rules.items()}
        self._rules = {mode: text(rules) for mode, rules in self._rules.items()}
        self._declarations = {mode: text(f"<mode>{mode.word}</mode>") for mode in Mode}
        self._joins = {join: text(join) for join in ("\n", "\n\n")}
        self._marker, self._closing = text(prompts.marker), text("</observation>")
        self._end = np.array([codec.im_end], np.int32)
        self._headers = {
            name: _joined([np.array([codec.im_start], np.int32), text(name), text("\n")])
            for name in ("system", "user", "assistant")
        }
        widest = len(self._opening(Node("n8", Role.SUMMARIZER))) + len(self._closing) + len(self._marker)
        limit = config.observation_limit if config.observation_budget == "each" else FEWEST_OBSERVATION
        if widest > limit:
            raise ConfigError(f"observations of {limit} tokens: their wrapper and marker alone take {widest}")

    def prompt(self, query: Query) -> np.ndarray:
        """Turn 1's prompt, i32[n]: an optional system message, the selector with the query, the assistant's header."""
        end, newline, header = self._end, self._joins["\n"], self._headers
        system = [] if self._system is None else [header["system"], self._system, end, newline]
        body = [self._before, self._codec.encode_text(query.prompt), self._after]
        return _joined([*system, header["user"], *body, end, newline, header["assistant"]])

    def forced_mode(self, mode: Mode) -> list[Piece]:
        """The declaration in the router's place: assistant text, so that forced and free contexts have the same ids."""
        if self._config.framing == "turns":
            return [(self._declarations[mode], Segment.INJECTED)]
        return self._user_message([self._declarations[mode]], closed=False)

    def rules(self, state: ModeState, closed: bool) -> list[Piece]:
        """What follows the declaration: rules, catalogue and, in agentic mode, the first routing state."""
        agentic = state.mode is Mode.AGENTIC
        if self._config.framing == "released":
            pieces = self._user_message([self._rules[state.mode]], closed=False)
            pieces += self._user_message([self._state(state)], closed=False) if agentic else []
            return [*pieces, *self._assistant()]
        texts = [self._rules[state.mode], *([self._joins["\n\n"], self._state(state)] if agentic else [])]
        return [*self._user_message(texts, closed), *self._assistant()]

    def observations(self, state: ModeState, replies: Sequence[str], closed: bool, left: int) -> list[Piece]:
        """The replies of the turn's calls in order, and in agentic mode the next routing state.

        Args:
            state: after the turn; its last nodes are the calls that the replies answer.
            replies: the Workers' outputs, whole.
            closed: the router sampled `<|im_end|>` as its turn's last token.
            left: tokens left of the response budget.
        """
        nodes = state.nodes[len(state.nodes) - len(replies) :]
        limit = self._observation_limit(len(replies), left)
        bare = self._config.framing == "released"
        agentic = state.mode is Mode.AGENTIC
        pieces: list[Piece] = []
        for node, reply in zip(nodes, replies, strict=True):
            if pieces:
                pieces.append((self._joins["\n\n" if bare else "\n"], Segment.INJECTED))
            pieces.append((self._observation(node, reply, limit), Segment.OBSERVATION))
        if not bare:
            tail = [(self._joins["\n\n"], Segment.INJECTED), (self._state(state), Segment.INJECTED)] if agentic else []
            return [*self._user_message([], closed), *pieces, *tail, *self._assistant()]
        around = (self._joins["\n" if agentic else "\n\n"], Segment.INJECTED)
        tail = [*self._user_message([self._state(state)], closed=False), *self._assistant()] if agentic else []
        return [around, *pieces, around, *tail]

    def candidate_contents(self) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """The ids of `<mode>` and each mode's content ids between the tags.

        Raises ConfigError where the tokenizer merges a tag with the word inside: candidates need a clean border.
        """
        opening, closing = self._codec.encode_text("<mode>"), self._codec.encode_text("</mode>")
        contents = []
        for mode in Mode:
            whole = self._declarations[mode]
            content = whole[len(opening) : len(whole) - len(closing)]
            if not np.array_equal(whole, _joined([opening, content, closing])):
                raise ConfigError(f"the tokenizer merges the tags of <mode>{mode.word}</mode> with the word inside")
            contents.append(content)
        return opening, tuple(contents)

    def _user_message(self, texts: Sequence[np.ndarray], closed: bool) -> list[Piece]:
        """Ends the open turn, once, and opens a user message with texts in it."""
        frame = [self._joins["\n"], self._headers["user"]]
        return [(ids, Segment.INJECTED) for ids in ([] if closed else [self._end]) + frame + list(texts)]

    def _assistant(self) -> list[Piece]:
        return [(ids, Segment.INJECTED) for ids in (self._end, self._joins["\n"], self._headers["assistant"])]

    def _state(self, state: ModeState) -> np.ndarray:
        return self._codec.encode_text(self._prompts.routing_state(state))

    def _opening(self, node: Node) -> np.ndarray:
        attributes = "" if node.role is None else f' id="{node.id}" role="{node.role}"'
        return self._codec.encode_text(f"<observation{attributes}>")

    def _observation_limit(self, count: int, left: int) -> int:
        if self._config.observation_budget == "each":
            return self._config.observation_limit
        return max(FEWEST_OBSERVATION, min(TURN_OBSERVATIONS, left - TURN_RESERVE) // count)

    def _observation(self, node: Node, reply: str, limit: int) -> np.ndarray:
        opening, body = self._opening(node), self._codec.encode_text(reply)
        room = limit - len(opening) - len(self._closing)
        if len(body) > room:
            body = cut_middle(body, self._marker, room, self._codec)
        return _joined([opening, body, self._closing])


def cut_middle(body: np.ndarray, marker: np.ndarray, room: int, codec: TokenCodec) -> np.ndarray:
    """Keeps the head and the tail of a long body around the marker, in at most `room` tokens, i32[≤ room].

    The tail gets half of what the marker leaves, rounded down. Tokens that hold part of a character whose rest was cut
    away are dropped at both borders.
    """

    def starts_inside_character(index: int) -> bool:
        return codec.token_bytes[body[index]][0] & 0xC0 == 0x80

    left = room - len(marker)
    head, tail = left - left // 2, len(body) - left // 2
    while head > 0 and starts_inside_character(head):
        head -= 1
    while tail < len(body) and starts_inside_character(tail):
        tail += 1
    return _joined([body[:head], marker, body[tail:]])
