"""Loaders of SATBench, BIG-Bench Hard, TriviaQA and SimpleQA-Verified."""

import itertools
import json
import pathlib

import pytest

from rw.data import answer_formats
from rw.data.source import load
from rw.data.sources.reasoning import BBH_TASKS
from rw.data.sources.recall import unquoted
from rw.errors import DataError

RECORDS = pathlib.Path(__file__).parent.parent / "data" / "sources"


def sat_row(clauses):
    """A SATBench row about switches, its label found by trying all settings."""
    count = max(abs(literal) for clause in clauses for literal in clause)
    settings = itertools.product((False, True), repeat=count)
    satisfiable = any(
        all(any(setting[abs(literal) - 1] == (literal > 0) for literal in clause) for clause in clauses)
        for setting in settings
    )
    words = [" or ".join(f"switch {abs(x)} is {'on' if x > 0 else 'off'}" for x in clause) for clause in clauses]
    return {
        "dims": [count], "num_vars": count, "num_clauses": len(clauses), "clauses": clauses,
        "readable": "", "satisfiable": satisfiable, "sat_reason" if satisfiable else "unsat_reason": "as tried",
        "scenario": "There are switches.", "variable_mapping": "x(i,): switch i is on",
        "conditions": [f"{number}. {text}" for number, text in enumerate(words, start=1)],
        "question": "Is there a setting?", "formula_equivalence_check": "[EQUIVALENT]",
        "recovered_formula": "", "recovered_formula_full_text": "",
        "consistency_check_trace_history": [{"attempt": 0, "trace": "x" * 1000}],
    }  # fmt: skip


def test_sat_bench_labels_are_words_and_the_large_fields_are_gone():
    rows = [sat_row([[1, 2], [-1]]), sat_row([[1], [-1]]), sat_row([[1]] * 20 + [[2]] * 11)]
    loaded = load("sat_bench", rows)
    assert [query.reference for query in loaded.queries] == ["SAT", "UNSAT", "SAT"]
    assert [query.metadata["difficulty"] for query in loaded.queries] == ["easy", "easy", "hard"]
    first = loaded.queries[0]
    assert first.domain == "reason" and first.metadata == {"num_vars": 2, "num_clauses": 2, "difficulty": "easy"}
    assert first.prompt == (
        "There are switches.\n\n1. switch 1 is on or switch 2 is on\n2. switch 1 is off\n\nIs there a setting?"
        f"\n\n{answer_formats.SAT_LABEL}"
    )


def test_sat_bench_rows_without_a_label_are_dropped():
    row = sat_row([[1]])
    loaded = load("sat_bench", [{**row, "satisfiable": "true"}, {**row, "conditions": "1. x"}])
    assert loaded.dropped == {"label_not_boolean": 1, "conditions_not_texts": 1}


def test_bbh_records_of_all_tasks():
    loaded = load("bbh", RECORDS / "bbh.jsonl")
    assert [query.metadata["task"] for query in loaded.queries] == sorted(BBH_TASKS) and not loaded.dropped
    by_task = {query.metadata["task"]: query for query in loaded.queries}
    assert by_task["hyperbaton"].prompt.endswith(answer_formats.BBH_LETTERED)
    assert by_task["navigate"].prompt.endswith(answer_formats.BBH_LISTED)
    assert "yes or no" in by_task["sports_understanding"].prompt
    without_options = {task for task, query in by_task.items() if "Options:" not in query.prompt}
    assert without_options == set(answer_formats.BBH_FORMS)
    assert set(by_task["dyck_languages"].reference) <= set("()[]{}<> ")


def test_bbh_files_of_the_original_layout_are_named_after_their_tasks():
    loaded = load("bbh", RECORDS / "bbh", split="test")
    assert [query.metadata["task"] for query in loaded.queries] == ["dyck_languages"] * 3 + ["web_of_lies"] * 3


def test_bbh_rows_of_no_known_task_are_dropped(tmp_path):
    (tmp_path / "chess.json").write_text(json.dumps({"canary": "", "examples": [{"input": "?", "target": "a"}]}))
    assert load("bbh", tmp_path).dropped == {"unknown_task": 1}


def hub_answer(value, aliases):
    return {"value": value, "aliases": aliases, "normalized_aliases": ["x"], "type": "WikipediaEntity"}


def test_trivia_qa_in_three_layouts():
    release = {"Answer": {"Value": "Sunset", "Aliases": ["Sunset Blvd", "Sunset"]}, "Question": "C?", "QuestionId": "c"}
    rows = [
        {"id": "test_1", "question": "A?", "golden_answers": ["Mark Twain", "Twain", "Twain"]},
        {"question_id": "b", "question": "B?", "answer": hub_answer("Bonn", ["Bonn, Germany"]), "entity_pages": {}},
        release,
    ]
    loaded = load("trivia_qa", rows)
    assert [query.id for query in loaded.queries] == ["trivia_qa/test_1", "trivia_qa/b", "trivia_qa/c"]
    assert [query.reference for query in loaded.queries] == [
        ("Mark Twain", "Twain"),
        ("Bonn", "Bonn, Germany"),
        ("Sunset", "Sunset Blvd"),
    ]


def test_the_release_keeps_its_rows_under_a_key(tmp_path):
    row = {"Answer": {"Value": "v", "Aliases": []}, "Question": "C?", "QuestionId": "c", "SearchResults": []}
    (tmp_path / "web.json").write_text(json.dumps({"Data": [row], "Domain": "Web", "Version": 1.0}, indent=2))
    assert [query.reference for query in load("trivia_qa", tmp_path / "web.json").queries] == [("v",)]


def test_trivia_qa_rows_without_answer_are_dropped():
    rows = [
        {"question_id": "a", "question": "A?", "answer": hub_answer("<unk>", [])},
        {"id": "b", "question": "B?", "golden_answers": []},
        {"id": "c", "question": "C?", "golden_answers": "x"},
        {"id": "d", "question": "D?", "answer": "x"},
    ]
    assert load("trivia_qa", rows).dropped == {
        "answer_withheld": 1,
        "no_aliases": 1,
        "aliases_not_a_list": 1,
        "answer_not_an_object": 1,
    }


@pytest.mark.parametrize(
    "text, plain",
    [
        ('"Who wrote ""A B""?"', 'Who wrote "A B"?'),
        ('"""A"" is by whom?"', '"A" is by whom?'),
        ('Who wrote "A"?', 'Who wrote "A"?'),
        ('"Who wrote it?"', '"Who wrote it?"'),
        ('"A" or "B"', '"A" or "B"'),
        ('"A "" B" C"', '"A "" B" C"'),
        ("", ""),
    ],
)
def test_quotes_of_a_table_are_taken_off(text, plain):
    assert unquoted(text) == plain


def test_simple_qa_verified_keeps_the_answer_as_the_table_has_it(tmp_path):
    table = (
        "original_index,problem,answer,topic,answer_type,multi_step,requires_reasoning,urls\n"
        '5,"How ""many""?",150 (acceptable range: anything between 148 and 152),Art,Number,True,False,"a,b"\n'
        "6,Who?, Fried & Co,Art,Person,False,False,c\n7,Where?,,Art,Place,False,False,c\n"
    )
    (tmp_path / "table.csv").write_text(table)
    loaded = load("simple_qa_verified", tmp_path, split="test")
    assert [query.id for query in loaded.queries] == ["simple_qa_verified/5", "simple_qa_verified/6"]
    assert [query.reference for query in loaded.queries] == [
        "150 (acceptable range: anything between 148 and 152)",
        " Fried & Co",
    ]
    assert loaded.queries[0].prompt == f'How "many"?\n\n{answer_formats.SHORT_ANSWER}'
    assert loaded.queries[0].metadata["answer_type"] == "Number" and loaded.dropped == {"empty_answer": 1}


def test_a_row_without_its_columns_is_refused():
    with pytest.raises(DataError, match="row 1: no column question or Question"):
        load("trivia_qa", [{"id": "a", "golden_answers": ["x"]}])
