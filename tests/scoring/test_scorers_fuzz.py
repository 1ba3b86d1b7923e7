"""On any text a scorer gives a verdict, soon: the worst texts known, and random mixtures of what breaks parsers."""

import os
import pathlib
import sys
import time

import pytest

from rw.scoring import scorers
from rw.scoring.config import ScoringConfig
from rw.types import Query, Verdict, VerdictKind

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "data" / "scorers"))
from hostile_texts import SLOW, WORST, random_texts  # noqa: E402

FULL = bool(os.environ.get("RW_TEST_FULL"))
COUNT = 10_000 if FULL else 300
TIME_LIMIT_S = 0.5  # of one comparison
PATIENCE_S = 60.0  # nothing may hang; how fast things are is measured elsewhere

REFERENCES = {
    "math": (r"\frac{1}{2}", "12", r"x \in [-2,7]", "(3,4]", r"\text{Yes}", "x^2+1=0", "1, 5, 9", r"\pi", "n odd"),
    "aime": ("045",),
    "super_gpqa": ("B",),
    "sat_bench": ("SAT", "UNSAT"),
    "bbh": ("(B)", "] ) }", "valid", "12", "b a c"),
    "trivia_qa": (("Mark Twain", "The The"),),
    "simple_qa_verified": ("150 (acceptable range: anything between 148 and 152)", "tramp steamer (or collier)", "3"),
    "simulated": ("14",),
}


def verdicts(dataset, texts, config):
    score, references = scorers(config)[dataset], REFERENCES[dataset]
    for number, text in enumerate(texts):
        query = Query("q1", dataset, "d", "?", references[number % len(references)], {"letters": "ABCD"})
        began = time.monotonic()
        verdict = score(text, query)
        assert time.monotonic() - began < PATIENCE_S, (dataset, text[:200])
        assert isinstance(verdict, Verdict) and isinstance(verdict.detail, str) and len(verdict.detail) < 1000
        assert verdict.kind in (VerdictKind.PASS, VerdictKind.WRONG, VerdictKind.TIME, VerdictKind.CRASH)
        assert verdict.correct is (verdict.kind == VerdictKind.PASS)
        yield verdict


@pytest.mark.parametrize("dataset", sorted(REFERENCES))
def test_random_texts(dataset):
    config = ScoringConfig(math_s=TIME_LIMIT_S)
    assert len(list(verdicts(dataset, random_texts(COUNT, seed=5), config))) == COUNT


@pytest.mark.parametrize("rule", ["released", "string"])
def test_random_texts_under_the_other_rules_of_equality(rule):
    config = ScoringConfig(math_equality=rule, math_s=TIME_LIMIT_S)
    count = COUNT if FULL or rule == "string" else 100
    assert len(list(verdicts("math", random_texts(count, seed=6), config))) == count


@pytest.mark.parametrize("dataset", sorted(set(REFERENCES) - {"math", "aime"}))
def test_the_worst_texts(dataset):
    texts = [text for text in WORST for _ in REFERENCES[dataset]]  # each meets every reference
    assert len(list(verdicts(dataset, texts, ScoringConfig()))) == len(texts)


def test_the_worst_texts_in_mathematics_earn_nothing():
    texts = (*WORST, *(SLOW if FULL else SLOW[:1]))
    config = ScoringConfig(math_s=TIME_LIMIT_S)
    assert not any(verdict.correct for verdict in verdicts("math", texts, config))


@pytest.mark.parametrize("reference", [None, 12, 1.5, (), ("", 3, None), {"a": 1}, "", "\x00", "\ud800", "{" * 3000])
@pytest.mark.parametrize("dataset", sorted(REFERENCES))
def test_a_strange_reference_makes_no_answer_right_and_raises_nothing(dataset, reference):
    score = scorers(ScoringConfig())[dataset]
    assert score("an answer: -77", Query("q1", dataset, "d", "?", reference)).correct is False
    assert score(None, Query("q1", dataset, "d", "?", reference)).correct is False
