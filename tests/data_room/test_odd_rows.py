"""Rows with any one column missing or of another kind: a drop with a reason or a DataError that says where, nothing
else; and what is made of them all the same can be written down and read back."""

import collections
import copy
import json
import pathlib

import pytest

from rw.data import prepared
from rw.data.rows import read_rows
from rw.data.source import load
from rw.errors import DataError

RECORDS = pathlib.Path(__file__).parent.parent / "data" / "sources"
TESTS = json.dumps({"inputs": ["1"], "outputs": ["2"]})
CALLED = json.dumps({"fn_name": "f", "inputs": [[1]], "outputs": [[2]]})
TRIVIA = {"value": "x", "aliases": ["y"]}
RELEASE = {"Value": "x", "Aliases": ["y"]}
GPQA = {"Record ID": "r", "Question": "?", "Correct Answer": "a"} | {f"Incorrect Answer {n}": f"{n}" for n in (1, 2, 3)}


def first(name):
    return dict(next(read_rows(RECORDS / name)).values)


ROWS = [
    ("math", first("math.jsonl")),
    ("math_500", first("math500.jsonl")),
    ("aime", first("aime25.jsonl")),
    ("apps", first("apps.jsonl")),
    ("live_code_bench", first("livecodebench.jsonl")),
    ("live_code_bench", dict(list(read_rows(RECORDS / "livecodebench.jsonl"))[1].values)),
    ("super_gpqa", first("supergpqa.jsonl")),
    ("super_gpqa", first("supergpqa_folded.jsonl")),
    ("bbh", first("bbh.jsonl")),
    ("omni_math", {"problem": "?", "answer": "1", "domain": ["a"], "difficulty": 1.0, "source": "s", "solution": ""}),
    ("gsm8k", {"question": "?", "answer": "#### 1"}),
    ("taco", {"question": "?", "input_output": TESTS, "starter_code": "", "tags": "['a']", "difficulty": "EASY"}),
    ("taco", {"question": "?", "input_output": CALLED, "starter_code": "def f(x):"}),
    ("gpqa_diamond", GPQA),
    ("sat_bench", {"scenario": "s", "conditions": ["c"], "question": "?", "satisfiable": True, "num_clauses": 3}),
    ("trivia_qa", {"id": "a", "question": "?", "golden_answers": ["x"]}),
    ("trivia_qa", {"question_id": "a", "question": "?", "answer": TRIVIA}),
    ("trivia_qa", {"QuestionId": "a", "Question": "?", "Answer": RELEASE}),
    ("simple_qa_verified", {"original_index": "1", "problem": "?", "answer": "x", "topic": "t"}),
    ("human_eval", {"task_id": "a", "prompt": "def f(x):\n", "entry_point": "f", "test": "def check(c): pass"}),
    ("mbpp", {"task_id": 1, "text": "?", "test_list": ["assert f()"], "test_setup_code": ""}),
    ("custom", {"id": 1, "domain": "d", "prompt": "?", "answer": "1", "scorer": "math", "metadata": {"a": 1}}),
    ("custom", {"id": 1, "domain": "d", "prompt": "?", "answer": "A", "scorer": "super_gpqa", "letters": "AB"}),
]
ODD = [None, "", " ", "x", "[", "null", "{}", "[]", 0, -1, 1.5, True, [], {}, [None], [[]], ["x", 1], {"a": None}]
ODD += ['{"inputs": [[[["a"]]]], "outputs": [3]}', '{"fn_name": 3, "inputs": [[1]], "outputs": [1]}', "[{}]", "[[]]"]


@pytest.mark.parametrize("dataset, row", ROWS, ids=[f"{name}-{place}" for place, (name, _) in enumerate(ROWS)])
def test_odd_columns_are_drops_or_errors_that_say_where(dataset, row, tmp_path):
    assert len(load(dataset, [row]).queries) == 1
    ends = collections.Counter()
    for column in row:
        changed = [{**row, column: value} for value in ODD] + [{k: v for k, v in row.items() if k != column}]
        for values in changed:
            try:
                loaded = load(dataset, [copy.deepcopy(values)])
            except DataError as error:
                assert str(error).startswith("row 1: ") and "\n" not in str(error)
                ends["refused"] += 1
                continue
            assert loaded.rows == 1
            ends["kept" if loaded.queries else "dropped"] += 1
            prepared.write_queries(tmp_path / "out.jsonl", loaded.queries, {})
            assert prepared.read_queries(tmp_path / "out.jsonl").queries == loaded.queries
    assert ends["kept"] + ends["dropped"] and ends["refused"]
