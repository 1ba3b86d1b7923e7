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

from rw.data.answer_formats import without_line
from rw.data.wording import tokens
from rw.types import Query

RUN = 3  # tokens
THRESHOLD = 0.5
SAME, NEARLY_SAME = "in_other_file", "nearly_in_other_file"


class Questions:
    """The questions that others are compared with, by their runs of tokens."""

    def __init__(self, queries: Iterable[Query]):
        self._ids: list[str] = []
        self._by_tokens: dict[tuple[str, ...], int] = {}
        self._sizes: list[int] = []
        self._by_run: dict[tuple[str, ...], list[int]] = collections.defaultdict(list)
        for query in queries:
            words, runs = _runs(query)
            place = len(self._ids)
            self._ids.append(query.id)
            self._by_tokens.setdefault(words, place)
            self._sizes.append(len(runs))
            for run in runs:
                self._by_run[run].append(place)

    def same(self, query: Query) -> str | None:
        """Id of the first that is the same question; None where there is none."""
        place = self._by_tokens.get(_runs(query)[0])
        return None if place is None else self._ids[place]

    def like(self, query: Query, threshold: float = THRESHOLD) -> tuple[str, float] | None:
        """Id of the question most like it, and how like, up to 1.0; None where none is like enough."""
        _, runs = _runs(query)
        shared = collections.Counter(place for run in runs for place in self._by_run.get(run, ()))
        best, most = None, threshold
        for place, count in shared.items():
            likeness = count / (len(runs) + self._sizes[place] - count)
            if likeness >= most and (best is None or likeness > most):
                best, most = place, likeness
        return None if best is None else (self._ids[best], most)


def overlapping(queries: Iterable[Query], others: Iterable[Query]) -> dict[str, str]:
    """Ids of those queries that are among the others, with SAME or NEARLY_SAME for each."""
    held = Questions(others)
    found = {}
    for query in queries:
        if held.same(query) is not None:
            found[query.id] = SAME
        elif held.like(query) is not None:
            found[query.id] = NEARLY_SAME
    return found


def _runs(query: Query) -> tuple[tuple[str, ...], set[tuple[str, ...]]]:
    words = tuple(tokens(without_line(query.prompt)))
    return words, {words[start : start + RUN] for start in range(max(len(words) - RUN + 1, 1))}
