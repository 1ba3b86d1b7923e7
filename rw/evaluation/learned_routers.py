"""Routers learned from a response matrix, after those that the paper compares with: which Worker for which question.

A fit is a function (vectors f32[N, D], scores f64[N, W], seed) -> predictor, and a predictor one of vectors f32[Q, D]
-> utilities f64[Q, W]. The Worker of the highest utility is asked, of equals the cheaper. Fits see training questions
alone; the same seed gives the same router.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors
from sklearn.neural_network import MLPRegressor
from sklearn.svm import LinearSVR
from threadpoolctl import threadpool_limits

from rw.data.wording import normalised
from rw.errors import ConfigError, DataError
from rw.evaluation.contrastive_router import router_dc
from rw.evaluation.embeddings import Embedding
from rw.evaluation.factorised_router import matrix_factorisation
from rw.evaluation.outcomes import Outcome
from rw.evaluation.response_matrix import MatrixQuestion, ResponseMatrix
from rw.evaluation.selection import best_workers, chosen
from rw.imported import imported_function

NEIGHBOURS = 20
HIDDEN = 64
Predictor = Callable[[np.ndarray], np.ndarray]
Fit = Callable[[np.ndarray, np.ndarray, int], Predictor]


def nearest_neighbours(vectors: np.ndarray, scores: np.ndarray, seed: int) -> Predictor:
    """A Worker's mean score on the NEIGHBOURS training questions most like a question, by cosine."""
    found = NearestNeighbors(n_neighbors=min(NEIGHBOURS, len(vectors)), metric="cosine", algorithm="brute").fit(vectors)
    return lambda asked: scores[found.kneighbors(asked, return_distance=False)].mean(1)


def multilayer_perceptron(vectors: np.ndarray, scores: np.ndarray, seed: int) -> Predictor:
    """A network of one hidden layer that predicts all Workers' scores."""
    network = MLPRegressor(  # alpha: questions are few, and far less learns them by heart
        hidden_layer_sizes=(HIDDEN,), alpha=1.0, learning_rate_init=3e-3, max_iter=200, random_state=seed
    )
    _quietly(network, vectors, scores if scores.shape[1] > 1 else scores.ravel())
    return lambda asked: network.predict(asked).reshape(len(asked), -1)


def logistic_regression(vectors: np.ndarray, scores: np.ndarray, seed: int) -> Predictor:
    """For each Worker the probability that it is right. A score between 0 and 1 counts as right to that part."""
    twice, labels = csr_array(np.concatenate([vectors, vectors])), np.repeat([1, 0], len(vectors))

    def probability(score: np.ndarray) -> Predictor:
        weights = np.concatenate([score, 1 - score])
        if min(score.sum(), (1 - score).sum()) == 0:  # always right, or never
            return lambda asked: np.full(len(asked), score.mean())
        used = weights > 0
        fitted = LogisticRegression(C=10.0, solver="liblinear", random_state=seed)
        fitted.fit(twice[used], labels[used], weights[used])
        return lambda asked: fitted.predict_proba(asked)[:, 1]

    return _by_worker(probability, scores)


def support_vectors(vectors: np.ndarray, scores: np.ndarray, seed: int) -> Predictor:
    """For each Worker a linear support vector machine of its score; margins of classifiers would not compare."""

    def machine(score: np.ndarray) -> Predictor:
        fitted = LinearSVR(C=1.0, epsilon=0.1, loss="squared_epsilon_insensitive", max_iter=5000, random_state=seed)
        _quietly(fitted, vectors, score)
        return fitted.predict

    return _by_worker(machine, scores)


FITS: dict[str, Fit] = {
    "knn": nearest_neighbours,
    "mlp": multilayer_perceptron,
    "logistic": logistic_regression,
    "svm": support_vectors,
    "mf": matrix_factorisation,
    "router_dc": router_dc,
}


class LearnedRouter:
    """One of FITS, or a fit of one's own named `package.module:function`, on the questions and scores of a training
    matrix."""

    def __init__(self, name: str, train: ResponseMatrix, embedding: Embedding, seed: int):
        if not train.questions:
            raise DataError(f"baseline {name} needs training questions, of which there are none")
        self._embedding = embedding
        self._costs = train.mean_costs
        with threadpool_limits(1):  # so small that threads cost more than they save; and sums do not depend on cores
            fit = FITS[name] if name in FITS else _own_fit(name)
            self._predict = fit(embedding(train.texts), train.scores, seed)

    def ranked(self, texts: Sequence[str]) -> np.ndarray:
        """The places of all Workers for each question, the best first, i64[Q, W]."""
        utilities = np.array(self._utilities(texts))
        places = []
        for _ in range(utilities.shape[1]):
            best = best_workers(utilities, self._costs)
            places.append(best)
            utilities[np.arange(len(best)), best] = -np.inf
        return np.stack(places, 1)

    def choose(self, texts: Sequence[str]) -> np.ndarray:
        """The place of the Worker for each question, i64[Q]."""
        return best_workers(self._utilities(texts), self._costs)

    def outcomes(self, test: ResponseMatrix) -> tuple[Outcome, ...]:
        """What its choices earn on the questions of another matrix of the same Workers."""
        return chosen(test, self.choose(test.texts))

    def _utilities(self, texts: Sequence[str]) -> np.ndarray:
        vectors = self._embedding(texts)
        with threadpool_limits(1):
            return np.asarray(self._predict(vectors), float)


def without_questions_of(train: ResponseMatrix, asked: Sequence[MatrixQuestion]) -> ResponseMatrix:
    """The training questions that no test question asks, but for case, spaces and typography; learned routers must not
    know these."""
    texts, ids = {normalised(question.text) for question in asked}, {question.id for question in asked}
    kept = [
        question.id for question in train.questions if question.id not in ids and normalised(question.text) not in texts
    ]
    return train.select(kept)


def _own_fit(name: str) -> Fit:
    """The fit of that name, whose predictor is held to its shape."""
    function = imported_function(name, "baseline")

    def fit(vectors: np.ndarray, scores: np.ndarray, seed: int) -> Predictor:
        predict = function(vectors, scores, seed)
        if not callable(predict):
            raise ConfigError(f"baseline {name} must return a function of vectors, not {type(predict).__name__}")

        def checked(asked: np.ndarray) -> np.ndarray:
            utilities, shape = np.asarray(predict(asked), float), (len(asked), scores.shape[1])
            if utilities.shape != shape or not np.isfinite(utilities).all():
                raise ConfigError(
                    f"baseline {name} must give a finite number for each question and Worker, {list(shape)}; it gave "
                    f"{list(utilities.shape)}"
                )
            return utilities

        return checked

    return fit


def _by_worker(fit: Callable[[np.ndarray], Predictor], scores: np.ndarray) -> Predictor:
    predictors = [fit(score) for score in scores.T]
    return lambda asked: np.stack([predict(asked) for predict in predictors], 1)


def _quietly(model, vectors: np.ndarray, scores: np.ndarray) -> None:
    """Fits; that the last digits still move when the iterations are over is no news to a user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(vectors, scores)
