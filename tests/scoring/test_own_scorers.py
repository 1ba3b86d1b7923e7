"""Scorers of one's own: found by name, checked, and served by the processes that judge a run's answers."""

import sys

import pytest

from rw.errors import ConfigError, FailureCause, InfrastructureFailure
from rw.rollout.scorer import Scorer
from rw.scoring import SCORERS, scorers
from rw.scoring.config import ScoringConfig
from rw.types import Query, Verdict

MODULE = """
from rw.types import Verdict

def close(answer, query):
    return abs(float(answer) - float(query.reference)) <= 0.5

def graded(answer, query):
    return Verdict(answer == query.reference, detail=f"{answer} against {query.reference}", scorer="graded/2")

def wordy(answer, query):
    return "yes"

TABLE = {}
"""
QUERY = Query("lengths/1", "lengths", "science", "How long is it?", "12.3")


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "length_scorers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("length_scorers", None)


def own(*entries):
    return ScoringConfig(own=entries)


def test_a_function_that_says_right_or_wrong_is_a_scorer():
    judge = scorers(own("lengths=length_scorers:close"))["lengths"]
    assert judge("12.5", QUERY) == Verdict(True, kind="pass", scorer="length_scorers:close")
    assert judge("13", QUERY) == Verdict(False, kind="wrong", scorer="length_scorers:close")


def test_a_verdict_is_passed_on_as_it_is():
    judge = scorers(own("lengths=length_scorers:graded"))["lengths"]
    assert judge("12.3", QUERY) == Verdict(True, "12.3 against 12.3", scorer="graded/2")


def test_those_of_rw_stay():
    assert scorers(own("lengths=length_scorers:close")).keys() == {*SCORERS, "lengths"}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("lengths", "not of the form 'name=package.module:function'"),
        ("lengths=close", "not of the form"),
        ("two words=length_scorers:close", "not of the form"),
        ("lengths=length_scorers:closer", "cannot be loaded"),
        ("lengths=length_scores:close", "PYTHONPATH"),
        ("lengths=length_scorers:TABLE", "not a function but dict"),
        ("math=length_scorers:close", "'math' is the name of a scorer of rw"),
    ],
)
def test_what_is_no_scorer_is_refused_with_the_reason(entry, words):
    with pytest.raises(ConfigError, match=words):
        scorers(own(entry))


def test_a_name_for_two_functions_is_refused():
    with pytest.raises(ConfigError, match="two functions"):
        own("lengths=length_scorers:close", "lengths=length_scorers:graded")


async def test_it_judges_in_the_processes_of_a_run():
    config = own("lengths=length_scorers:close", "wordy=length_scorers:wordy")
    async with Scorer("rw.rollout.feedback:served", config, processes=1) as scorer:
        assert (await scorer(QUERY, "12")).correct
        assert not (await scorer(QUERY, "99")).correct
        with pytest.raises(InfrastructureFailure, match="could not convert") as failure:
            await scorer(QUERY, "long")  # it raised: that says nothing of the answer
        assert failure.value.cause is FailureCause.SCORER_FAULT
        with pytest.raises(InfrastructureFailure, match="returned str, not a Verdict or a bool"):
            await scorer(Query("w", "wordy", "science", "?", "1"), "1")
