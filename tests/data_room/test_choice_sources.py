"""Loaders of questions with lettered options: real records of SuperGPQA, made-up ones for GPQA."""

import collections
import pathlib

import pytest

from rw.data.answer_formats import LETTER
from rw.data.source import load
from rw.errors import DataError

RECORDS = pathlib.Path(__file__).parent.parent / "data" / "sources"


def super_row(options, answer, letter, **changed):
    row = {"uuid": "u1", "question": "Which?", "options": options, "answer": answer, "answer_letter": letter}
    return {**row, "discipline": "Law", "is_calculation": False, **changed}


def test_super_gpqa_records_have_four_to_ten_options():
    loaded = load("super_gpqa", RECORDS / "supergpqa.jsonl")
    assert len(loaded.queries) == 8 and not loaded.dropped
    assert {len(query.metadata["letters"]) for query in loaded.queries} == set(range(4, 11))
    for query in loaded.queries:
        assert query.reference in query.metadata["letters"] and query.prompt.endswith(f"\n\n{LETTER}")
        assert f"\n{query.metadata['letters'][-1]}. " in query.prompt


def test_options_folded_into_the_question_give_the_same_questions():
    plain, folded = (load("super_gpqa", RECORDS / f"supergpqa{name}.jsonl") for name in ("", "_folded"))
    squeezed = [[" ".join(query.prompt.split()) for query in loaded.queries] for loaded in (plain, folded)]
    assert squeezed[0] == squeezed[1]
    assert [query.reference for query in plain.queries] == [query.reference for query in folded.queries]


def test_super_gpqa_rows_that_contradict_themselves_are_dropped():
    four = ["a", "b", "c", "d"]
    rows = [
        super_row(four, "b", "B"),
        super_row(four, "b", "C", uuid="u2"),
        super_row(four, "z", "A", uuid="u3"),
        super_row(four, "b", "E", uuid="u4"),
        super_row(["a", "b", "b", "d"], "b", "B", uuid="u5"),
        super_row(four[:3], "b", "B", uuid="u6"),
        super_row([str(number) for number in range(11)], "1", "B", uuid="u7"),
        super_row(four, "c", None, uuid="u8", question="And?"),
        super_row("a b", "a", "A", uuid="u9"),
    ]
    loaded = load("super_gpqa", rows)
    assert [(query.id, query.reference) for query in loaded.queries] == [("super_gpqa/u1", "B"), ("super_gpqa/u8", "C")]
    assert loaded.queries[0].metadata == {"letters": "ABCD", "discipline": "Law", "is_calculation": False}
    assert loaded.dropped == {
        "letter_and_answer_differ": 3,
        "right_option_twice": 1,
        "options_not_4_to_10": 2,
        "options_not_texts": 1,
    }


def test_one_question_with_other_options_is_another_question():
    rows = [super_row(["a", "b", "c", last], "b", "B", uuid=last) for last in "de"]
    assert len(load("super_gpqa", rows).queries) == 2


def gpqa_row(number):
    wrong = {f"Incorrect Answer {place}": f"wrong {number}.{place}\n" for place in (1, 2, 3)}
    return {"Record ID": f"rec{number}", "Question": f"Which {number}?", "Correct Answer": f" right {number}", **wrong}


def test_gpqa_options_are_shuffled_by_the_item_alone():
    rows = [gpqa_row(number) for number in range(400)]
    loaded = load("gpqa_diamond", rows)
    letters = collections.Counter(query.reference for query in loaded.queries)
    assert set(letters) == set("ABCD") and min(letters.values()) > 70
    for query in loaded.queries:
        assert f"\n{query.reference}. right" in query.prompt
    alone = load("gpqa_diamond", rows[7:8]).queries[0]
    assert alone == loaded.queries[7] and alone.id == "gpqa_diamond/rec7" and alone.metadata["letters"] == "ABCD"
    assert [query.reference for query in loaded.queries[:6]] == list("DAAACC")


def test_gpqa_rows_with_the_right_answer_twice_are_dropped():
    loaded = load("gpqa_diamond", [{**gpqa_row(1), "Incorrect Answer 2": "right 1 "}])
    assert loaded.dropped == {"right_option_twice": 1}


def test_rows_without_options_are_refused():
    with pytest.raises(DataError, match="row 1: no column options"):
        load("super_gpqa", [{"question": "Which?", "answer": "B. x"}])
