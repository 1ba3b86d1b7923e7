"""Tests of programs from the layouts that the code sets share, and the caps on how many are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rw.data.rows import LongInteger, parse_json
from rw.data.sources.schema import Unusable
from rw.types import ProgramTests

MOST_TESTS = 40  # RouteWeaver, Appendix B.2: of LiveCodeBench and TACO


def parsed_tests(text: Any) -> Mapping[str, Any]:
    """The object {"inputs", "outputs", "fn_name"?} of APPS and TACO, which stands there as a JSON text.

    Raises:
        Unusable: nothing, `null` or no tests in it, or no such object.
    """
    if text is None or (isinstance(text, str) and not text.strip()):
        raise Unusable("no_tests")
    try:
        value = parse_json(text) if isinstance(text, str) else text
    except ValueError as error:
        raise Unusable("tests_not_json") from error
    if value is None or value == {}:
        raise Unusable("no_tests")
    if not isinstance(value, Mapping) or not all(isinstance(value.get(key), list) for key in ("inputs", "outputs")):
        raise Unusable("tests_not_json")
    if not value["inputs"]:
        raise Unusable("no_tests")
    if len(value["inputs"]) != len(value["outputs"]):
        raise Unusable("tests_without_outputs")
    return value


def stdin_tests(tests: Mapping[str, Any], most: int | None) -> ProgramTests:
    """What goes in and what must come out, each a text, or a list of lines, which are joined."""
    inputs = tuple(_text(value) for value in tests["inputs"][:most])
    outputs = tuple(_text(value) for value in tests["outputs"][:most])
    if not any(output.strip() for output in outputs):
        raise Unusable("no_expected_output")  # a program that does nothing would be right
    return ProgramTests("stdin", inputs, outputs)


def function_tests(tests: Mapping[str, Any], most: int | None) -> ProgramTests:
    """Arguments, one list a call, and the values that must come back.

    Where every value stands alone in a list of its own, as most of these sets write it, the lists are taken off.
    """
    name, inputs, outputs = tests["fn_name"], tests["inputs"][:most], tests["outputs"][:most]
    if not isinstance(name, str) or not name.isidentifier():
        raise Unusable("no_function_name")
    if not all(isinstance(arguments, list) for arguments in inputs):
        raise Unusable("arguments_not_a_list")
    if all(isinstance(output, list) and len(output) == 1 for output in outputs):
        outputs = [output[0] for output in outputs]
    check_values([inputs, outputs])
    return ProgramTests("function", tuple(map(tuple, inputs)), tuple(outputs), function=name)


def check_values(value: Any) -> None:
    """Raises Unusable for what a program cannot be given or asked for: over-long integers, NaN and infinities."""
    if isinstance(value, LongInteger):
        raise Unusable("integer_too_long")
    if isinstance(value, float) and not abs(value) < float("inf"):
        raise Unusable("value_not_a_number")
    children = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    for child in children:
        check_values(child)


def within_bytes(tests: Sequence[tuple[Any, Any]], limit: int) -> int:
    """How many of the first (input, output) pairs stay together within `limit` bytes of JSON; at least one.

    The paper does not say how a test is serialised; we take its two texts as a JSON list in UTF-8.
    """
    total = 0
    for count, pair in enumerate(tests):
        total += len(json.dumps(list(pair), ensure_ascii=False).encode("utf-8", "surrogatepass"))
        if total > limit:
            return max(count, 1)
    return len(tests)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(_text(line) for line in value)
    if isinstance(value, LongInteger):
        return str.__str__(value)
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    raise Unusable("tests_not_texts")
