"""The child process of `math_answer`: two rules of equality that need an algebra. Run as a script, by `timed` alone.

What comes in was written by strangers: nothing here bounds its own time, the parent does.
"""

from __future__ import annotations

import cmath
import functools
import logging
import re
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy
from math_verify import LatexExtractionConfig, parse, verify

from rw.scoring import math_text, timed

_CLOSE = 1e-6  # relative: a decimal of seven digits may stand for a fraction
_PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)
_MEMORY_BYTES = 3 << 30  # of address space; a comparison of ordinary answers takes a few hundred MiB


def answer(request: dict[str, Any]) -> dict[str, bool | None]:
    """Opinions by name on `request["gold"]` and `request["answer"]`, both LaTeX, by the rule `request["rule"]`."""
    gold, given = request["gold"], request["answer"]
    if request["rule"] == "released":
        return {"released": by_released_rule(gold, given)}
    return {"math_verify": by_math_verify(gold, given), "points": at_points(gold, given)}


def by_math_verify(gold: str, given: str) -> bool:
    """The library of that name. Not symmetric: the gold answer goes first. Its timeouts by signals are off."""
    return bool(verify(_parsed(gold), _parsed(given), timeout_seconds=None, allow_set_relation_comp=True))


@functools.lru_cache(maxsize=512)
def _parsed(text: str) -> list[Any]:
    # Bare LaTeX is no LaTeX to the library: without the dollars it reads \frac12 as 12.
    return parse(f"${text}$", extraction_config=[LatexExtractionConfig()], parsing_timeout=None)


def at_points(gold: str, given: str) -> bool | None:
    """Whether two expressions, or two equations, agree in value where their variables take a few fixed values.

    None for anything else, and for percentages, whose sign the library reads in two ways.
    """
    ours, theirs = _parsed(gold)[:1], _parsed(given)[:1]
    if not ours or not theirs or "%" in gold + given:
        return None
    one, other = ours[0], theirs[0]
    try:
        if isinstance(one, sympy.Eq) and isinstance(other, sympy.Eq):
            return _same_equation(one.lhs - one.rhs, other.lhs - other.rhs)
        if isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr):
            return _same_values(one, other)
    except Exception:  # no number at a point: nothing was learnt
        return None
    return None


def _same_values(one: sympy.Expr, other: sympy.Expr) -> bool | None:
    symbols = one.free_symbols | other.free_symbols
    pairs = [(_value(one, symbols, point), _value(other, symbols, point)) for point in range(3)]
    known = [pair for pair in pairs if None not in pair]
    return all(abs(a - b) <= _CLOSE * max(abs(a), abs(b)) for a, b in known) if known else None


def _same_equation(one: sympy.Expr, other: sympy.Expr) -> bool | None:
    """Left sides less right sides: multiples of each other, or with the same solutions, real or not, for a variable."""
    symbols = one.free_symbols | other.free_symbols
    values = [(_value(one, symbols, point), _value(other, symbols, point)) for point in range(3)]
    if all(None not in pair and pair[1] != 0 for pair in values):
        ratios = [a / b for a, b in values]
        if all(abs(ratio - ratios[0]) <= _CLOSE * abs(ratios[0]) for ratio in ratios):
            return ratios[0] != 0
    free = {symbol: sympy.Dummy(symbol.name) for symbol in symbols}  # the library's symbols are real
    for symbol in sorted(symbols, key=str):
        ours, theirs = (sympy.solve(side.subs(free), free[symbol]) for side in (one, other))
        if ours and theirs:
            return len(ours) == len(theirs) and all(any(_same_values(a, b) for b in theirs) for a in ours)
    return None


def _value(expression: sympy.Expr, symbols: set[sympy.Symbol], point: int) -> complex | None:
    places = sorted(symbols, key=lambda symbol: symbol.name)
    at = {symbol: sympy.Rational(_PRIMES[(3 * point + 5 * k) % len(_PRIMES)], 7) for k, symbol in enumerate(places)}
    value = expression.doit().subs(at).evalf(30)
    value = complex(value) if value.is_number else None
    return value if value is not None and cmath.isfinite(value) else None


def by_released_rule(gold: str, given: str) -> bool:
    """After the authors' code as it was described: rationals exactly, ± as two values, lists in any order, else sympy.

    Elements are matched one to one.
    """
    ours = _elements(math_text.value_side(gold, given))
    theirs = [math_text.value_side(element, gold) for element in _elements(math_text.value_side(given, gold))]
    if len(ours) != len(theirs):
        return False
    for element in ours:
        match = next((other for other in theirs if _equal(element, other)), None)
        if match is None:
            return False
        theirs.remove(match)
    return True


def _elements(text: str) -> list[str]:
    """The members of an unordered list by its outermost commas, ± written out; a tuple or interval is one member."""
    text = math_text.normalise(re.sub(r"(?<![\\A-Za-z])(?:and|or)(?![A-Za-z])", ",", text)).replace(",,", ",")
    if math_text.number(text) is None:  # the comma of 1,000 parts nothing
        braces = re.fullmatch(r"\\?\{(.*?)\\?\}", text)
        text = braces[1] if braces else text
        parts, depth, start = [], 0, 0
        for at, sign in enumerate(text):
            depth += (sign in "([{") - (sign in ")]}")
            if sign == "," and depth == 0:
                parts.append(text[start:at])
                start = at + 1
        parts.append(text[start:])
    else:
        parts = [text]
    return [one for part in parts for one in (_both_signs(part) if r"\pm" in part else [part])]


def _both_signs(part: str) -> list[str]:
    return [part.replace(r"\pm", "+", 1).removeprefix("+"), part.replace(r"\pm", "-", 1)]


def _equal(one: str, other: str) -> bool:
    if one == other:
        return True
    numbers = math_text.number(one), math_text.number(other)
    if all(numbers):
        return numbers[0].value == numbers[1].value
    try:
        difference = sympy.simplify(latex2sympy(one) - latex2sympy(other))
        return difference == 0
    except Exception:  # no expression, or none that can be subtracted: then only equal texts are equal
        return False


def _warm_up() -> None:
    """First use compiles the library's expressions and the grammar's tables: not to be counted to an answer."""
    for gold, given in ((r"\frac{1}{2}", "0.5"), (r"x^2+\sqrt{2}", r"\log_2 5"), ("(1,2]", r"\{1,2\}")):
        answer({"rule": "math_verify", "gold": gold, "answer": given})


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    _warm_up()
    timed.serve(answer, _MEMORY_BYTES)
