"""Slices of the real sets, where RW_DATA_SLICES names a directory of them: every record becomes a question or is a drop
with a reason that is expected."""

import json
import os
import pathlib

import pytest

from rw.data import prepared
from rw.data.rows import read_rows
from rw.data.source import load
from rw.data.sources.program_tests import parsed_tests, stdin_tests
from rw.data.sources.schema import Unusable

SLICES = os.environ.get("RW_DATA_SLICES", "")
pytestmark = pytest.mark.skipif(not SLICES, reason="RW_DATA_SLICES names no directory")
COUNTS = [
    ("math", "math/dev.jsonl", 160, {}),
    ("math_500", "math500/dev.jsonl", 80, {}),
    ("omni_math", "omni_math/dev.jsonl", 85, {}),
    ("apps", "apps/dev.jsonl", 1, {"call_based": 2}),
    ("live_code_bench", "livecodebench/dev.jsonl", 140, {}),
    ("taco", "taco/dev.jsonl", 1, {}),
    ("super_gpqa", "supergpqa/dev.jsonl", 170, {}),
    ("super_gpqa", "supergpqa/dev.asfound.jsonl", 170, {}),
    ("trivia_qa", "triviaqa/dev.jsonl", 180, {}),
    ("trivia_qa", "triviaqa/release_format_sample.json", 1, {}),
    ("simple_qa_verified", "simpleqa_verified/dev.csv", 48, {}),
    ("aime", "aime/dev.aime24.jsonl", 18, {}),
    ("aime", "aime/dev.aime25.jsonl", 18, {}),
    ("bbh", "bbh/dev.jsonl", 135, {}),
    ("bbh", "bbh/original_layout", 15, {}),
    ("human_eval", "humaneval/dev.jsonl", 90, {}),
    ("mbpp", "mbpp/dev.jsonl", 140, {}),
]


@pytest.mark.parametrize("dataset, path, kept, dropped", COUNTS, ids=lambda value: str(value).replace("/", "-"))
def test_all_records_load_and_survive_a_prepared_file(dataset, path, kept, dropped, tmp_path):
    loaded = load(dataset, pathlib.Path(SLICES) / path)
    assert (len(loaded.queries), dict(loaded.dropped)) == (kept, dropped)
    prepared.write_queries(tmp_path / "questions.jsonl", loaded.queries, {"dataset": dataset})
    assert prepared.read_queries(tmp_path / "questions.jsonl").queries == loaded.queries


def test_example_tests_of_apps_are_tests_or_null():
    kept, dropped = 0, []
    for row in read_rows(pathlib.Path(SLICES) / "apps" / "dev.example_tests.jsonl"):
        try:
            kept += bool(stdin_tests(parsed_tests(row.values["input_output"]), None).inputs)
        except Unusable as error:
            dropped.append((error.reason, json.loads(row.values["input_output"])))
    assert (kept, dropped) == (118, [("no_tests", None)] * 2)
