"""Scorers of short answers: literal answers and verdicts, SQuAD's order of normalisation, real alias lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rw.scoring import SCORERS
from rw.scoring.short_answer import normalise
from rw.types import Query


def query(reference, dataset="trivia_qa") -> Query:
    return Query("q1", dataset, "recall", "who?", reference)


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("The Beatles!", "beatles"),
        ("  A   tale\tof\ntwo cities ", "tale of two cities"),
        ("a-the", "athe"),  # punctuation goes before articles: one word, which is no article
        ("the-theatre", "thetheatre"),
        ("an, the; a", ""),
        ("Theodore, another and", "theodore another and"),
        ("U.S.A.", "usa"),
        ("$1,000.50", "100050"),
        ("O'Neill", "oneill"),
        ("L’Aquila", "l’aquila"),  # SQuAD's punctuation is ASCII's
        ("May\u00a08,\u00a02018", "may 8 2018"),
        ("ÉCOLE", "école"),
    ],
)
def test_normalisation_in_squads_order(text, normalised):
    assert normalise(text) == normalised


ALIASES = ("Samuel Langhorne Clemens", "Mark Twain", "The Sage of Hannibal")


@pytest.mark.parametrize(
    ("answer", "correct"),
    [
        ("Mark Twain", True),
        ("mark twain.", True),
        ("sage of hannibal", True),
        ("\n Samuel  Langhorne\nClemens \n", True),
        ("Mark Twain wrote it", False),
        ("MarkTwain", False),
        ("Twain", False),
        ("", False),
        ("The.", False),
    ],
)
@pytest.mark.parametrize("dataset", ["trivia_qa", "nq"])
def test_exact_match_with_any_alias(dataset, answer, correct):
    assert SCORERS[dataset](answer, query(ALIASES)).correct is correct


def test_empty_answer_never_matches_an_alias_that_normalises_to_nothing():
    assert not SCORERS["trivia_qa"]("the", query(("The The", "!!!"))).correct
    assert not SCORERS["simulated"](" . ", query(".")).correct


def test_one_reference_may_be_a_bare_string_and_is_not_read_letter_by_letter():
    assert SCORERS["trivia_qa"]("Lima", query("Lima")).correct
    assert not SCORERS["trivia_qa"]("L", query("Lima")).correct


@pytest.mark.parametrize(
    ("answer", "reference", "correct"),
    [
        ("14", "14", True),
        (" 14. ", "14", True),
        ("14", 14, True),
        ("-3", "3", False),
        ("1.5", "15", False),
        ("Red  Fox", "red fox", True),
        ("the fox", "fox", False),
        ("14 or 15", "14", False),
        ("", "", False),
    ],
)
def test_simulated_answers_keep_sign_and_decimal_point(answer, reference, correct):
    assert SCORERS["simulated"](answer, query(reference, "simulated")).correct is correct


@given(
    st.sampled_from(sorted(SCORERS)),
    st.none() | st.integers() | st.text(),
    st.none() | st.text() | st.integers() | st.lists(st.text() | st.none()) | st.dictionaries(st.text(), st.text()),
)
def test_scorers_never_raise(dataset, answer, reference):
    verdict = SCORERS[dataset](answer, query(reference, dataset))
    assert verdict.correct in (True, False) and isinstance(verdict.detail, str)


# Rows as TriviaQA's alias lists have them: noise, accents and disambiguations included.
REAL_ROWS = [
    (("Climate", "World temperature", "Climatic zone", "Climate system"), "climatic zone", True),
    (("Environment of Italy", "Italiën", "ISO 3166-1:IT", "Italy", "Itàlia"), "ITALY.", True),
    (("Environment of Italy", "Italiën", "ISO 3166-1:IT", "Italy", "Itàlia"), "itàlia", True),
    (("Environment of Italy", "Italiën", "ISO 3166-1:IT", "Italy", "Itàlia"), "ISO 31661IT", True),
    (("Caesar (disambiguation)", "The Caesars", "Cæsar"), "Caesars", True),
    (("Caesar (disambiguation)", "The Caesars", "Cæsar"), "The Césars", False),
]


@pytest.mark.parametrize(("aliases", "answer", "correct"), REAL_ROWS)
def test_real_alias_lists(aliases, answer, correct):
    assert SCORERS["trivia_qa"](answer, query(aliases)).correct is correct
