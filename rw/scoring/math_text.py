"""What two short mathematical texts say of each other without an algebra: equal as texts, equal as plain numbers.

Two second opinions beside a library's. `same_text` can only say yes; `same_numbers` says yes or no where both texts are
plain numbers or lists of them, and is exact (fractions of integers, no floats). None means no opinion.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

_SIGNS = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "π": r"\pi ", "∞": r"\infty ", "±": r"\pm ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "°": r"^\circ ",
    "²": "^2", "³": "^3", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "θ": r"\theta ",
    "’": "'", "“": '"', "”": '"', "\u00a0": " ", "\u2009": " ", "\u202f": " ",
}  # fmt: skip
_SIGN_TABLE = str.maketrans(_SIGNS)
_SPACING = re.compile(r"(?<!\\)\\(?:[,;: ]|q?quad\b)|(?<=\S)~")
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits)(?![a-zA-Z])\.?|(?<!\\)\\!")
_TEXT_GROUP = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname\*?)\s*\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_SHORT_FRACTION = re.compile(
    r"\\frac\s*(?:\{([^{}]*)\}|(\d)|(\\[a-zA-Z]+|[a-zA-Z]))\s*(?:\{([^{}]*)\}|(\d)|(\\[a-zA-Z]+|[a-zA-Z]))"
)
_SHORT_ROOT = re.compile(r"\\sqrt\s*(\d|[a-zA-Z](?![a-zA-Z]))")
_PLAIN_ROOT = re.compile(r"(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)|√\s*(?:\(([^()]*)\)|(\d+|[a-zA-Z]))")
_PLAIN_FUNCTION = re.compile(r"(?<![\\a-zA-Z])(sin|cos|tan|cot|sec|csc|ln|log|exp|arc(?:sin|cos|tan))(?=\s*\()")
_PLAIN_NAME = re.compile(r"(?<![\\a-zA-Z])(pi|infinity|infty|theta|pm)(?![a-zA-Z])")
_DEGREE = re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree\b|(?<=\d)\s*degrees?$")
_NAMES = {"pi": r"\pi ", "infinity": r"\infty ", "infty": r"\infty ", "theta": r"\theta ", "pm": r"\pm "}
_DEFINED = re.compile(r"(?:[a-zA-Z]|\\[a-zA-Z]+)(?:_\{?\w+\}?)?'*(?:\((?:[a-z\d]|[a-z](?:,\s*[a-z])+)\))?\s*=\s*")
_SEPARATOR = re.compile(r"[,;]|(?<![\\a-zA-Z])(?:and|or)(?![a-zA-Z])|\\(?:text|mathrm)\s*\{\s*,?\s*(?:and|or)\s*\}")
_TRUTHS = ("yes", "no", "true", "false")
_MEMBER = re.compile(r"[a-zA-Z]\s*\\in(?![a-zA-Z])\s*")
_WORDS = re.compile(r"(?=.*[A-Za-z]{3})[A-Za-z ,.;'-]+")
_RELATION = re.compile(r"[=<>]|\\(?:le|ge|leq|geq|ne|neq|in|equiv|approx)(?![a-zA-Z])")


def latex(text: str) -> str:
    """`text` as LaTeX that a parser takes: one line, signs as commands, plain `sqrt(…)` and `pi` too, no dollars."""
    text = " ".join(text.translate(_SIGN_TABLE).split())
    text = re.sub(r"(?<!\\)(?:\\[()\[\]]|\$)", " ", text)
    text = _PLAIN_ROOT.sub(lambda match: rf"\sqrt{{{match[1] or match[2] or match[3]}}}", text)
    text = _PLAIN_FUNCTION.sub(r"\\\1", _PLAIN_NAME.sub(lambda match: _NAMES[match[1]], text))
    return text.replace("**", "^").strip()


def normalise(text: str) -> str:
    """Equal for texts that differ only in how they are typeset. Upper and lower case, signs and order stay."""
    # Spaces mean nothing but between two words or two digits.
    text = _readable(text)
    return re.sub(r"(?<![A-Za-z\d]) | (?![A-Za-z\d])|(?<=\d) (?=[A-Za-z])|(?<=[A-Za-z]) (?=\d)", "", text)


def _readable(text: str) -> str:
    text = _SIZES.sub("", latex(text))
    text = _SPACING.sub(" ", text).replace(r"\$", "").replace(r"\%", "%").replace("{,}", ",")
    text = _DEGREE.sub("", text)
    for _ in range(3):
        text = _TEXT_GROUP.sub(r" \1 ", text)
    text = _SHORT_FRACTION.sub(_braced_fraction, _FRACTION.sub(r"\\frac", text))
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", text)
    text = re.sub(r"([_^])\s*\{(\w)\}", r"\1\2", text)
    text = text.replace(r"\varnothing", r"\emptyset")
    text = re.sub(r"\\leq(?![a-zA-Z])", r"\\le", re.sub(r"\\geq(?![a-zA-Z])", r"\\ge", text))
    return re.sub(r"\s+", " ", text).strip().rstrip(".").rstrip()


def _braced_fraction(match: re.Match) -> str:
    top, bottom = match[1] or match[2] or match[3] or "", match[4] or match[5] or match[6] or ""
    return rf"\frac{{{top.strip()}}}{{{bottom.strip()}}}"


def value_side(answer: str, gold: str) -> str:
    """`answer` without the "x =" before it where `gold` names no variable; of "x = 2 + 3 = 5" the last part.

    Of "x = 2 or x = 3" the values, 2 and 3; where the variables differ nothing is taken away.
    """
    if _RELATION.search(gold):
        return answer
    match = _DEFINED.match(answer)
    if not match:
        member = _MEMBER.match(answer)
        return answer[member.end() :] if member else answer
    value = answer[match.end() :]
    if "=" not in value:
        return value
    parts = [part.strip() for part in _SEPARATOR.split(answer)]
    if len(parts) == 1:
        return value.rpartition("=")[2].strip()
    defined = [_DEFINED.match(part) for part in parts]
    if all(defined) and len({one[0] for one in defined}) == 1:
        return ", ".join(part[one.end() :] for part, one in zip(parts, defined, strict=True))
    return answer


def same_text(gold: str, answer: str) -> bool | None:
    """True where the texts are equal after `normalise`, words of three letters and more blind to case; else None.

    Where the gold answer is Yes, No, True or False with or without a clause behind it, that word decides.
    """
    one, other = normalise(gold), normalise(value_side(answer, gold))
    if not one or not other:
        return None
    if one == other or (_WORDS.fullmatch(one) and one.casefold() == other.casefold()):
        return True
    words = [_truth(side.casefold()) for side in (one, other)]
    return True if words[0] and words[0] == words[1] else None


def _truth(text: str) -> str:
    """Yes, No, True or False, with or without a clause behind it; empty for anything else, or where two are listed."""
    first, *rest = re.split(r"\s*(?:[,.;:/]|\bor\b|\band\b)\s*", text)
    return first if first in _TRUTHS and not any(part in _TRUTHS for part in rest) else ""


class Number(NamedTuple):
    """A plain number: its exact value, whether it was given in percent or as a decimal, unit and base as written."""

    value: Fraction
    decimal: bool = False
    percent: bool = False
    unit: str = ""
    base: str = ""


_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?: \d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)"
_UNIT = (
    r"(?:(?:sq|square|cubic|cu) )?"
    r"(?:cm|mm|km|ft|in|yd|kg|lbs?|oz|mph|hrs?|min|sec|ml|(?<= )[a-z]{4,15}(?: [a-z]{3,15})?)"
)
_PLAIN = re.compile(
    rf"(?P<sign>[+-]?) ?(?:"
    rf"(?P<whole>\d{{1,9}})? ?\\frac ?\{{ ?(?P<top>{_DECIMAL}) ?\}} ?\{{ ?(?P<bottom>{_DECIMAL}) ?\}}"
    rf"|(?:(?P<whole2>\d{{1,9}}) )?(?P<top2>{_DECIMAL}) ?/ ?(?P<bottom2>{_DECIMAL})"
    rf"|(?P<lead>\d*\.\d*) ?\\overline ?\{{(?P<cycle>\d{{1,30}})\}}"
    rf"|(?:(?P<mantissa>{_DECIMAL}) ?(?:\\times|\\cdot|\*) ?)?10 ?\^ ?\{{?(?P<exponent>[+-]?\d{{1,3}})\}}?"
    rf"|(?P<digits>[0-9A-F]{{1,40}}) ?_ ?\{{?(?P<base>\d{{1,2}})\}}?"
    rf"|(?P<decimal>{_DECIMAL}))"
    rf" ?(?P<percent>%|percent\b)? ?(?P<unit>{_UNIT}(?: ?\^\d)?\.?)?"
)
_NO_UNIT = re.compile(
    r"\b(?:hundreds?|thousands?|dozens?|score|base|times|when|plus|minus|than|not|and|from|over|with|is|are|squared|cubed"
    r"|factorial|hal(?:f|ves)|thirds?|quarters?|choose|modulo|root|sqrt|infinity|negative|more|less|\w+illions?|\w+ths?)\b"
)


def number(text: str) -> Number | None:
    """One plain number; None where `text` is anything else. Texts over 400 characters are."""
    match = _PLAIN.fullmatch(text) if len(text) <= 400 else None
    unit = (match["unit"] or "").strip() if match else ""
    if not match or (unit and _NO_UNIT.search(unit)):
        return None
    if match["base"]:
        # Digits are compared as written: what a question asks for is the numeral.
        digits = int(match["digits"], 10 if match["digits"].isdigit() else 16)
        return Number(Fraction(-digits if match["sign"] == "-" else digits), base=str(int(match["base"])))
    try:
        value = _value(match)
    except ZeroDivisionError:
        return None
    value = -value if match["sign"] == "-" else value
    return Number(value, "." in (match["decimal"] or ""), bool(match["percent"]), unit)


def _value(match: re.Match) -> Fraction:
    if match["decimal"]:
        return _fraction(match["decimal"])
    if match["exponent"]:
        return _fraction(match["mantissa"] or "1") * Fraction(10) ** int(match["exponent"])
    if match["cycle"]:
        lead, cycle = match["lead"], match["cycle"]
        place = Fraction(10) ** -len(lead.partition(".")[2])
        return _fraction(f"0{lead}") + place * Fraction(int(cycle), 10 ** len(cycle) - 1)
    suffix = "2" if match["top2"] else ""
    whole = int(match["whole" + suffix] or 0)
    return whole + _fraction(match["top" + suffix]) / _fraction(match["bottom" + suffix])


def _fraction(decimal: str) -> Fraction:
    return Fraction(decimal.replace(",", "").replace(" ", "").removesuffix("."))


def numbers(text: str) -> list[Number] | None:
    """`text` as plain numbers: one, or a list of them by commas, "and" or "or", in braces or not; else None."""
    text = _readable(text)
    if (one := number(text)) is not None:
        return [one]
    text = text.removeprefix(r"\{").removesuffix(r"\}") if text.startswith(r"\{") and text.endswith(r"\}") else text
    parts = [number(part.strip()) for part in re.split(r",? ?\b(?:and|or)\b|[,;]", text)]
    return None if len(parts) < 2 or any(part is None for part in parts) else parts


_NEAR = Fraction(1, 10**6)


def same_numbers(gold: str, answer: str) -> bool | None:
    """Whether two texts are the same plain numbers, in any order. None where one is something else, or they are close.

    Exact, except that a decimal within a millionth of the other value (relative) is left to others to judge: 0.333333
    may do for 1/3. A percentage equals the number without its sign, and its hundredth. Units are not compared, but a
    number in one unit says nothing of a number in another. A numeral with a base equals only the same digits in the
    same base.
    """
    ours, theirs = numbers(gold), numbers(value_side(answer, gold))
    if ours is None or theirs is None:
        return None
    if len(ours) != len(theirs):
        return False
    pairs = zip(sorted(ours, key=lambda n: n.value), sorted(theirs, key=lambda n: n.value), strict=True)
    opinions = [_same(one, other) for one, other in pairs]
    if False in opinions:
        return False
    return None if None in opinions else True


def _same(gold: Number, answer: Number) -> bool | None:
    if gold.base != answer.base:
        in_ten = gold.base in ("", "10") and answer.base in ("", "10")
        if not in_ten:
            return None if gold.base and not answer.base and gold.value == answer.value else False
    if gold.percent == answer.percent:
        candidates = [answer.value]
    else:
        candidates = [answer.value, answer.value * 100 if gold.percent else answer.value / 100]
    if any(candidate == gold.value for candidate in candidates):
        return None if gold.unit and answer.unit and gold.unit != answer.unit else True
    if not (gold.decimal or answer.decimal):
        return False
    near = any(abs(candidate - gold.value) <= _NEAR * max(abs(candidate), abs(gold.value)) for candidate in candidates)
    return None if near else False


LONGEST = 2000  # characters of an answer that an algebra gets to see; a longer one can only be equal as a text

_DROPPED = re.compile(r"\\(?:[lcv]?dots[bcmio]?|approx|sim|pmod|bmod|mod|mid)(?![a-zA-Z])|\.\.\.|…|≈")
_SIDE_BY_SIDE = re.compile(
    r"\d\s*\)?(?:\s|\\[ ,;:!]|~)*\(\s*[-+]?[\d.]+\s*\)|\(\s*[-+]?[\d.]+\s*\)\s*\d"
    r"|(?<!\\log_)\d(?:\s|\\[ ,;:!]|\\q?quad|~)+\d"
)
_CLOCK = re.compile(r"\d:\d\d(?!\d)")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]*[a-z][a-z]+")
_NOT_PROSE = frozenset(
    "and or if all mod real pi sin cos tan cot sec csc log ln exp min max gcd lcm cm mm km ft in sq kg lb mph "
    "unit units square cubic inches inch feet foot meters metres centimeters miles hours minutes seconds degrees "
    "dollars".split()
)


def misread(text: str) -> str | None:
    """Why an algebra must not be asked about `text`: it would read something else there. None where it may be.

    The library skips dots and words, keeps the left side of ≈, adds numbers that stand side by side, takes 12:30 for a
    ratio, and does not tell A from a; none of it is an error to it.
    """
    if len(text) > LONGEST:
        return "too long"
    if numbers(text) is not None:
        return None
    if _DROPPED.search(text):
        return "dots or a congruence"
    if _CLOCK.search(text):
        return "a time of day"
    if _SIDE_BY_SIDE.search(text):
        return "numbers side by side"
    if len([word for word in _WORD.findall(_without_commands(text)) if word.lower() not in _NOT_PROSE]) >= 2:
        return "prose"
    letters = variables(text)
    return "a letter in both cases" if letters & {letter.swapcase() for letter in letters} else None


def variables(text: str) -> set[str]:
    """The letters outside commands and words."""
    bare = re.sub(r"\\(?:text|mathrm|mbox|textbf)\s*\{[^{}]*\}", " ", text)
    return set(re.findall(r"[A-Za-z]", _without_commands(bare)))


def _without_commands(text: str) -> str:
    return re.sub(r"\\(?:begin|end)\s*\{[a-zA-Z]*\*?\}(?:\s*\{[lcr|]*\})?|\\[a-zA-Z]+", " ", text)


def cases_differ(gold: str, answer: str) -> bool:
    """A letter of one stands in the other only in the other case, as with K and k."""
    ours, theirs = variables(gold), variables(answer)
    return any(letter.swapcase() in theirs and letter not in theirs for letter in ours)


def brackets_differ(gold: str, answer: str) -> bool:
    """One is a set in braces and the other a point or an interval; the library compares them number by number."""
    around = {
        _enclosing(normalise(value_side(side, "")).replace("\\{", "{").replace("\\}", "}")) for side in (gold, answer)
    }
    return "{" in around and bool(around & {"(", "["})


def both_signs(text: str) -> str:
    r"""A value with one \pm in it as a list of its two values; anything else as it is."""
    parts = text.split(r"\pm")
    if len(parts) != 2 or _RELATION.search(text) or _SEPARATOR.search(text) or r"\mp" in text:
        return text
    plus = f"{parts[0]}+{parts[1]}" if re.search(r"[^\s{(]\s*$", parts[0]) else parts[0] + parts[1]
    return f"{plus}, {parts[0]}-{parts[1]}"


def places_differ(gold: str, answer: str) -> bool:
    """Of x = 1, y = 2 the answer gives the values without their names, in another order."""
    parts = [part.strip() for part in _SEPARATOR.split(_readable(gold))]
    names = [_DEFINED.match(part) for part in parts]
    if len(parts) < 2 or not all(names) or len({name[0] for name in names}) < len(parts):
        return False
    ours = [number(part[name.end() :].strip()) for part, name in zip(parts, names, strict=True)]
    theirs = numbers(answer)
    if theirs is None or None in ours or len(theirs) != len(ours):
        return False
    return [one.value for one in ours] != [one.value for one in theirs]


def _enclosing(text: str) -> str:
    """The bracket that opens `text` where the one that closes it is its last sign; else an empty text."""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if depth == 0:
            return text[0] if at and at == len(text) - 1 else ""
    return ""
