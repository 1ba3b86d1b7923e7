"""What a program wrote or returned against what is expected. Pure, and nothing of how programs are run."""

from __future__ import annotations

import dataclasses
import decimal
import math
from typing import Any

SHOWN = 200  # characters of a value in a verdict's detail


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What a data set's own runner forgives.

    Args:
        decimals: LiveCodeBench's rule for texts: blanks at the starts of lines do not count, and lines that differ
            agree where both consist of numbers that are equal exactly, so 1.50 is 1.5, but not 1.5000001.
        wrapped: APPS and TACO put many expected values in one more list, so `[x]` is met by x too.
    """

    decimals: bool = False
    wrapped: bool = False


EXACT = Comparison()


def same_output(given: str, expected: str, decimals: bool = False) -> bool:
    """Whether two texts agree line by line, without blanks at the ends of lines and empty lines around the whole."""
    given_lines, expected_lines = (_lines(text, decimals) for text in (given, expected))
    return len(given_lines) == len(expected_lines) and all(
        one == other or (decimals and _same_numbers(one, other))
        for one, other in zip(given_lines, expected_lines, strict=True)
    )


def _lines(text: str, both_ends: bool) -> list[str]:
    lines = [line.strip() if both_ends else line.rstrip() for line in text.split("\n")]
    filled = [index for index, line in enumerate(lines) if line]
    return lines[filled[0] : filled[-1] + 1] if filled else []


def _same_numbers(given: str, expected: str) -> bool:
    try:
        pairs = zip(map(decimal.Decimal, given.split()), map(decimal.Decimal, expected.split()), strict=True)
        return all(one.is_finite() and one == other for one, other in pairs)
    except (decimal.InvalidOperation, ValueError):
        return False


def same_value(given: Any, expected: Any, wrapped: bool = False) -> bool:
    """Whether a returned value, once as JSON has it, is the expected one.

    Tuples count as lists. What JSON cannot say (a set, NaN, an object of the program) is equal to nothing.
    """
    try:
        plain = _plain(given)
    except (ValueError, RecursionError):
        return False
    return plain == expected or (wrapped and isinstance(expected, list) and len(expected) == 1 and plain == expected[0])


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    raise ValueError(f"{type(value).__name__} is not JSON")


def shortened(value: Any) -> str:
    """A value for a verdict's detail: its ends, where it is long."""
    text = value if isinstance(value, str) else _safe_repr(value)
    if len(text) <= SHOWN:
        return repr(text) if isinstance(value, str) else text
    half = SHOWN // 2
    return f"{text[:half]!r} … {text[-half:]!r} ({len(text)} characters)"


def _safe_repr(value: Any) -> str:
    try:
        return repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python likes to write
        return f"a {type(value).__name__} that is too large to show"
