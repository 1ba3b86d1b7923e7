"""Data sets and scorers of one's own in `rw data prepare`: named by their module, checked, and written like rw's."""

import json
import sys

import pytest

from rw.data.prepared import read_queries
from rw.prepare import main

MODULE = """
from rw.data.sources.schema import Item, Source, text_of

def read_riddle(row, place):
    return Item(text_of(row, "number"), text_of(row, "riddle"), "Answer in one word.", row["words"], {})

riddles = Source(read_riddle, domain="reason")
math = Source(read_riddle, domain="reason")
number = 7
"""
ROWS = [{"number": 1, "riddle": "What has hands and no arms?", "words": "clock"}]


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "riddle_sets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("riddle_sets", None)


def prepare(tmp_path, rows, *arguments):
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return main(["prepare", "--input", str(source), "--output", str(tmp_path / "out.jsonl"), *arguments])


def test_a_source_of_ones_own_module_is_a_data_set(tmp_path):
    assert prepare(tmp_path, ROWS, "--dataset", "riddle_sets:riddles") == 0
    read = read_queries(tmp_path / "out.jsonl")
    (query,) = read.queries
    assert (query.id, query.dataset, query.domain, query.reference) == ("riddles/1", "riddles", "reason", "clock")
    assert query.prompt == "What has hands and no arms?\n\nAnswer in one word."
    assert read.header["dataset"] == "riddles"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("riddle_sets:number", "is a int, not an rw.data.sources.schema.Source"),
        ("riddle_sets:riddle", "cannot be loaded"),
        ("riddle_set:riddles", "PYTHONPATH"),
        ("riddle_sets:math", "has the name of one of rw's"),
    ],
)
def test_what_is_no_data_set_is_refused_with_the_reason(tmp_path, capsys, name, words):
    assert prepare(tmp_path, ROWS, "--dataset", name) == 2
    assert words in capsys.readouterr().err


ANSWER = ["12.5", "twelve and a half"]
OWN = {"id": "a", "domain": "science", "prompt": "How long?", "answer": ANSWER, "scorer": "lengths"}


def test_rows_may_name_a_scorer_of_ones_own(tmp_path):
    assert prepare(tmp_path, [OWN], "--dataset", "custom", "--own-scorers", "lengths") == 0
    (query,) = read_queries(tmp_path / "out.jsonl").queries
    assert (query.dataset, query.reference) == ("lengths", tuple(ANSWER))


def test_an_answer_that_is_no_text_is_refused_with_the_place_for_it(tmp_path, capsys):
    row = OWN | {"answer": {"low": 12, "high": 13}}
    assert prepare(tmp_path, [row], "--dataset", "custom", "--own-scorers", "lengths") == 2
    assert "goes into metadata" in capsys.readouterr().err


def test_a_scorer_that_nobody_has_named_is_refused(tmp_path, capsys):
    assert prepare(tmp_path, [OWN], "--dataset", "custom") == 2
    assert "scorer 'lengths' is unknown" in capsys.readouterr().err
    assert prepare(tmp_path, [OWN], "--dataset", "custom", "--own-scorers", "length") == 2
    assert "did you mean 'length'?" in capsys.readouterr().err


def test_only_ones_own_rows_may_name_scorers(tmp_path, capsys):
    assert prepare(tmp_path, ROWS, "--dataset", "riddle_sets:riddles", "--own-scorers", "lengths") == 2
    assert "--own-scorers is for the data set custom" in capsys.readouterr().err
