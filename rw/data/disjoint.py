"""Which questions are also, word for word or nearly, among others: what is trained on must not be tested.

Two questions are the same where their normalised texts are equal, and nearly the same where at least half of all their
runs of three tokens (words and single marks) are in both: the Jaccard index of the two sets of runs.

Why three, and why a half: with a word of a real question replaced, it is still recognised in 84 % of TriviaQA's short
questions and in 95 to 100 % of those of ten other sets; runs of five recognise 45 % of TriviaQA's. On the other side,
among 1,100 records of these sets no question reached a half with another of its set, but for four of MBPP's and two of
HumanEval's, which are variants of one task, and for the BIG-Bench Hard tasks that are drawn from templates (36 of 135).
Short questions of one form ("What is the capital of …?") count as nearly the same: a question to train on that is lost
costs less than one that is tested. A question of fewer than three tokens has one run, the whole.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from rw.data.answer_formats import without_line
from rw.data.wording import tokens
from rw.types import Query

RUN = 3  # tokens
THRESHOLD = 0.5
SAME, NEARLY_SAME = "in_other_file", "nearly_in_other_file"
Run = tuple[str, ...]


class Match(NamedTuple):
    """The question found, the Jaccard index of the two sets of runs, and whether the normalised texts are equal."""

    id: str
    likeness: float
    is_same: bool


class Questions:
    """The questions that others are compared with, found by their runs of tokens."""

    def __init__(self, queries: Iterable[Query]):
        self._ids: list[str] = []
        self._by_tokens: dict[Run, int] = {}
        sizes: list[int] = []
        by_run: dict[Run, list[int]] = collections.defaultdict(list)
        for place, query in enumerate(queries):
            words = _words(query)
            runs = _runs(words)
            self._ids.append(query.id)
            self._by_tokens.setdefault(words, place)
            sizes.append(len(runs))
            for run in runs:
                by_run[run].append(place)
        self._sizes = np.array(sizes, np.int64)  # [questions]
        self._by_run = {run: np.array(places, np.int64) for run, places in by_run.items()}

    def match(self, query: Query, threshold: float = THRESHOLD) -> Match | None:
        """The same question, or else the one most like it, the first of several; None where none is like enough."""
        words = _words(query)
        if words in self._by_tokens:
            return Match(self._ids[self._by_tokens[words]], 1.0, True)
        runs = _runs(words)
        places = [self._by_run[run] for run in runs if run in self._by_run]
        if not places:
            return None
        shared = np.bincount(np.concatenate(places), minlength=len(self._ids))  # i64[questions]
        likeness = shared / (len(runs) + self._sizes - shared)
        best = int(likeness.argmax())
        return Match(self._ids[best], float(likeness[best]), False) if likeness[best] >= threshold else None


def overlapping(queries: Iterable[Query], others: Iterable[Query]) -> dict[str, str]:
    """Ids of those queries that are among the others, with SAME or NEARLY_SAME for each."""
    held = Questions(others)
    matches = ((query.id, held.match(query)) for query in queries)
    return {query_id: SAME if match.is_same else NEARLY_SAME for query_id, match in matches if match is not None}


def _words(query: Query) -> Run:
    return tuple(tokens(without_line(query.prompt)))


def _runs(words: Run) -> set[Run]:
    return {words[start : start + RUN] for start in range(max(len(words) - RUN + 1, 1))}
