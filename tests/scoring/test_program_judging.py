"""What makes a program right or wrong, by kind of tests; all in the strongest sandbox that this machine has."""

import pytest

from rw.errors import DataError
from rw.scoring.config import ScoringConfig
from rw.scoring.program import VERSION, extract_program, longest_s, program_scorer, run_program
from rw.scoring.program_output import Comparison, same_output, same_value
from rw.scoring.program_values import decoded_value, json_value, text_value, value_text
from rw.types import ProgramTests, Query, VerdictKind

CONFIG = ScoringConfig(test_s=1)
SUM = ProgramTests("stdin", ("1 2\n", "3 4", "5 6\n"), ("3\n", "7", "11\n"))
pytestmark = pytest.mark.usefixtures("tight_sandbox")


def judged(program, tests, **comparison):
    return run_program(program, tests, CONFIG, Comparison(**comparison))


@pytest.mark.parametrize(
    "response, program",
    [
        ("print(1)", "print(1)"),
        ("a\n```python\nprint(1)\n```\nb", "print(1)\n"),
        ("```\nfirst\n```\ntext\n```py\nsecond\n```\n", "second\n"),
        ("```\nfirst\n```\n```python\nsecond", "second"),
        ("```python\nfirst\n```python\nsecond\n```", "second\n"),
        ("~~~python\nprint('```')\n```\n~~~", "print('```')\n```\n"),
        ("````python\n```\nprint(1)\n```\n````", "```\nprint(1)\n```\n"),
        ("- so:\n  ```python\n  if 1:\n      print(1)\n  ```", "if 1:\n    print(1)\n"),
        ("```python\r\nprint(1)\r\n```\r\n", "print(1)\r\n"),
        ("\ufeffprint(1)", "print(1)"),
        ("```python\n\ufeffprint(1)\n```", "print(1)\n"),
        ("```python\n", ""),
        ("", ""),
    ],
)
def test_the_last_fenced_block_is_the_program(response, program):
    assert extract_program(response) == program


@pytest.mark.parametrize(
    "program, kind, detail",
    [
        ("a, b = map(int, input().split())\nprint(a + b)", VerdictKind.PASS, "3 tests passed"),
        ("print(3)", VerdictKind.WRONG, "test 2 of 3: expected '7', got '3\\n'"),
        ("print(3)\nprint(4)", VerdictKind.WRONG, "test 1 of 3"),
        ("import sys\nprint(sum(map(int, input().split())))\nsys.exit(0)", VerdictKind.PASS, ""),
        ("import sys\nprint(sum(map(int, input().split())))\nsys.exit(1)", VerdictKind.CRASH, "exit status 1"),
        ("print(sum(map(int, input().split())))\n1 / 0", VerdictKind.CRASH, "ZeroDivisionError: division by zero"),
        ("print(sum(map(int, input().split())), flush=True)\nwhile True: pass", VerdictKind.TIME, "of CPU time"),
        ("if __name__ == '__main__': print(sum(map(int, input().split())))", VerdictKind.PASS, ""),
        ("print(sum(map(int, open(0).read().split())))", VerdictKind.PASS, ""),
        ("print(sum(map(int, open('/dev/stdin').read().split())))", VerdictKind.PASS, ""),
        ("h = []\nheappush(h, sum(map(int, input().split())))\nprint(h[0])", VerdictKind.PASS, ""),
        ("import atexit\natexit.register(lambda: print(sum(map(int, input().split()))))", VerdictKind.PASS, ""),
        ("from __future__ import annotations\nprint(sum(map(int, input().split())))", VerdictKind.PASS, ""),
        ("def (", VerdictKind.CRASH, "SyntaxError"),
        ("import numpy", VerdictKind.CRASH, "ModuleNotFoundError"),
    ],
)
def test_programs_on_standard_input(program, kind, detail):
    result = judged(program, SUM)
    assert (result.kind, detail in result.detail) == (kind, True), result
    assert result.tier


def test_a_test_sees_neither_variables_nor_files_of_the_one_before():
    program = "import os\nprint(sum(map(int, input().split())) + len(os.listdir('.')))\nopen('left', 'w').write('x')"
    assert judged(program, SUM).kind is VerdictKind.PASS
    program += "\nos.mkdir('closed')\nopen('closed/x', 'w').close()\nos.chmod('closed', 0)\nos.symlink('/usr', 'link')"
    assert judged(program, SUM).kind is VerdictKind.PASS


ADD = ProgramTests("function", (([1, 2], 3), ([], 1)), ([1, 2, 3], [1]), function="add")


@pytest.mark.parametrize(
    "program, kind, detail",
    [
        ("class Solution:\n def add(self, a: List[int], b: int): return a + [b]", VerdictKind.PASS, ""),
        ("def add(a, b): return a + [b]", VerdictKind.PASS, ""),
        ("def add(a, b): print('seen'); return (*a, b)", VerdictKind.PASS, ""),
        ("def add(a, b): return a", VerdictKind.WRONG, "test 1 of 2: expected [1, 2, 3], got [1, 2]"),
        ("def add(a, b): return {*a, b}", VerdictKind.WRONG, "test 1 of 2"),
        ("class E:\n def __eq__(self, o): return True\ndef add(a, b): return E()", VerdictKind.WRONG, "no plain data"),
        ("class E(list):\n def __eq__(self, o): return True\ndef add(a, b): return E()", VerdictKind.WRONG, "[]"),
        ("def add(a, b):\n a.append(a)\n return a", VerdictKind.WRONG, "no plain data"),
        ("def add(a, b): return float('nan')", VerdictKind.WRONG, "nan"),
        ("def add(a, b): raise KeyError(b)", VerdictKind.CRASH, "KeyError: 3"),
        ("def add(a, b): exit()", VerdictKind.CRASH, "ended before it returned"),
        ("import os\ndef add(a, b): os._exit(0)", VerdictKind.CRASH, "ended before it returned"),
        ("def sub(a, b): return a", VerdictKind.CRASH, "NameError: the program defines no add"),
        ("if __name__ == '__main__': 1 / 0\ndef add(a, b): return a + [b]", VerdictKind.PASS, ""),
    ],
)
def test_programs_that_define_a_function(program, kind, detail):
    result = judged(program, ADD)
    assert (result.kind, detail in result.detail) == (kind, True), result


def test_numbers_beyond_the_digits_that_python_likes_to_convert():
    huge = 7**9000
    tests = ProgramTests("function", ((huge,),), (huge + 1,), function="f")
    assert judged("def f(x): return x + 1", tests).kind is VerdictKind.PASS
    assert judged("def f(x): return x + 2", tests).kind is VerdictKind.WRONG
    assert judged("print(10 ** 5000)", ProgramTests("stdin", ("",), ("1" + "0" * 5000,))).kind is VerdictKind.PASS


ASSERTS = ProgramTests("asserts", ("assert pair(1) == (1, {2: {3}})", "assert set(pair(2)) == {2, 3}"))


@pytest.mark.parametrize(
    "program, kind, detail",
    [
        ("def pair(x): return (1, {2: {3}}) if x == 1 else [2, 3]", VerdictKind.PASS, ""),
        ("def pair(x): return (1, {2: {3}})", VerdictKind.WRONG, "test 2 of 2"),
        ("def pair(x): return [1, {2: {3}}]", VerdictKind.WRONG, "test 1 of 2: AssertionError"),
        ("class E:\n __eq__ = lambda s, o: True\ndef pair(x): return E()", VerdictKind.WRONG, "was compared"),
        ("class E(tuple):\n __eq__ = lambda s, o: True\ndef pair(x): return E()", VerdictKind.WRONG, "AssertionError"),
        ("def pair(x): raise ValueError(x)", VerdictKind.CRASH, "ValueError: 1"),
        ("def pair(x): raise SystemExit(0)", VerdictKind.CRASH, "ended before it returned"),
        ("import os\ndef pair(x): os._exit(0)", VerdictKind.CRASH, "ended before it returned"),
        ("import sys\nsys.exit(0)", VerdictKind.CRASH, "ended before it returned"),
        pytest.param("def pair(x):\n while True: pass", VerdictKind.TIME, "of CPU time", marks=pytest.mark.full),
        ("def pear(x): return x", VerdictKind.CRASH, "NameError: the program defines no pair"),
        ("set = lambda x: {2, 3}\ndef pair(x): return (1, {2: {3}})", VerdictKind.WRONG, "test 2 of 2"),
    ],
)
def test_programs_under_assertions(program, kind, detail):
    result = judged(program, ASSERTS)
    assert (result.kind, detail in result.detail) == (kind, True), result


@pytest.mark.parametrize("status", ["0", "Infinity", "[]", "null"])
def test_messages_that_a_program_forges_gain_it_nothing(status):
    ended = f'{{"ended": true, "stopped": "", "signal": 0, "status": {status}, "cpu_s": 0, "sizes": [0, 0, 0]}}'
    program = (
        f"import os, struct\ndef pair(x):\n for n in range(3, 128):\n"
        f"  for text in (b'{{\"value\": true}}', b'{{\"done\": \"0\"}}', b'{ended}', b'[' * 9999):\n"
        "   try: os.write(n, struct.pack('>II', len(text), 0) + text)\n   except OSError: pass"
    )
    assert judged(program, ASSERTS).kind in (VerdictKind.CRASH, VerdictKind.WRONG)
    assert judged(program.replace("pair(x)", "add(a, b)"), ADD).kind in (VerdictKind.CRASH, VerdictKind.WRONG)


FRAME = (
    "import atexit, os, struct\ndef say(head):\n for n in range(3, 128):\n"
    "  try: os.write(n, struct.pack('>II', len(head), 0) + head)\n  except OSError: pass\n"
)


def test_a_message_after_the_last_answer_is_a_crash_and_no_fault_of_the_judge():
    program = FRAME + "atexit.register(say, b'{\"value\": true}')\ndef pair(x): return (1, {2: {3}})"
    result = judged(program, ProgramTests("asserts", ASSERTS.inputs[:1]))
    assert (result.kind, "where it must not" in result.detail) == (VerdictKind.CRASH, True), result


def test_a_report_with_a_header_of_many_bytes_is_not_parsed():
    program = FRAME + "say(b'{\"error\": [' + b'{\"\":0},' * 1_000_000 + b'0]}')\nos._exit(1)"
    result = judged(program, ProgramTests("stdin", ("",), ("",)))
    assert (result.kind, result.detail) == (VerdictKind.CRASH, "test 1 of 1: exit status 1")


def test_exit_is_there_under_assertions():
    program = "def f(x):\n try: quit()\n except SystemExit: return x"
    assert judged(program, ProgramTests("asserts", ("assert f(3) == 3",))).kind is VerdictKind.PASS


def test_a_program_does_not_end_a_loop_of_its_check():
    tests = ProgramTests("asserts", ("assert all(map(lambda x: f(x) == x, [1, 2]))",))
    assert judged("def f(x): return x", tests).kind is VerdictKind.PASS
    for error in ("StopIteration", "StopAsyncIteration"):
        assert judged(f"def f(x): raise {error}", tests).kind is VerdictKind.CRASH


def test_a_check_may_hand_on_what_the_program_defines():
    tests = ProgramTests("asserts", ("assert list(map(f, [1, 2])) == [2, 3]", "assert max([1, LIMIT, 2], key=f) == 9"))
    assert judged("LIMIT = 9\ndef f(x): return x + 1", tests).kind is VerdictKind.WRONG  # LIMIT itself is compared
    tests = ProgramTests("asserts", ("assert list(map(f, [1, 2])) == [2, 3]", "assert f(LIMIT) == 10"))
    assert judged("LIMIT = 9\ndef f(x): return x + 1", tests).kind is VerdictKind.PASS


def test_a_check_may_use_objects_of_the_program_but_not_compare_them():
    program = (
        "class Pair:\n def __init__(self, a, b): self.a, self.b = a, b\n"
        "def longest(pairs, n): return max(p.a for p in pairs[:n])\ndef numbers(): yield from (1, 2)"
    )
    tests = ProgramTests(
        "asserts",
        (
            "assert longest([Pair(5, 24), Pair(7, 1)], 2) == 7",
            "p = Pair(1, 2)\np.b = 4\nassert p.a + p.b == 5",
            "assert list(numbers()) == [1, 2]",
            "try:\n  longest([], 0)\nexcept ValueError: pass\nelse: assert False",
        ),
    )
    assert judged(program, tests).kind is VerdictKind.PASS
    assert judged(program, ProgramTests("asserts", ("assert Pair(1, 2)",))).kind is VerdictKind.WRONG


def test_a_whole_check_function_and_what_its_setup_defines():
    check = "def check(candidate):\n    for x in range(5):\n        assert candidate(twice(x)) == x\ncheck(half)"
    tests = ProgramTests("asserts", (check,), function="half", setup="def twice(x): return 2 * x")
    assert judged("def half(x): return x // 2", tests).kind is VerdictKind.PASS
    assert judged("def half(x): return 0\ndef twice(x): return 0", tests).kind is VerdictKind.WRONG
    assert judged("def half(x): return twice(x) // 4", tests).kind is VerdictKind.PASS


def test_what_each_data_set_forgives():
    assert same_output("\n1 \n2\n\n", "1\n2") and not same_output("1\n\n2", "1\n2") and same_output("1\r\n", "1")
    assert not same_output("1.0", "1") and same_output("1.0  2", "1 2.00", decimals=True)
    assert not same_output(" 1", "1") and same_output(" 1", "1", decimals=True)
    assert not same_output("nan", "nan 1", decimals=True) and not same_output("1 2", "1", decimals=True)
    assert not same_output("1.0000001", "1", decimals=True) and not same_output("1", "x", decimals=True)
    assert not same_output("\n" * 9_000_000 + "1\n2" * 9_000_000, "1") and same_output(" \n\t\n1", "1")
    assert same_value(True, True) and not same_value(True, [True]) and same_value(True, [True], wrapped=True)
    assert not same_value(float("nan"), float("nan")) and not same_value([float("inf")], [float("inf")])


@pytest.mark.parametrize(
    "value",
    [None, True, 5, -(2**70), 1.5, "é\ud800", [1, [2]], (1, (2,)), {"a": {"b": ()}}, {1: 2, (3,): {4}}, 1j, b"\0", ()],
)
def test_values_come_through_as_they_are(value):
    assert text_value(value_text(value)) == value and type(text_value(value_text(value))) is type(value)


def test_what_json_cannot_say_is_refused_where_it_is_graded():
    assert text_value(value_text((1, {"a": (2**70,)})), json_value) == [1, {"a": [2**70]}]
    for value in ({1}, 1j, b"a", {1: 2}, {(1, 2): 3}):
        with pytest.raises(ValueError, match="JSON cannot say"):
            text_value(value_text(value), json_value)
    for text in (b"", b"[", b"[" * 99_999, b'{"int": 3}', b'{"dict": 1}', b'{"float": []}', b'{"reference": 1}', b"{}"):
        for decode in (decoded_value, json_value):
            with pytest.raises(ValueError):
                text_value(text, decode)


def test_the_scorer_says_sandbox_and_version():
    query = Query("q", "live_code_bench", "code", "?", ProgramTests("stdin", ("1",), ("1.0",)))
    score = program_scorer(CONFIG)
    verdict = score("So:\n```python\nprint(input())\n```", query)
    assert (verdict.correct, verdict.kind, verdict.scorer) == (True, VerdictKind.PASS, VERSION) and verdict.tier
    assert score("```\n \n```", query).detail == "no program"
    assert not score("\ud800\0", query).correct


def test_tests_that_cannot_be_run_are_refused():
    with pytest.raises(DataError, match="0 inputs"):
        judged("", ProgramTests("stdin", (), ()))
    with pytest.raises(DataError, match="no Python"):
        judged("", ProgramTests("asserts", ("assert (",)))
    for deep in ("assert " + "-" * 100_000 + "f(1)", "assert f(1)" + " + 0" * 50_000):
        with pytest.raises(DataError, match="no Python"):
            judged("", ProgramTests("asserts", (deep,)))
    with pytest.raises(DataError, match="1 inputs have 2 outputs"):
        judged("", ProgramTests("stdin", ("",), ("", "")))


def test_the_longest_time_grows_with_the_tests_up_to_a_bound():
    few, some, many = (longest_s(ProgramTests("stdin", ("",) * n), CONFIG) for n in (1, 20, 40))
    assert few < some == many
