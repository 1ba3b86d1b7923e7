"""Loaders of mathematics: real records of MATH, MATH-500 and AIME, made-up ones in the schemas of the others."""

import datetime
import pathlib

import pytest

from rw.data.answer_formats import MATHS
from rw.data.source import load
from rw.data.sources.maths import last_box
from rw.data.sources.schema import Options
from rw.errors import DataError

RECORDS = pathlib.Path(__file__).parent.parent / "data" / "sources"


def references(loaded):
    return [query.reference for query in loaded.queries]


@pytest.mark.parametrize(
    "text, box",
    [
        (r"so $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"first $\boxed{(3,-5)}$, then $\boxed{(0,0)}$ too", "(0,0)"),
        (r"$\boxed{\left\{ x \mid \{1\} \right.}$", r"\left\{ x \mid \{1\} \right."),
        (r"is $\boxed 2$ and $3$", "2"),
        (r"is \[\boxed 12\]", "12"),
        (r"$\fbox{7}$", "7"),
        (r"\boxed{\text{a \fbox{b} c}}", "b"),
        (r"$\boxed {\text{(A)}}$", r"\text{(A)}"),
        (r"\boxedtext{3}", None),
        (r"\boxed{3", None),
        (r"\boxed{}", ""),
        (r"\boxed", ""),
        ("none", None),
    ],
)
def test_the_last_box_with_its_braces_matched(text, box):
    assert last_box(text) == box


def test_math_records():
    loaded = load("math", RECORDS / "math.jsonl", split="test")
    assert len(loaded.queries) == loaded.rows == 12 and not loaded.dropped
    assert references(loaded)[:2] == ["(0,0)", "35"]  # both have two boxes
    first = loaded.queries[0]
    assert first.dataset == first.domain == "math" and first.id.startswith("math/") and len(first.id) == 17
    assert first.prompt.endswith(f"\n\n{MATHS}") and first.metadata["level"] in range(1, 6) and first.metadata["type"]
    assert loaded.files[0]["name"] == "math.jsonl" and loaded.files[0]["bytes"] == 4202


def math_row(number, **changed):
    row = {"problem": f"Find ${number}$.", "level": "Level 3", "type": "Algebra", "solution": f"$\\boxed{{{number}}}$"}
    return {**row, **changed}


def test_levels_are_chosen_and_unknown_ones_are_none_of_them():
    rows = [math_row(number, level=f"Level {number}") for number in range(1, 6)] + [math_row(6, level="Level ?")]
    every, some = load("math", rows), load("math", rows, options=Options(levels=frozenset(range(2, 6))))
    assert references(every) == list("123456") and "level" not in every.queries[-1].metadata
    assert references(some) == list("2345")
    assert some.dropped == {"level_not_wanted": 1, "level_unknown": 1}


def test_math_rows_without_answer_are_dropped_by_reason():
    rows = [math_row(1), math_row(2, solution="so 2"), math_row(3, solution=r"\boxed{ }"), math_row(4, problem=" ")]
    loaded = load("math", rows)
    assert references(loaded) == ["1"]
    assert loaded.dropped == {"no_boxed_answer": 1, "empty_answer": 1, "empty_problem": 1}
    assert loaded.examples["no_boxed_answer"] == ("row 2",)


def test_math_500_records():
    loaded = load("math_500", RECORDS / "math500.jsonl")
    assert len(loaded.queries) == 8 and not loaded.dropped
    for query in loaded.queries:
        assert query.id.startswith("math_500/test/") and not query.id.endswith(".json")
        assert isinstance(query.metadata["level"], int) and query.reference


@pytest.mark.parametrize(
    "answer, reference",
    [
        ("3n", "3n"),
        ("\\[\n\\boxed{\\frac{n+1}{4n-2}}\n\\]", "\\frac{n+1}{4n-2}"),
        ("\\(\\boxed{337}\\)", "337"),
        ("\\[ a > b \\]", "a > b"),
        ("\\(x\\) and \\(y\\)", "\\(x\\) and \\(y\\)"),
        ("$$ 5 $$", "5"),
        ("\\text{No such } n \\text{ exists}", "\\text{No such } n \\text{ exists}"),
        (7, "7"),
    ],
)
def test_omni_math_answers_lose_box_and_display(answer, reference):
    row = {"domain": ["A -> B"], "difficulty": 6.5, "problem": "P?", "solution": "", "answer": answer, "source": "cup"}
    loaded = load("omni_math", [row, {**row, "problem": "Q?", "answer": None}])
    assert references(loaded) == [reference]
    assert loaded.queries[0].metadata == {"difficulty": 6.5, "source": "cup", "domain": ["A -> B"]}
    assert loaded.dropped == {"empty_answer": 1}


def test_metadata_holds_what_json_can():
    row = {"problem": "P?", "answer": "1", "difficulty": float("nan"), "source": datetime.date(2024, 2, 3)}
    assert load("omni_math", [row]).queries[0].metadata == {"source": "2024-02-03"}


def test_gsm8k_answers_follow_the_last_mark():
    rows = [{"question": f"Q{n}?", "answer": text} for n, text in enumerate(["a\n#### 1,234", "b 5", "c ####  "])]
    loaded = load("gsm8k", rows)
    assert references(loaded) == ["1234"] and loaded.dropped == {"no_final_answer": 2}


def test_aime_records_lose_their_zeros():
    loaded = load("aime", RECORDS / "aime24.jsonl")
    assert references(loaded) == ["45", "33", "236", "321"]  # two of them written 045 and 033
    assert len(load("aime", RECORDS / "aime25.jsonl").queries) == 3


def test_aime_ids_of_two_years_may_be_the_same_number():
    rows = [{"id": 1, "problem": f"Year {year}?", "answer": answer} for year, answer in ((2024, "007"), (2025, 12))]
    loaded = load(
        "aime",
        [
            *rows,
            {"id": 2, "problem": "?", "answer": "1000"},
            {"problem": "x", "answer": "1/2"},
            {"problem": "y", "answer": "1" * 5000},
        ],
    )
    assert references(loaded) == ["7", "12"] and len({query.id for query in loaded.queries}) == 2
    assert loaded.dropped == {"answer_not_of_aime": 3}


def test_rows_of_another_set_are_refused_with_place_and_columns():
    with pytest.raises(DataError, match=r"aime25.jsonl line 1: no column solution; the row has id, problem, answer"):
        load("math", RECORDS / "aime25.jsonl")
