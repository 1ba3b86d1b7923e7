"""Prepared files: what goes in comes out, and what was changed, cut short or made by something else is refused."""

import hashlib
import json

import pytest

from rw.data import prepared
from rw.errors import DataError
from rw.types import ProgramTests, Query

TEXT = Query("math/1", "math", "math", "What is 1 + 1?\n\nLine.", "2", {"level": 1})
ALIASES = Query(
    "trivia_qa/x", "trivia_qa", "recall", "Who? a\u2028b \x85 \ud800 é", ("A", "B c"), {"tags": ["a", {"b": None}]}
)
STDIN = Query("apps/0", "apps", "code", "Add.", ProgramTests("stdin", ("1 2\n", "3\u20284"), ("3\n", "7"), public=1))
FUNCTION = Query(
    "live_code_bench/1",
    "live_code_bench",
    "code",
    "Call.",
    ProgramTests("function", (([1, 2], "a"), ([], "b")), ([1.5], None), "f", "import math\n"),
)
ASSERTS = Query("mbpp/1", "mbpp", "code", "Check.", ProgramTests("asserts", ("assert f() == 1",), setup="x = 1"))
ALL = (TEXT, ALIASES, STDIN, FUNCTION, ASSERTS)
HEADER = {"dataset": "mixed", "split": "train", "dropped": {"duplicate": 2}}


@pytest.fixture
def path(tmp_path):
    prepared.write_queries(tmp_path / "questions.jsonl", ALL, HEADER)
    return tmp_path / "questions.jsonl"


def change(path, line, old, new):
    lines = path.read_bytes().split(b"\n")
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new)
    path.write_bytes(b"\n".join(lines))


def seal(path):
    """Makes the header fit what follows, as a program that writes such files would."""
    head, body = path.read_bytes().split(b"\n", 1)
    header = {**json.loads(head), "records": body.count(b"\n"), "sha256": hashlib.sha256(body).hexdigest()}
    path.write_bytes(json.dumps(header).encode() + b"\n" + body)


def refusal(path):
    with pytest.raises(DataError) as caught:
        prepared.read_queries(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_what_was_written_comes_back(path):
    read = prepared.read_queries(path)
    assert read.queries == ALL
    assert {**read.header, "sha256": ""} == {"format": "rw-queries", "version": 1, **HEADER, "records": 5, "sha256": ""}
    assert prepared.is_prepared(path)


def test_the_file_is_ascii_with_a_line_a_question(path):
    text = path.read_bytes().decode("ascii")
    assert len(text.splitlines()) == text.count("\n") == 6
    assert hashlib.sha256(path.read_bytes().split(b"\n", 1)[1]).hexdigest() == json.loads(text.split("\n")[0])["sha256"]


def test_writing_replaces_and_leaves_nothing_aside(path):
    prepared.write_queries(path, [TEXT], {"dataset": "math"})
    assert prepared.read_queries(path).queries == (TEXT,)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "bad, says",
    [
        (TEXT, "two questions have the id 'math/1'"),
        (Query("n", "math", "math", "p", "1", {"x": float("nan")}), "n holds what JSON cannot"),
        (Query("o", "math", "math", "p", 3), "o: reference '3'"),
        (Query("o", "math", "math", "p", ("a", 3)), "o: reference"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(path, bad, says):
    before = path.read_bytes()
    with pytest.raises(DataError, match=says):
        prepared.write_queries(path, [TEXT, bad], {})
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_changed_character_is_noticed(path):
    change(path, 2, b"1 + 1", b"1 + 2")
    assert "changed after they were written" in refusal(path)


def test_a_torn_line_is_named(path):
    path.write_bytes(path.read_bytes()[:-20])
    assert "line 6 is torn" in refusal(path)


def test_a_missing_line_is_noticed(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert "ends after line 5 with 4 questions, and its header says 5" in refusal(path)


def test_a_repeated_id_is_named(path):
    change(path, 4, b'"apps/0"', b'"math/1"')
    seal(path)
    assert "line 4: a question before it has the id 'math/1'" in refusal(path)


@pytest.mark.parametrize(
    "line, old, new, says",
    [
        (2, b'"id": "math/1"', b'"id": 1', "line 2: question 1: id=1 must be a string"),
        (2, b'"reference": "2"', b'"reference": 2', "line 2: question 'math/1': reference '2'"),
        (2, b'"metadata": {"level": 1}', b'"metadata": 1', "line 2: question 'math/1': metadata=1"),
        (2, b'"domain"', b'"area"', "line 2: a question has the fields"),
        (2, b'"domain"', b"domain", "line 2 is no JSON"),
        (4, b'"stdin"', b'"stdout"', "line 4: question 'apps/0': tests of kind 'stdout'"),
        (4, b'"outputs": ["3\\n", ', b'"outputs": [', "line 4: question 'apps/0': inputs and outputs"),
        (4, b'["3\\n", ', b"[3, ", "line 4: question 'apps/0': inputs and outputs of stdin tests must be strings"),
        (4, b'"public"', b'"shown"', "line 4: question 'apps/0': tests have the fields"),
        (5, b'[[], "b"]', b"1", "line 5: question 'live_code_bench/1': the input of a function's test"),
        (5, b'"public": 0', b'"public": "0"', "line 5: question 'live_code_bench/1': function and setup"),
    ],
)
def test_lines_that_are_no_questions_are_named(path, line, old, new, says):
    change(path, line, old, new)
    seal(path)
    assert says in refusal(path)


def test_a_first_line_that_is_nested_without_end_is_no_header(tmp_path):
    deep = tmp_path / "deep.jsonl"
    deep.write_bytes(b"[" * 100_000)
    assert "line 1 is no header" in refusal(deep) and not prepared.is_prepared(deep)


def test_other_formats_and_versions_are_refused(path, tmp_path):
    change(path, 1, b'"version": 1', b'"version": 2')
    assert "version 2, and this rw reads 1" in refusal(path)
    other = tmp_path / "rows.jsonl"
    for text in ('{"problem": "1 + 1"}\n', "id,problem\n1,x\n", "", "[1]\n", "\xff"):
        other.write_text(text, encoding="latin-1")
        assert "rw data prepare --dataset NAME --input" in refusal(other)
        assert not prepared.is_prepared(other)
    other.write_text('{"format": "rw-queries", "version": 1, "records": 1}\n')
    assert "lacks records or sha256" in refusal(other)


def test_a_file_that_is_not_there_is_named(tmp_path):
    assert "No such file" in refusal(tmp_path / "none.jsonl")
