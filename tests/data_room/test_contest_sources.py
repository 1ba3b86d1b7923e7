"""Loaders of programming contests: real records of APPS and LiveCodeBench, and what their fields may hold beside."""

import base64
import json
import pathlib
import pickle
import zlib

import pytest

from rw.data import answer_formats
from rw.data.rows import read_rows
from rw.data.source import load
from rw.data.sources.contests import special_judged, text_of_pickle, unpacked
from rw.data.sources.program_tests import parsed_tests, stdin_tests, within_bytes
from rw.data.sources.schema import Options, Unusable
from rw.errors import DataError
from rw.types import ProgramTests

RECORDS = pathlib.Path(__file__).parent.parent / "data" / "sources"


def apps_row(number, tests, **changed):
    text = tests if tests is None or isinstance(tests, str) else json.dumps(tests)
    return {"problem_id": number, "question": f"Q{number}?", "solutions": "", "input_output": text, **changed}


def one(loaded):
    assert len(loaded.queries) == 1, loaded.dropped
    return loaded.queries[0]


def test_apps_records_on_standard_input():
    loaded = load("apps", RECORDS / "apps.jsonl", split="train")
    query = one(loaded)
    assert loaded.dropped == {"call_based": 2} and loaded.examples["call_based"][0] == "apps.jsonl line 2"
    assert query.id == "apps/train-1" and query.prompt.endswith(f"\n\n{answer_formats.STDIN_PROGRAM}")
    assert query.reference == ProgramTests("stdin", ("3\n2 2 3\n4 3 7\n10 1 9\n",), ("1\n6\n-1\n",))
    assert query.metadata == {"difficulty": "interview"}


def test_apps_example_tests_may_be_null():
    texts = [row.values["input_output"] for row in read_rows(RECORDS / "apps_example_tests.jsonl")]
    reasons = []
    for text in texts:
        try:
            tests = stdin_tests(parsed_tests(text), None)
            assert tests.inputs and all(isinstance(value, str) for value in tests.inputs + tests.outputs)
        except Unusable as error:
            reasons.append(error.reason)
    assert len(texts) == 8 and reasons == ["no_tests"] * 2


def test_apps_inputs_that_are_lists_of_lines_become_texts():
    tests = {"inputs": [["2", "a b"], "x\n", ["1", 2, [3, 4]]], "outputs": [["7"], "y", "\nz"]}
    query = one(load("apps", [apps_row(0, tests)]))
    assert query.id == "apps/0"
    assert query.reference == ProgramTests("stdin", ("2\na b", "x\n", "1\n2\n3\n4"), ("7", "y", "\nz"))


def test_integers_over_4300_digits_do_no_harm():
    digits = "7" * 6000
    text = f'{{"inputs": ["1", [{digits}]], "outputs": [[{digits}], "2"]}}'
    assert one(load("apps", [apps_row(0, text)])).reference == ProgramTests("stdin", ("1", digits), (digits, "2"))
    row = {"question": "Q?", "input_output": f'{{"fn_name": "f", "inputs": [[1]], "outputs": [{digits}]}}'}
    assert load("taco", [row]).dropped == {"integer_too_long": 1}


def test_apps_keeps_all_tests():
    many = {"inputs": [str(n) for n in range(90)], "outputs": [str(n) for n in range(90)]}
    assert len(one(load("apps", [apps_row(0, many)])).reference.inputs) == 90


@pytest.mark.parametrize(
    "tests, reason",
    [
        ("", "no_tests"),
        (None, "no_tests"),
        ("null", "no_tests"),
        ("{}", "no_tests"),
        ({"inputs": [], "outputs": []}, "no_tests"),
        ("{", "tests_not_json"),
        ("[" * 100_000, "tests_not_json"),
        ([1], "tests_not_json"),
        ({"inputs": ["1"]}, "tests_not_json"),
        ({"inputs": "1", "outputs": "1"}, "tests_not_json"),
        ({"inputs": ["1", "2"], "outputs": ["1"]}, "tests_without_outputs"),
        ({"inputs": [{"a": 1}], "outputs": ["1"]}, "tests_not_texts"),
        ({"inputs": ["1"], "outputs": [None]}, "tests_not_texts"),
        ({"inputs": ["1"], "outputs": [" \n"]}, "no_expected_output"),
        ({"inputs": [[1]], "outputs": [1], "fn_name": "f"}, "call_based"),
    ],
)
def test_apps_rows_without_usable_tests_are_dropped_by_reason(tests, reason):
    assert load("apps", [apps_row(0, tests)]).dropped == {reason: 1}


def taco_row(tests, **changed):
    row = {
        "question": "Sort.", "solutions": "[]", "starter_code": "", "input_output": json.dumps(tests),
        "difficulty": "EASY", "raw_tags": "['a']", "name": None, "source": "codeforces", "tags": "['Sorting', 'Math']",
        "skill_types": "[]", "url": "", "Expected Auxiliary Space": None, "time_limit": "1 second", "date": None,
        "picture_num": "0", "memory_limit": "512 megabytes", "Expected Time Complexity": None,
    }  # fmt: skip
    return {**row, **changed}


def test_taco_keeps_forty_tests_and_reads_lists_as_python_writes_them():
    tests = {"inputs": [f"{n}\r\n" for n in range(202)], "outputs": [f"\n{n}" for n in range(202)]}
    query = one(load("taco", [taco_row(tests)]))
    assert query.reference.inputs == tuple(tests["inputs"][:40]) and query.reference.outputs[1] == "\n1"
    assert query.metadata == {"difficulty": "EASY", "source": "codeforces", "tags": ["Sorting", "Math"]}
    assert query.prompt == f"Sort.\n\n{answer_formats.STDIN_PROGRAM}"


@pytest.mark.parametrize("tags", ["['a'", "{'a'}", "__import__('os')", "", None, "[1]"])
def test_taco_tags_that_are_no_list_of_texts_say_nothing(tags):
    assert "tags" not in one(load("taco", [taco_row({"inputs": ["1"], "outputs": ["1"]}, tags=tags)])).metadata


def test_taco_functions_lose_the_list_around_what_they_return():
    tests = {"fn_name": "add", "inputs": [[1, [2]], [3, []]], "outputs": [[[3]], [[]]]}
    query = one(load("taco", [taco_row(tests, starter_code="class Solution:\r\n    def add(self, a, b):\n\t")]))
    assert query.reference == ProgramTests("function", ((1, [2]), (3, [])), ([3], []), function="add")
    assert "```python\nclass Solution:\n    def add(self, a, b):\n```" in query.prompt
    assert query.prompt.endswith(answer_formats.FUNCTION_PROGRAM)
    bare = {"fn_name": "add", "inputs": [[1], [2]], "outputs": [[1], 2]}
    query = one(load("taco", [taco_row(bare)]))
    assert query.reference.outputs == ([1], 2) and "def add(…):" in query.prompt


@pytest.mark.parametrize(
    "inputs, outputs, reason",
    [([1], [1], "arguments_not_a_list"), ([[1]], [float("nan")], "value_not_a_number")],
)
def test_taco_functions_with_unusable_values_are_dropped(inputs, outputs, reason):
    assert load("taco", [taco_row({"fn_name": "f", "inputs": inputs, "outputs": outputs})]).dropped == {reason: 1}


def test_taco_rows_with_a_judge_of_their_own_are_left_out_where_the_list_is_given(tmp_path):
    (tmp_path / "output_spj.jsonl").write_text(
        '{"idx": 0, "special_judge": false, "case": ""}\n{"idx": 1, "special_judge": true, "case": "any order"}\n'
    )
    judged = special_judged(row.values for row in read_rows(tmp_path / "output_spj.jsonl"))
    assert judged == {1}
    with pytest.raises(DataError, match="idx '1' in the list of special judges"):
        special_judged([{"idx": "1", "special_judge": True}])
    rows = [taco_row({"inputs": ["1"], "outputs": ["1"]}, question=f"Q{n}") for n in range(3)]
    assert len(load("taco", rows).queries) == 3
    assert load("taco", rows, options=Options(special_judge=judged)).examples == {"special_judge": ("row 2",)}


def packed(value, protocol=4):
    return base64.b64encode(zlib.compress(pickle.dumps(value, protocol))).decode()


def case(given, wanted, kind="stdin"):
    return {"input": given, "output": wanted, "testtype": kind}


def live_row(public, private, **changed):
    row = {
        "question_title": "T", "question_content": f"Do {json.dumps(changed)}.", "platform": "atcoder",
        "question_id": "abc1_a", "contest_id": "abc1", "contest_date": "2024-01-01T00:00:00", "starter_code": "",
        "difficulty": "easy", "public_test_cases": json.dumps(public), "metadata": "{}",
        "private_test_cases": private if isinstance(private, str) else packed(json.dumps(private)),
    }  # fmt: skip
    return {**row, **changed}


def test_live_code_bench_records_of_both_kinds():
    loaded = load("live_code_bench", RECORDS / "livecodebench.jsonl", split="test")
    assert len(loaded.queries) == 7 and not loaded.dropped
    kinds = [query.reference.kind for query in loaded.queries]
    assert kinds == ["stdin", *["function"] * 3, *["stdin"] * 3]
    ambiguous, called = loaded.queries[0], loaded.queries[1]
    assert ambiguous.id == "live_code_bench/abc326_d" and ambiguous.metadata["several_answers"] is True
    assert called.reference.function in called.prompt and "class Solution" in called.prompt
    assert all(isinstance(arguments, tuple) for arguments in called.reference.inputs)
    for query in loaded.queries:
        assert 1 <= query.reference.public < len(query.reference.inputs) == len(query.reference.outputs)


def test_private_tests_come_packed_or_plain():
    cases = [case("1\n", "2"), case("3\n", "4")]
    for private in (cases[1:], json.dumps(cases[1:]), packed(json.dumps(cases[1:]), protocol=2)):
        query = one(load("live_code_bench", [live_row(cases[:1], private)]))
        assert query.reference == ProgramTests("stdin", ("1\n", "3\n"), ("2", "4"), public=1)


def test_functional_tests_have_one_argument_a_line():
    public = [case('[1,2]\n"a\u2028b"', "3.5", "functional"), case('[]\n""\n', "null", "functional")]
    row = live_row(public, "", starter_code="class Solution:\n    def f(self, a, b):\n        ")
    query = one(load("live_code_bench", [{**row, "metadata": '{"func_name": "f"}'}]))
    assert query.reference.inputs == (([1, 2], "a\u2028b"), ([], ""))
    assert query.reference.outputs == (3.5, None) and query.reference.function == "f" and query.reference.public == 2


def test_tests_are_kept_to_forty_and_to_256_kilobytes_in_order():
    small = [case(str(n), str(n)) for n in range(50)]
    assert len(one(load("live_code_bench", [live_row(small[:2], small[2:])])).reference.inputs) == 40
    big = [case("x" * 100_000, "y"), case("x" * 100_000, "y"), case("x" * 100_000, "y"), case("z", "w")]
    tests = one(load("live_code_bench", [live_row([], big)])).reference
    assert len(tests.inputs) == 2 and tests.public == 0  # what is small behind the third one is not kept either
    alone = one(load("live_code_bench", [live_row([case("x" * 300_000, "y")], big)])).reference
    assert len(alone.inputs) == 1 and alone.public == 1


@pytest.mark.parametrize("limit, kept", [(0, 1), (11, 1), (21, 1), (22, 2), (32, 2), (33, 3)])
def test_bytes_are_those_of_two_texts_as_json(limit, kept):
    assert within_bytes([("a", "é")] * 3, limit) == kept  # ["a", "é"] has 10 letters and 11 bytes


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"question_id": "abc337_e"}, "interactive"),
        ({"question_id": "abc350_c"}, "wrong_tests"),
        ({"private_test_cases": "!!"}, "private_tests_damaged"),
        ({"private_test_cases": base64.b64encode(b"abc").decode()}, "private_tests_damaged"),
        ({"private_test_cases": packed(json.dumps([]))[:-8]}, "private_tests_damaged"),
        ({"private_test_cases": packed(["x"])}, "private_tests_not_a_text"),
        ({"private_test_cases": packed(b"[]")}, "private_tests_not_a_text"),
        ({"private_test_cases": packed(print)}, "private_tests_not_a_text"),
        ({"private_test_cases": packed("{")}, "tests_not_json"),
        ({"private_test_cases": packed('[{"input": 1}]')}, "tests_not_texts"),
        ({"public_test_cases": "[]", "private_test_cases": ""}, "no_tests"),
        ({"public_test_cases": json.dumps([case("1", "1", "file")])}, "tests_of_unknown_type"),
        ({"private_test_cases": json.dumps([case("1", "1", "functional")])}, "tests_of_unknown_type"),
    ],
)
def test_live_code_bench_rows_that_cannot_be_used_are_dropped_by_reason(changed, reason):
    row = {**live_row([case("1", "1")], []), **changed}
    assert load("live_code_bench", [row]).dropped == {reason: 1}


@pytest.mark.parametrize("metadata", ["{}", "", None, "[", '{"func_name": "f(); import os"}'])
def test_functional_rows_need_the_name_of_a_function(metadata):
    row = live_row([case("1", "1", "functional")], "", starter_code="class Solution:", metadata=metadata)
    assert load("live_code_bench", [row]).dropped == {"no_function_name": 1}


def test_problems_of_several_right_answers_are_marked_or_left_out():
    row = live_row([case("1", "1")], [], question_id="abc343_e")
    assert one(load("live_code_bench", [row])).metadata["several_answers"] is True
    assert load("live_code_bench", [row], options=Options(drop_ambiguous=True)).dropped == {"several_answers": 1}


class Thief:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


def test_no_pickle_runs_code(tmp_path):
    stolen = tmp_path / "stolen"
    for value in (Thief(stolen), ["text", Thief(stolen)]):
        with pytest.raises(Unusable, match="not_a_text"):
            text_of_pickle(pickle.dumps(value))
    two_texts = b"\x80\x02X\x01\x00\x00\x00aX\x01\x00\x00\x00b."
    for data in (b"", b"\x80", b"cos\nsystem\n(S'true'\ntR.", two_texts, pickle.dumps("x")[:-1]):
        with pytest.raises(Unusable, match="not_a_text"):
            text_of_pickle(data)
    assert not stolen.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_texts_come_out_of_pickles_of_every_protocol(protocol):
    for text in ("", 'a\n"é\u2028', "long" * 1000):
        assert text_of_pickle(pickle.dumps(text, protocol)) == text


def test_what_unpacks_to_more_than_the_limit_is_refused():
    bomb = packed("0" * 1_000_000)
    with pytest.raises(Unusable, match="too_large"):
        unpacked(bomb, limit=10_000)
    assert len(unpacked(bomb, limit=2_000_000)) == 1_000_000
