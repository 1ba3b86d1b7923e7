"""The real Qwen3 tokenizer, small prompts whose texts a test can spell out, and a driver that plays both sides."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import rw.data
from rw.protocol.chat import TokenCodec
from rw.protocol.config import ProtocolConfig
from rw.protocol.dialogue import RouterProtocol
from rw.protocol.prompts import Prompts
from rw.types import Query, Segment, WorkerCard

TOKENIZER = Path(rw.data.__file__).parent / "files" / "qwen3_tokenizer.json.xz"
LETTERS = {
    Segment.PROMPT: "P",
    Segment.INJECTED: "J",
    Segment.OBSERVATION: "O",
    Segment.MODE: "M",
    Segment.INNER: "I",
}
TEXTS = {
    "selector": "Choose.\n{query}",
    "catalogue": "Workers:\n{workers}",
    "worker": "{id}: {description}",
    "rules.single": "One call.",
    "rules.multi": "Some calls.",
    "rules.agentic": "Layers, free.",
    "rules.agentic_released": "Layers.",
    "state.text": "state: layer {layer}, nodes {nodes}, refs {references}, {calls_left} calls, "
    "{turns_left} turns, summarizer {summarizer}",
    "state.node": "{id}/{role}",
    "state.separator": " ",
    "state.none": "none",
    "state.summarizer_done": "done",
    "state.summarizer_open": "open",
    "observation.marker": " [cut] ",
    "briefs.planner": "Plan it.",
    "briefs.executor": "Do it.",
    "briefs.verifier": "Check it.",
    "briefs.summarizer": "Join it.",
    "reply_format.answer": "End with an answer.",
    "reply_format.planner": "Steps only.",
    "reply_format.verifier": "PASS or FAIL.",
    "feedback.passed": " [passed {tests}]",
    "feedback.failed": " [{passed} of {tests}, then {kind}{problem}]",
    "feedback.output": " [{kind}: {output}]",
}
QUERY = Query("q-1", "math", "math", "Solve 3x+2=14.", "4")
CARDS = tuple(WorkerCard(f"worker_{index}", f"Skill {index}.") for index in range(1, 7))


class Player:
    """Plays router and Workers of one dialogue by text."""

    def __init__(self, protocol, forced_mode=None, query=QUERY):
        self.protocol, self.codec = protocol, protocol.codec
        self.dialogue = protocol.dialogue(query, forced_mode)
        self.calls = []

    def encode(self, text):
        """Text with literal end tokens as ids: plain text but for the literals, which become sampled control tokens."""
        pieces, rest = [], text
        literals = {self.codec.token_bytes[index].decode(): index for index in self.codec.control_ids}
        while rest:
            at, literal = min(((rest.find(word), word) for word in literals if word in rest), default=(len(rest), ""))
            pieces.append(self.codec.encode_text(rest[:at]))
            if literal:
                pieces.append(np.array([literals[literal]], np.int32))
            rest = rest[at + len(literal) :]
        return np.concatenate(pieces)

    def write(self, text, stop=None):
        """One router turn, as text or as exact ids."""
        ids = self.encode(text) if isinstance(text, str) else np.asarray(text, np.int32)
        stop = stop or ("end_token" if int(ids[-1]) in self.codec.end_tokens else "tag")
        self.calls = self.dialogue.take_turn(ids, np.full(len(ids), -0.5, np.float32), stop)
        return self.calls

    def reply(self, *replies):
        self.dialogue.take_replies(replies)
        return self

    def runs(self):
        """The context as (segment letter, text) runs."""
        context = self.dialogue.context
        labelled = zip(context.segments.tolist(), context.tokens.tolist(), strict=True)
        grouped = itertools.groupby(labelled, key=lambda pair: pair[0])
        return [(LETTERS[Segment(segment)], self.codec.decode([t for _, t in pairs])) for segment, pairs in grouped]

    @property
    def outcome(self):
        return self.dialogue.status, self.dialogue.violation


@pytest.fixture(scope="session")
def codec():
    return TokenCodec.from_file(TOKENIZER)


@pytest.fixture(scope="session")
def make_protocol(codec):
    """`make_protocol(cards=…, **switches)`, one object for equal arguments."""
    made = {}

    def make(cards=CARDS, texts=(), **switches):
        key = (cards, tuple(texts), tuple(sorted(switches.items())))
        if key not in made:
            made[key] = RouterProtocol(codec, Prompts({**TEXTS, **dict(texts)}), cards, ProtocolConfig(**switches))
        return made[key]

    return make


@pytest.fixture(scope="session")
def play(make_protocol):
    """`play(forced_mode=None, query=…, **switches)`: a Player over a new dialogue."""

    def start(forced_mode=None, query=QUERY, **switches):
        return Player(make_protocol(**switches), forced_mode, query)

    return start


@pytest.fixture(scope="session")
def query():
    return QUERY


@pytest.fixture
def prompt_texts():
    return dict(TEXTS)
