"""Programming contests: APPS, TACO and LiveCodeBench."""

from __future__ import annotations

import ast
import base64
import binascii
import pickletools
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from rw.data.answer_formats import FUNCTION_PROGRAM, STDIN_PROGRAM
from rw.data.hub import Hub
from rw.data.rows import parse_json
from rw.data.sources.program_tests import (
    MOST_TESTS,
    check_values,
    function_tests,
    parsed_tests,
    stdin_tests,
    within_bytes,
)
from rw.data.sources.schema import Item, Place, Source, Unusable, code_of, field, known, text_of
from rw.errors import DataError
from rw.types import ProgramTests

MOST_BYTES = 256 * 1024  # RouteWeaver, Appendix B.2: of LiveCodeBench's tests, serialised, in order
UNPACKED_LIMIT = 512 * 1024 * 1024  # of the private tests of one problem
# From the benchmark's own list of errata, which is not complete: problems with several right answers, of which the
# tests accept one; problems that talk with a judge; and problems with wrong tests.
SEVERAL_ANSWERS = frozenset(
    ("abc311_c", "abc326_d", "abc327_b", "abc333_e", "abc343_a", "abc343_e", "abc362_c", "arc185_c")
)
INTERACTIVE = frozenset(("abc337_e", "abc355_e"))
WRONG_TESTS = frozenset(("abc350_c",))
_TEXT_OPCODES = frozenset(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"))
_EMPTY_OPCODES = frozenset(("PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"))


def read_apps(row: Mapping[str, Any], place: Place) -> Item:
    """APPS: problem_id, question, input_output (JSON in a text), difficulty, starter_code.

    The paper runs APPS on standard input alone, so problems that ask for a function are left out. It caps the tests of
    LiveCodeBench and TACO, and APPS is right "on all test cases": all are kept.
    """
    tests = parsed_tests(field(row, "input_output"))
    if tests.get("fn_name"):
        raise Unusable("call_based")
    split = f"{place.options.split}-" if place.options.split else ""  # both splits count from 0
    key = f"{split}{text_of(row, 'problem_id', 'id')}"
    return Item(key, text_of(row, "question"), STDIN_PROGRAM, stdin_tests(tests, None), known(row, ["difficulty"]))


def read_taco(row: Mapping[str, Any], place: Place) -> Item:
    """TACO: question, input_output as in APPS, starter_code, difficulty, and lists as Python writes them.

    Problems that need a judge of their own are left out where it is known which they are: exact outputs reject right
    programs there.
    """
    if place.index in place.options.special_judge:
        raise Unusable("special_judge")
    tests = parsed_tests(field(row, "input_output"))
    metadata = {**known(row, ["difficulty", "source", "name"]), **_literal_lists(row, ("tags", "skill_types"))}
    question = text_of(row, "question")
    if not tests.get("fn_name"):
        return Item("", question, STDIN_PROGRAM, stdin_tests(tests, MOST_TESTS), metadata)
    called = function_tests(tests, MOST_TESTS)
    starter = code_of(row, "starter_code") or f"def {called.function}(…):"
    return Item("", _with_starter(question, starter), FUNCTION_PROGRAM, called, metadata)


def read_live_code_bench(row: Mapping[str, Any], place: Place) -> Item:
    """LiveCodeBench: question_content, question_id, starter_code, public and private tests, metadata with func_name.

    Public tests come first, then private ones, as the benchmark has them; the caps keep the first.
    """
    key = text_of(row, "question_id")
    if key in INTERACTIVE:
        raise Unusable("interactive")
    if key in WRONG_TESTS:
        raise Unusable("wrong_tests")
    if key in SEVERAL_ANSWERS and place.options.drop_ambiguous:
        raise Unusable("several_answers")
    shown, hidden = (_test_cases(field(row, f"{name}_test_cases")) for name in ("public", "private"))
    cases = [*shown, *hidden][:MOST_TESTS]
    if not cases:
        raise Unusable("no_tests")
    cases = cases[: within_bytes([(case["input"], case["output"]) for case in cases], MOST_BYTES)]
    kinds = {case.get("testtype") for case in cases}
    metadata = known(row, ["platform", "difficulty", "contest_date"])
    if key in SEVERAL_ANSWERS:
        metadata["several_answers"] = True
    question, public = text_of(row, "question_content"), min(len(shown), len(cases))
    if kinds == {"stdin"}:
        inputs, outputs = (tuple(case[side] for case in cases) for side in ("input", "output"))
        tests = ProgramTests("stdin", inputs, outputs, public=public)
        return Item(key, question, STDIN_PROGRAM, tests, metadata)
    if kinds != {"functional"}:
        raise Unusable("tests_of_unknown_type")
    starter = code_of(row, "starter_code")
    if not starter.strip():
        raise Unusable("no_starter_code")
    tests = _functional(cases, _function_name(field(row, "metadata")), public)
    return Item(key, _with_starter(question, starter), FUNCTION_PROGRAM, tests, metadata)


def special_judged(rows: Iterable[Mapping[str, Any]]) -> frozenset[int]:
    """Places of TACO's test rows that need a judge of their own, from the list that its authors publish: idx, and
    special_judge, true or false."""
    judged = [field(row, "idx") for row in rows if field(row, "special_judge")]
    if odd := [place for place in judged if type(place) is not int]:
        raise DataError(f"idx {odd[0]!r} in the list of special judges must be a row's place, from 0")
    return frozenset(judged)


def text_of_pickle(data: bytes) -> str:
    """The one text that a pickle holds. Nothing is unpickled: the opcodes are read, and none may do more than that.

    Raises:
        Unusable: a pickle of anything else, which could run code.
    """
    text = None
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in _TEXT_OPCODES and text is None:
                text = argument
            elif opcode.name not in _EMPTY_OPCODES:
                raise Unusable("private_tests_not_a_text")
    except (ValueError, UnicodeDecodeError) as error:
        raise Unusable("private_tests_not_a_text") from error
    if text is None:
        raise Unusable("private_tests_not_a_text")
    return text


def unpacked(packed: str, limit: int = UNPACKED_LIMIT) -> str:
    """The private tests' JSON from base64 of zlib of a pickle, whose unpacked size is bounded."""
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(base64.b64decode(packed, validate=True), limit)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise Unusable("private_tests_damaged") from error
    if stream.unconsumed_tail:
        raise Unusable("private_tests_too_large")
    if not stream.eof:
        raise Unusable("private_tests_damaged")
    return text_of_pickle(data)


def _test_cases(text: Any) -> list[Mapping[str, Any]]:
    """A list of {input, output, testtype}: JSON in a text, or that packed."""
    if text is None or (isinstance(text, str) and not text.strip()):
        return []
    if not isinstance(text, str):
        raise Unusable("tests_not_json")
    try:
        cases = parse_json(text if text.lstrip().startswith("[") else unpacked(text))
    except ValueError as error:
        raise Unusable("tests_not_json") from error
    fits = isinstance(cases, list) and all(
        isinstance(case, dict) and all(isinstance(case.get(side), str) for side in ("input", "output"))
        for case in cases
    )
    if not fits:
        raise Unusable("tests_not_texts")
    return cases


def _functional(cases: list[Mapping[str, Any]], name: str, public: int) -> ProgramTests:
    """One JSON value a line, one line an argument, in the order of the signature; the output is one JSON value."""
    try:
        inputs = [[parse_json(line) for line in case["input"].split("\n") if line.strip()] for case in cases]
        outputs = [parse_json(case["output"]) for case in cases]
    except ValueError as error:
        raise Unusable("tests_not_json") from error
    check_values([inputs, outputs])
    return ProgramTests("function", tuple(map(tuple, inputs)), tuple(outputs), function=name, public=public)


def _function_name(text: Any) -> str:
    try:
        value = parse_json(text) if isinstance(text, str) else text
    except ValueError as error:
        raise Unusable("no_function_name") from error
    name = value.get("func_name") if isinstance(value, Mapping) else None
    if not isinstance(name, str) or not name.isidentifier():
        raise Unusable("no_function_name")
    return name


def _with_starter(question: str, starter: str) -> str:
    return f"{question.rstrip()}\n\nBegin with this code:\n\n```python\n{starter.rstrip()}\n```"


def _literal_lists(row: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, list[str]]:
    """Columns that hold a list as Python writes it; what is none says nothing."""
    found = {}
    for name in names:
        try:
            value = ast.literal_eval(row.get(name) or "None")
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            found[name] = value
    return found


_SPLITS = {"train": "train", "test": "test"}
SOURCES = {
    "apps": Source(read_apps, "code", Hub("codeparrot/apps", _SPLITS, files="{split}.jsonl"), unread=("solutions",)),
    "taco": Source(
        read_taco,
        "code",
        Hub("BAAI/TACO", _SPLITS, files="{split}/*.arrow", builder="arrow"),
        unread=("solutions",),
    ),
    "live_code_bench": Source(
        read_live_code_bench,
        "code",
        Hub("livecodebench/code_generation_lite", {"train": "test", "test": "test"}, files="{split}*.jsonl"),
    ),
}
