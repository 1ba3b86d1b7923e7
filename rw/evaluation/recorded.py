"""Arms on recorded answers, without a rollout: what fixed Workers, chance, neighbours and hindsight earn there.

The records say what each Worker answers, so a plan's outcome is known before it is played. Nothing is sampled, called
or booked.
"""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Sequence

from rw.data.replay import Answers
from rw.errors import DataError
from rw.evaluation.outcomes import Outcome
from rw.evaluation.recorded_matrices import nq6_matrix
from rw.evaluation.response_matrix import ResponseMatrix
from rw.evaluation.selection import always, chosen, oracle_cheapest, random
from rw.types import Query

NEIGHBOURS = 20
_WORD = re.compile(r"\w+")


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
    matrix = nq6_matrix(test, answers)
    arms: dict[str, tuple[Outcome, ...]] = {}
    if "scripted" in names:
        arms |= {f"scripted_{worker.id}": always(matrix, place) for place, worker in enumerate(matrix.workers)}
    if "random" in names:
        arms["random"] = random(matrix, seed)
    if "knn" in names:
        known = Neighbours(nq6_matrix(train, answers), neighbours)
        arms["knn"] = chosen(matrix, [known.choose(text) for text in matrix.texts])
    if "oracle" in names:
        arms["oracle"] = oracle_cheapest(matrix)
    return arms


class Neighbours:
    """k nearest neighbours: the Worker that was right most often on the training questions most like a question.

    Likeness is the cosine of TF-IDF vectors of words, with idf ln((1 + n) / (1 + df)) + 1. Among Workers that were
    right equally often there, the one that was right more often on all training questions is asked, then the cheaper.
    The baseline of `rw baselines` (learned_routers.py) reads pairs of words and parts of words too, and goes by cost
    alone where neighbours say the same.
    """

    def __init__(self, train: ResponseMatrix, neighbours: int = NEIGHBOURS):
        if not train.questions:
            raise DataError("knn needs training questions, of which there are none")
        self._neighbours = neighbours
        words = [_words(text) for text in train.texts]
        frequencies = collections.Counter(word for counts in words for word in counts)  # questions that have the word
        self._idf = {word: math.log((1 + len(words)) / (1 + count)) + 1 for word, count in frequencies.items()}
        self._vectors = [self._vector(counts) for counts in words]
        self._right = [[cell.correct for cell in row] for row in train.cells]
        self._overall = [sum(column) for column in zip(*self._right, strict=True)]
        self._cost = train.mean_costs.tolist()

    def choose(self, text: str) -> int:
        """The place of the Worker for a question; of equally like training questions the earlier ones count."""
        vector = self._vector(_words(text))
        likeness = [sum(weight * other.get(word, 0.0) for word, weight in vector.items()) for other in self._vectors]
        nearest = sorted(range(len(likeness)), key=lambda place: -likeness[place])[: self._neighbours]
        right = [sum(self._right[place][m] for place in nearest) for m in range(len(self._cost))]
        return max(range(len(right)), key=lambda m: (right[m], self._overall[m], -self._cost[m]))

    def _vector(self, counts: collections.Counter[str]) -> dict[str, float]:
        """Of length 1, or empty where no word of the question was seen in training."""
        weights = {word: count * self._idf[word] for word, count in counts.items() if word in self._idf}
        length = math.sqrt(sum(weight * weight for weight in weights.values()))
        return {word: weight / length for word, weight in weights.items()}


def _words(text: str) -> collections.Counter[str]:
    return collections.Counter(_WORD.findall(text.lower()))
