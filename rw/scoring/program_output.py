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
    given, expected = _trimmed(given), _trimmed(expected)
    if given.count("\n") != expected.count("\n"):  # before a flood of lines becomes a list
        return False
    pairs = zip(given.split("\n"), expected.split("\n"), strict=True)
    return all(_same_line(one, other, decimals) for one, other in pairs)


def _trimmed(text: str) -> str:
    text = text.rstrip()
    blank = len(text) - len(text.lstrip())
    return text[text.rfind("\n", 0, blank) + 1 :]


def _same_line(given: str, expected: str, decimals: bool) -> bool:
    if not decimals:
        return given.rstrip() == expected.rstrip()
    return given.strip() == expected.strip() or _same_numbers(given, expected)


def _same_numbers(given: str, expected: str) -> bool:
    try:
        pairs = zip(map(decimal.Decimal, given.split()), map(decimal.Decimal, expected.split()), strict=True)
        return all(one.is_finite() and one == other for one, other in pairs)
    except (decimal.InvalidOperation, ValueError):
        return False


def same_value(given: Any, expected: Any, wrapped: bool = False) -> bool:
    """Whether a returned value (of `program_values.json_value`) is the expected one; NaN and infinity never are."""
    try:
        finite = _all_finite(given)
    except RecursionError:
        return False
    return finite and (given == expected or (wrapped and isinstance(expected, list) and [given] == expected))


def _all_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(_all_finite(item) for item in inner)


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
