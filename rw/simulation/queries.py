"""Queries of the simulated world, with known answers, in five domains and any number.

A query is a pure function of (seed, split, index). The split of a question is decided by a hash of its text, so no
question of one split ever appears in another, whatever the seed of the draw. Within a split, the questions of a domain
come in an order drawn from the seed, and none comes twice before all have come. Domains take turns, so any run of
consecutive queries is balanced to within one.
"""

from __future__ import annotations

import functools
import hashlib

from rw.errors import ConfigError, DataError
from rw.simulation.world import DOMAINS, Kind, Question, World, all_questions, digest
from rw.types import Query

DATASET = "simulated"
FORMAT_LINE = "Reply with one number."
SPLITS = {"train": 0.7, "validation": 0.1, "test": 0.2}  # share of the questions
_KIND_OF_DOMAIN = {kind.value.partition("_")[0]: kind for kind in Kind}


def split_of(text: str) -> str:
    """The split that a question's text belongs to."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
    for split, share in SPLITS.items():
        if number < share:
            return split
        number -= share
    return split


@functools.cache
def _questions_by_split(kind: Kind) -> dict[str, tuple[Question, ...]]:
    found: dict[str, list[Question]] = {split: [] for split in SPLITS}
    for question in all_questions(kind):
        found[split_of(question.text)].append(question)
    return {split: tuple(questions) for split, questions in found.items()}


@functools.cache
def _ordered(kind: Kind, split: str, draw_seed: int) -> tuple[Question, ...]:
    questions = _questions_by_split(kind)[split]
    return tuple(sorted(questions, key=lambda question: digest(draw_seed, "order", question.text)))


def question_query(world: World, question: Question, query_id: str) -> Query:
    """A question as the router and the scorer get it."""
    return Query(
        id=query_id,
        dataset=DATASET,
        domain=question.domain,
        prompt=f"{question.text}\n{FORMAT_LINE}",
        reference=str(world.answer(question)),
        metadata={"type": question.kind.value, "difficulty": question.difficulty, "question": question.text},
    )


def query(seed: int, split: str, index: int, draw_seed: int | None = None) -> Query:
    """Query `index` of a split.

    Args:
      seed: the world's seed, which decides the answers.
      split: "train", "validation" or "test".
      index: 0, 1, …; the domain is the index modulo five.
      draw_seed: decides the order of the questions; the world's seed where it is None.
    """
    if split not in SPLITS:
        raise ConfigError(f"unknown split {split!r} of the simulated world; legal: {', '.join(SPLITS)}")
    if index < 0:
        raise ConfigError(f"query index {index} is negative; the first is 0")
    draw_seed = seed if draw_seed is None else draw_seed
    turn, place = divmod(index, len(DOMAINS))
    questions = _ordered(_KIND_OF_DOMAIN[DOMAINS[place]], split, draw_seed)
    return question_query(World(seed), questions[turn % len(questions)], f"sim-{split}-{index:06d}")


def batch(
    seed: int, data_batch_index: int, size: int, split: str = "train", draw_seed: int | None = None
) -> list[Query]:
    """The queries of one data batch: batch b of size n holds the indices from b·n on."""
    first = data_batch_index * size
    return [query(seed, split, index, draw_seed) for index in range(first, first + size)]


def distinct(seed: int, count: int, split: str, draw_seed: int | None = None) -> list[Query]:
    """The first `count` queries of a split's draw, no question twice; DataError where the split has too few."""
    fewest = min(len(_questions_by_split(kind)[split]) for kind in Kind)
    if count > len(DOMAINS) * fewest:
        raise DataError(
            f"{count} different {split} questions of the simulated world: there are at most {len(DOMAINS) * fewest} in "
            "equal parts"
        )
    return batch(seed, 0, count, split, draw_seed)
