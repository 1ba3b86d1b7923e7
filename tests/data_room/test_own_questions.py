"""One's own questions: every kind of answer, and what to mend in a row that cannot be used."""

import pytest

from rw.data.source import load
from rw.errors import DataError
from rw.types import ProgramTests


def row(scorer, answer, **changed):
    return {"id": 7, "domain": "history", "prompt": "What?\n\nOne word.", "answer": answer, "scorer": scorer, **changed}


@pytest.mark.parametrize(
    "scorer, answer, reference",
    [
        ("math", "1/2", "1/2"),
        ("gsm8k", 12, "12"),
        ("bbh", "(B)", "(B)"),
        ("sat_bench", "UNSAT", "UNSAT"),
        ("trivia_qa", "Bonn", ("Bonn",)),
        ("nq", ["Bonn", "Bonn, Germany"], ("Bonn", "Bonn, Germany")),
        ("simple_qa_verified", "Bonn (or Beuel)", "Bonn (or Beuel)"),
        ("super_gpqa", "D", "D"),
        (
            "apps",
            {"inputs": ["1", ["2", "3"]], "outputs": ["a", "b"]},
            ProgramTests("stdin", ("1", "2\n3"), ("a", "b")),
        ),
        (
            "live_code_bench",
            {"fn_name": "f", "inputs": [[1]], "outputs": [[2]]},
            ProgramTests("function", ((1,),), (2,), function="f"),
        ),
        ("mbpp", ["assert f(1) == 2"], ProgramTests("asserts", ("assert f(1) == 2",))),
    ],
)
def test_answers_of_every_kind(scorer, answer, reference):
    (query,) = load("custom", [row(scorer, answer)]).queries
    assert (query.id, query.dataset, query.domain) == ("custom/7", scorer, "history")
    assert query.reference == reference and query.prompt == "What?\n\nOne word."


def test_letters_and_metadata_are_taken_along():
    (query,) = load("custom", [row("super_gpqa", "E", letters="ABCDE", metadata={"year": 1})]).queries
    assert query.metadata == {"year": 1, "letters": "ABCDE"}


@pytest.mark.parametrize(
    "bad, says",
    [
        (row("maths", "1"), "row 1: scorer 'maths' is unknown; did you mean 'math'"),
        (row("zzz", "1"), "scorer 'zzz' is unknown; known are math, "),
        (row("math", ""), "column answer is missing or empty; a row has id, domain"),
        ({"id": 1}, "column domain is missing"),
        (row("math", "1", extra=1), "unknown column 'extra'"),
        (row("math", ["1"]), "is not what the scorer math compares with"),
        (row("math", True), "is not what the scorer math compares with"),
        (row("super_gpqa", "E"), "answer 'E' of 7 must be one of the letters ABCD"),
        (row("super_gpqa", "A", letters="abc"), "letters 'abc' of 7 must be capitals"),
        (row("sat_bench", "sat"), "must be SAT or UNSAT"),
        (row("apps", {"inputs": ["1"], "outputs": []}), "answer of 7: tests without outputs"),
        (row("apps", "no JSON"), "answer of 7: tests not json"),
        (row("math", "1", metadata=[1]), "domain and prompt must be texts, metadata an object"),
        (row("math", "1", prompt=3), "domain and prompt must be texts, metadata an object"),
    ],
)
def test_rows_to_mend_are_named(bad, says):
    with pytest.raises(DataError, match=says):
        load("custom", [bad])
