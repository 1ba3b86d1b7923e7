"""Learned routers find a rule that is there, break ties by cost, never see a test question, and repeat themselves."""

import dataclasses
import sys

import numpy as np
import pytest

from rw.errors import ConfigError, DataError
from rw.evaluation.baselines import NAMES, choose_names, single_call_arms, without_answers
from rw.evaluation.contrastive_router import contrast
from rw.evaluation.embeddings import HashedNgrams, SentenceEncoder
from rw.evaluation.learned_routers import FITS, LearnedRouter, without_questions_of
from rw.evaluation.response_matrix import Cell, MatrixQuestion, MatrixWorker, ResponseMatrix

WORKERS = (MatrixWorker("chemist", 1.0, 1.0), MatrixWorker("poet", 3.0, 3.0), MatrixWorker("neither", 0.1, 0.1))
TOPICS = ("molecule acid bond salt".split(), "verse rhyme stanza sonnet".split())


def asked(count: int, first: int = 0) -> ResponseMatrix:
    """Questions of two topics in turn; the chemist is right on the first one, the poet on the second."""
    questions, cells = [], []
    for number in range(first, first + count):
        topic = number % 2
        words = [TOPICS[topic][(number // 2 + k) % 4] for k in range(3)]
        questions.append(MatrixQuestion(f"q{number}", f"What of {' '.join(words)} {number}?", "nq", "recall", "recall"))
        right = [topic == 0, topic == 1, False]
        cells.append(tuple(Cell(float(r), r, w.price / 1e6, "x") for r, w in zip(right, WORKERS, strict=True)))
    return ResponseMatrix(WORKERS, tuple(questions), tuple(cells))


TRAIN, TEST = asked(64), asked(16, first=100)


@pytest.fixture(scope="module")
def embedding():
    return HashedNgrams(TRAIN.texts)


@pytest.mark.parametrize("name", FITS)
def test_each_finds_a_rule_that_separates_the_workers(name, embedding):
    router = LearnedRouter(name, TRAIN, embedding, seed=0)
    assert router.choose(TEST.texts).tolist() == [0, 1] * 8
    assert all(one.correct for one in router.outcomes(TEST))


@pytest.mark.parametrize("name", FITS)
def test_the_same_seed_gives_the_same_router(name, embedding):
    noisy = dataclasses.replace(TRAIN, cells=TRAIN.cells[3:] + TRAIN.cells[:3])
    one, other = (LearnedRouter(name, noisy, embedding, seed=1)._utilities(TEST.texts) for _ in range(2))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", FITS)
def test_workers_that_are_never_right_or_always_can_be_learnt_from(name, embedding):
    always = tuple((Cell(0.0, False, 1e-6), Cell(1.0, True, 2e-6), Cell(0.0, False, 1e-6)) for _ in TRAIN.cells)
    router = LearnedRouter(name, dataclasses.replace(TRAIN, cells=always), embedding, seed=0)
    assert router.choose(TEST.texts).tolist() == [1] * 16


@pytest.mark.parametrize("name", FITS)
@pytest.mark.filterwarnings("error")
def test_of_one_worker_there_is_nothing_to_learn_and_nothing_to_warn_of(name, embedding):
    alone = ResponseMatrix(WORKERS[:1], TRAIN.questions, tuple(row[:1] for row in TRAIN.cells))
    assert LearnedRouter(name, alone, embedding, seed=0).choose(TEST.texts).tolist() == [0] * 16


def test_neighbours_that_say_the_same_of_two_workers_leave_it_to_the_cost(embedding):
    alike = tuple((Cell(1.0, True, 3e-6), Cell(1.0, True, 2e-6), Cell(0.0, False, 1e-6)) for _ in TRAIN.cells)
    router = LearnedRouter("knn", dataclasses.replace(TRAIN, cells=alike), embedding, seed=0)
    assert router.choose(TEST.texts).tolist() == [1] * 16
    assert router.ranked(TEST.texts)[0].tolist() == [1, 0, 2]


def test_scores_between_right_and_wrong_count_for_as_much(embedding):
    graded = tuple((Cell(0.4, False, 1e-6), Cell(0.6, False, 2e-6), Cell(0.1, False, 1e-6)) for _ in TRAIN.cells)
    for name in FITS:
        router = LearnedRouter(name, dataclasses.replace(TRAIN, cells=graded), embedding, seed=0)
        assert router.choose(TEST.texts).tolist() == [1] * 16, name


def test_what_test_questions_earn_changes_no_choice(embedding):
    """A router gets the texts of test questions and nothing else of them, each by itself."""
    wrong = tuple((Cell(0.0, False, 1.0),) * 3 for _ in TEST.cells)
    turned = dataclasses.replace(TEST, cells=wrong)
    for name in ("knn", "svm"):
        router = LearnedRouter(name, TRAIN, embedding, seed=0)
        picked = [one.workers for one in router.outcomes(TEST)]
        assert picked == [one.workers for one in router.outcomes(turned)]
        alone = [router.outcomes(TEST.select([question.id]))[0].workers for question in TEST.questions]
        assert picked == alone


def test_vectors_know_training_questions_alone():
    before = HashedNgrams(TRAIN.texts)(TEST.texts)
    after = HashedNgrams(TRAIN.texts)
    after(["molecule " * 50])
    np.testing.assert_array_equal(before, after(TEST.texts))
    np.testing.assert_allclose(np.linalg.norm(before, axis=1), 1.0, rtol=1e-5)


def test_training_questions_that_are_tested_are_left_out():
    same_text = dataclasses.replace(TRAIN.questions[5], text=TEST.questions[2].text.upper())
    same_id = dataclasses.replace(TRAIN.questions[6], id=TEST.questions[0].id)
    questions = (*TRAIN.questions[:5], same_text, same_id, *TRAIN.questions[7:])
    kept = without_questions_of(dataclasses.replace(TRAIN, questions=questions), TEST.questions)
    assert [one.id for one in kept.questions] == [one.id for n, one in enumerate(TRAIN.questions) if n not in (5, 6)]
    assert without_questions_of(TRAIN, TEST.questions) == TRAIN


def test_without_training_questions_there_is_nothing_to_learn(embedding):
    with pytest.raises(DataError, match="training questions"):
        LearnedRouter("knn", TRAIN.select([]), embedding, seed=0)
    with pytest.raises(DataError, match="training questions"):
        HashedNgrams([])


def test_the_contrastive_loss_by_hand():
    likeness = np.array([[1.0, 0.0, 2.0], [0.5, 0.5, 0.5]])
    positives, negatives = np.array([[1, 0, 0], [0, 0, 0]], bool), np.array([[0, 1, 1], [0, 0, 0]], bool)
    expected = -np.log(np.e / (np.e + 1 + np.e**2))
    np.testing.assert_allclose(contrast(likeness, positives, negatives), expected, rtol=1e-6)
    assert float(contrast(likeness, np.zeros_like(positives), negatives)) == 0.0


def test_names_are_chosen_in_their_order_and_unknown_ones_get_the_nearest():
    assert choose_names((), ()) == NAMES
    assert choose_names(("baseline_knn", "always"), ()) == ("always", "knn")
    assert "vote" not in choose_names((), ("vote",)) and "cascade" not in without_answers()
    with pytest.raises(ConfigError, match="unknown baseline 'knm'; did you mean 'knn'"):
        choose_names(("knm",), ())
    with pytest.raises(ConfigError, match="'vote' cannot be had"):
        choose_names(("vote",), (), without_answers())
    with pytest.raises(ConfigError, match="no baseline is left"):
        choose_names(("knn",), ("knn",))


def test_every_single_call_baseline_answers_every_question_in_order(embedding):
    learned = {name: LearnedRouter(name, TRAIN, embedding, 0) for name in ("knn", "svm")}
    names = [name for name in NAMES if name not in FITS or name in learned]
    arms = dict(single_call_arms(names, TEST, 0, learned.__getitem__))
    assert [name for name in arms if "always" in name] == [f"baseline_always_{worker.id}" for worker in WORKERS]
    assert {"baseline_vote", "baseline_knn", "baseline_oracle"} < set(arms) and "baseline_knn_multi" not in arms
    for outcomes in arms.values():
        assert [one.query_id for one in outcomes] == [question.id for question in TEST.questions]


def test_an_encoder_without_its_package_is_refused_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"rw\[encoder\]"):
        SentenceEncoder(str(tmp_path))


OWN = """
import numpy as np

def centroids(vectors, scores, seed):
    centres = scores.T @ vectors / np.maximum(scores.sum(0), 1.0)[:, None]
    return lambda asked: asked @ centres.T

def knn(vectors, scores, seed):
    return lambda asked: np.zeros((len(asked), 3))

def narrow(vectors, scores, seed):
    return lambda asked: np.zeros(len(asked))

def unsure(vectors, scores, seed):
    return lambda asked: np.full((len(asked), 3), np.nan)

def nothing(vectors, scores, seed):
    pass
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_fits.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_fits"
    sys.modules.pop("own_fits", None)


def test_a_fit_of_ones_own_is_a_baseline(own, embedding):
    names = choose_names([f"{own}:centroids", "knn"], [])
    assert names == ("knn", f"{own}:centroids")
    assert choose_names([f"{own}:centroids"], []) == (f"{own}:centroids",)
    arms = dict(single_call_arms(names, TEST, 0, lambda name: LearnedRouter(name, TRAIN, embedding, 0)))
    assert list(arms) == ["baseline_knn", "baseline_centroids"]
    assert all(one.correct for one in arms["baseline_centroids"])


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["own_fits:knn"], "has the name of one of rw's"),
        (["own_fits:centroid"], "cannot be loaded"),
        (["own_fits:OWN"], "cannot be loaded"),
        (["own_fits:centroids", "rw.elsewhere:centroids"], "cannot be loaded"),
    ],
)
def test_what_is_no_fit_is_refused_before_anything_is_asked(own, names, said):
    with pytest.raises(ConfigError, match=said):
        choose_names(names, [])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("narrow", r"for each question and Worker, \[16, 3\]; it gave \[16\]"),
        ("unsure", "a finite number"),
        ("nothing", "must return a function of vectors, not NoneType"),
    ],
)
def test_a_fit_that_predicts_something_else_is_named(own, embedding, name, said):
    with pytest.raises(ConfigError, match=said):
        LearnedRouter(f"{own}:{name}", TRAIN, embedding, 0).choose(TEST.texts)
