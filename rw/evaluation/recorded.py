"""Arms on recorded answers, without a rollout: what fixed Workers, chance, neighbours and hindsight earn there.

The records say what each Worker answers, so a plan's outcome is known before it is played: these outcomes are those of
episodes that ask one Worker in single mode and copy the answer of its reply, as long as the router is shown the answer:
a reply that is cut in its middle could hide it. Nothing is sampled, called or booked.
"""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Callable, Sequence

from rw.data.replay import NQ6_MODELS, Answers, RecordedAnswer, RecordedModel
from rw.errors import DataError
from rw.evaluation.outcomes import Outcome
from rw.scoring.short_answer import trivia_qa
from rw.simulation.plans import copied_answer
from rw.simulation.world import chance
from rw.types import Mode, Query, Status

NEIGHBOURS = 20
_WORD = re.compile(r"\w+")
Choice = Callable[[Query], RecordedModel]


def recorded_arms(
    train: Sequence[Query],
    test: Sequence[Query],
    answers: Answers,
    seed: int,
    names: Sequence[str],
    neighbours: int = NEIGHBOURS,
) -> dict[str, tuple[Outcome, ...]]:
    """The outcomes of test questions, in their order, by arm.

    `scripted` gives one arm a Worker, `scripted_{id}`: always that Worker. `random`: a Worker drawn evenly by seed and
    question, so that it has an outcome a question as the others do. `knn`: see `Neighbours`. `oracle`: the cheapest
    Worker that is right, and where none is right the cheapest of all.

    Args:
        train: the questions whose answers `knn` may know.
        names: which of these; other names are passed over.

    Raises:
        DataError: `knn` without a question to know.
    """
    records = Records(answers)
    choices: dict[str, Choice] = {}
    if "scripted" in names:
        choices |= {f"scripted_{model.id}": _always(model) for model in NQ6_MODELS}
    if "random" in names:
        choices["random"] = lambda query: NQ6_MODELS[int(chance("worker", seed, query.id) * len(NQ6_MODELS))]
    if "knn" in names:
        choices["knn"] = Neighbours(train, records, neighbours).choose
    if "oracle" in names:
        choices["oracle"] = records.cheapest_right
    return {arm: tuple(records.outcome(query, choose(query)) for query in test) for arm, choose in choices.items()}


class Records:
    """Verdict and cost of every model's answer to a question."""

    def __init__(self, answers: Answers):
        self._answers = answers

    def is_right(self, query: Query, model: RecordedModel) -> bool:
        """Whether the answer copied from this model's reply is right."""
        return trivia_qa(copied_answer(self._said(query, model).text), query).correct

    def cost_usd(self, query: Query, model: RecordedModel) -> float:
        """Recorded cost of the reply, of its output alone."""
        return self._said(query, model).cost_usd

    def cheapest_right(self, query: Query) -> RecordedModel:
        """The oracle's choice; the earlier model where costs are equal."""
        return min(NQ6_MODELS, key=lambda model: (not self.is_right(query, model), self.cost_usd(query, model)))

    def outcome(self, query: Query, model: RecordedModel) -> Outcome:
        """The outcome of asking one model in single mode."""
        return Outcome(
            query_id=query.id,
            kind=str(query.metadata.get("type", query.domain)),
            mode=Mode.SINGLE.word,
            status=Status.ANSWERED.value,
            violation=None,
            cause=None,
            correct=self.is_right(query, model),
            cost_usd=self.cost_usd(query, model),
            workers=(model.id,),
            dataset=query.dataset,
            domain=query.domain,
            answer=copied_answer(self._said(query, model).text),
        )

    def _said(self, query: Query, model: RecordedModel) -> RecordedAnswer:
        return self._answers[query.metadata["question"]][model.model]


class Neighbours:
    """k nearest neighbours: the Worker that was right most often on the training questions most like a question.

    Likeness is the cosine of TF-IDF vectors of words, with idf ln((1 + n) / (1 + df)) + 1. Among Workers that were
    right equally often there, the one that was right more often on all training questions is asked, then the cheaper.
    """

    def __init__(self, train: Sequence[Query], records: Records, neighbours: int = NEIGHBOURS):
        if not train:
            raise DataError("knn needs training questions, of which there are none")
        self._neighbours = neighbours
        words = [_words(query) for query in train]
        frequencies = collections.Counter(word for counts in words for word in counts)  # questions that have the word
        self._idf = {word: math.log((1 + len(train)) / (1 + count)) + 1 for word, count in frequencies.items()}
        self._vectors = [self._vector(counts) for counts in words]
        self._right = [[records.is_right(query, model) for model in NQ6_MODELS] for query in train]
        self._overall = [sum(column) for column in zip(*self._right, strict=True)]
        self._cost = [sum(records.cost_usd(query, model) for query in train) for model in NQ6_MODELS]

    def choose(self, query: Query) -> RecordedModel:
        """The Worker for a question; of equally like training questions the earlier ones count."""
        vector = self._vector(_words(query))
        likeness = [sum(weight * other.get(word, 0.0) for word, weight in vector.items()) for other in self._vectors]
        nearest = sorted(range(len(likeness)), key=lambda place: -likeness[place])[: self._neighbours]
        right = [sum(self._right[place][m] for place in nearest) for m in range(len(NQ6_MODELS))]
        return NQ6_MODELS[max(range(len(right)), key=lambda m: (right[m], self._overall[m], -self._cost[m]))]

    def _vector(self, counts: collections.Counter[str]) -> dict[str, float]:
        """Of length 1, or empty where no word of the question was seen in training."""
        weights = {word: count * self._idf[word] for word, count in counts.items() if word in self._idf}
        length = math.sqrt(sum(weight * weight for weight in weights.values()))
        return {word: weight / length for word, weight in weights.items()}


def _always(model: RecordedModel) -> Choice:
    return lambda query: model


def _words(query: Query) -> collections.Counter[str]:
    return collections.Counter(_WORD.findall(query.metadata["question"].lower()))
