"""The small world of the simulation: its words, its facts, and questions that can be written, read and solved.

Numbers are 0..29 and all arithmetic is modulo 30. The facts are two tables of 40 things by 30 properties and 8
permutations, drawn from the world's seed. Only Workers know them: a router sees question texts and must learn whom to
ask. Nothing here knows how well a Worker does its work (workers.py) or who is asked what (policies.py).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import itertools
import re
from collections.abc import Mapping

MODULUS = 30
DIFFICULTIES = ("simple", "tricky")
THINGS = (
    "otter", "falcon", "badger", "beaver", "camel", "cobra", "crane", "donkey", "eagle", "ferret",
    "gecko", "goose", "heron", "horse", "hyena", "iguana", "jackal", "koala", "lemur", "leopard",
    "lizard", "llama", "magpie", "marten", "moose", "ocelot", "osprey", "panda", "parrot", "pelican",
    "pigeon", "puffin", "rabbit", "raven", "salmon", "sparrow", "tiger", "turtle", "walrus", "zebra",
)  # fmt: skip
PROPERTIES = (
    "age", "weight", "height", "width", "depth", "length", "speed", "price", "rank", "score",
    "level", "grade", "count", "range", "power", "charge", "volume", "rating", "index", "class",
    "shade", "pitch", "span", "pulse", "reach", "load", "gain", "cycle", "tempo", "margin",
)  # fmt: skip
OPERATIONS = ("flip", "twist", "fold", "swap", "spin", "turn", "bend", "roll")
NUMBERS = tuple(str(number) for number in range(MODULUS))
DOMAINS = ("math", "code", "know", "reason", "recall")


class Kind(enum.StrEnum):
    """What a question asks for. One kind a domain; the words of the text tell which."""

    RECALL_LOOKUP = "recall_lookup"  # one entry of the first table
    KNOW_LOOKUP = "know_lookup"  # one entry of the second table
    MATH_CHAIN = "math_chain"  # an entry of the first table, then a sum
    CODE_CHAIN = "code_chain"  # a sum, then a permutation
    REASON_SEARCH = "reason_search"  # the x that a permutation and a sum take to a given number


TEMPLATES: Mapping[Kind, str] = {
    Kind.RECALL_LOOKUP: "recall {difficulty}: what {property} has {thing}?",
    Kind.KNOW_LOOKUP: "know {difficulty}: which {property} suits {thing}?",
    Kind.MATH_CHAIN: "math {difficulty}: take the {property} of {thing}, then plus {plus}.",
    Kind.CODE_CHAIN: "code {difficulty}: start with {first} plus {plus}, then run {operation}.",
    Kind.REASON_SEARCH: "reason {difficulty}: find x where {operation} of x plus {plus} is {target}.",
}
SLOTS: Mapping[str, tuple[str, ...]] = {
    "difficulty": DIFFICULTIES,
    "property": PROPERTIES,
    "thing": THINGS,
    "operation": OPERATIONS,
    "first": NUMBERS,
    "plus": NUMBERS[1:],
    "target": NUMBERS,
}
# The skill that each step needs; a chain has two steps, and they belong to two different specialists.
STEP_SKILLS: Mapping[Kind, tuple[str, ...]] = {
    Kind.RECALL_LOOKUP: ("recall",),
    Kind.KNOW_LOOKUP: ("know",),
    Kind.MATH_CHAIN: ("recall", "math"),
    Kind.CODE_CHAIN: ("math", "code"),
    Kind.REASON_SEARCH: ("reason",),
}


def _slot_names(kind: Kind) -> tuple[str, ...]:
    return tuple(re.findall(r"\{(\w+)\}", TEMPLATES[kind]))


def _pattern(kind: Kind) -> re.Pattern[str]:
    pieces = re.split(r"\{(\w+)\}", TEMPLATES[kind])
    fixed, names = pieces[0::2], pieces[1::2]
    groups = [f"(?P<{name}>{'|'.join(SLOTS[name])})" for name in names]
    return re.compile("".join(re.escape(a) + b for a, b in itertools.zip_longest(fixed, groups, fillvalue="")))


_PATTERNS = {kind: _pattern(kind) for kind in Kind}


@dataclasses.dataclass(frozen=True)
class Question:
    """A question as its kind and the words in its slots."""

    kind: Kind
    slots: tuple[tuple[str, str], ...]  # (name, word) in the template's order

    @property
    def text(self) -> str:
        return TEMPLATES[self.kind].format(**dict(self.slots))

    @property
    def domain(self) -> str:
        return self.kind.value.partition("_")[0]

    @property
    def difficulty(self) -> str:
        return self["difficulty"]

    @property
    def steps(self) -> int:
        return len(STEP_SKILLS[self.kind])

    def __getitem__(self, name: str) -> str:
        return dict(self.slots)[name]


def all_questions(kind: Kind):
    """Yields every question of a kind, in a fixed order."""
    names = _slot_names(kind)
    for words in itertools.product(*(SLOTS[name] for name in names)):
        yield Question(kind, tuple(zip(names, words, strict=True)))


def read_question(text: str) -> Question | None:
    """The question that a line of `text` asks, or None where no line is one."""
    for line in text.splitlines():
        for kind, pattern in _PATTERNS.items():
            match = pattern.fullmatch(line.strip())
            if match:
                return Question(kind, tuple((name, match[name]) for name in _slot_names(kind)))
    return None


def digest(*parts: object) -> int:
    """A 64-bit number that depends on every part; the only source of chance in the simulation."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def chance(*parts: object) -> float:
    """A number in [0, 1) drawn from the parts."""
    return (digest(*parts) >> 11) / 2**53


@dataclasses.dataclass(frozen=True)
class World:
    """The facts that belong to one seed."""

    seed: int

    def entry(self, table: str, thing: str, property_: str) -> int:
        """One number of the table "recall" or "know"."""
        return digest(self.seed, "table", table, thing, property_) % MODULUS

    @functools.cached_property
    def permutations(self) -> Mapping[str, tuple[int, ...]]:
        """What each operation makes of the numbers 0..29."""
        return {
            name: tuple(sorted(range(MODULUS), key=lambda number: digest(self.seed, "operation", name, number)))
            for name in OPERATIONS
        }

    def step(self, question: Question, index: int, value: int | None = None) -> int:
        """The true result of one step; step 1 of a chain works on `value`, the result of its step 0."""
        kind = question.kind
        if kind is Kind.REASON_SEARCH:
            permutation = self.permutations[question["operation"]]
            goal = int(question["target"])
            plus = int(question["plus"])
            return next(x for x in range(MODULUS) if (permutation[x] + plus) % MODULUS == goal)
        if index == 1:
            if value is None:
                raise ValueError(f"the second step of {question.text!r} needs the first one's result")
            if kind is Kind.MATH_CHAIN:
                return (value + int(question["plus"])) % MODULUS
            return self.permutations[question["operation"]][value]
        if kind is Kind.CODE_CHAIN:
            return (int(question["first"]) + int(question["plus"])) % MODULUS
        table = "know" if kind is Kind.KNOW_LOOKUP else "recall"
        return self.entry(table, question["thing"], question["property"])

    def answer(self, question: Question) -> int:
        """The true answer: all steps in turn."""
        value = None
        for index in range(question.steps):
            value = self.step(question, index, value)
        return value
