"""Scorers of short factual answers. Pure; they judge the body of the router's answer, and never raise."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

from rw.types import Query, Verdict, VerdictKind

TRIVIA_QA_VERSION = "trivia_qa/1"
SIMPLE_QA_VERSION = "simple_qa_verified/1"
SIMULATED_VERSION = "simulated/1"

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """SQuAD's normalisation, in its order: lower case, no punctuation, no articles, single spaces.

    The order matters: "a-the" loses its hyphen first, and is then one word that holds no article.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def trivia_qa(response: str, query: Query) -> Verdict:
    """Exact match with any accepted answer after normalisation (RouteWeaver, Appendix B.2).

    An answer that normalises to nothing is wrong, even where a reference does too.
    """
    given = normalise(response) if isinstance(response, str) else ""
    if not given:
        return _verdict(False, "no answer", TRIVIA_QA_VERSION)
    accepted = _references(query.reference)
    match = next((reference for reference in accepted if normalise(reference) == given), None)
    detail = f"matches {match!r}" if match is not None else f"{_shown(given)} matches no reference"
    return _verdict(match is not None, detail, TRIVIA_QA_VERSION)


_RANGE = re.compile(
    r"\(\s*acceptable range:?\s*(?:anything\s+)?between\s+(?P<low>[-+]?[\d.,]*\d)\D*?"
    r"\s+and\s+(?P<high>[-+]?[\d.,]*\d)[^()]*\)",
    re.IGNORECASE,
)
_ALTERNATIVE = re.compile(r"\(\s*or\s+([^()]+)\)", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.,])[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\w|[.,]\d)")


def simple_qa_verified(response: str, query: Query) -> Verdict:
    """Normalised exact match, or the reference stands in the response as whole words (RouteWeaver, Appendix B.2).

    The reference is read as the data set's file writes it, which the paper does not say how to [ours]:
    - "150 (acceptable range: anything between 148 and 152)": a number of the response within the range, ends included,
      is right, whatever its unit. Taken literally no answer could ever match such a reference.
    - "150", a number alone: a number of the response must have that value ("3" is not in "1,563", "3.5" or "-3").
    - "tramp steamer (or collier)": both, and the whole text, are accepted.
    - A final full stop and spaces around it are dropped.
    Exact match is by SQuAD's normalisation. Whole words: both sides in lower case, spaces as one, and neither a letter
    nor a digit may touch the match [released]; nor may a number go on where it begins or ends with a digit [ours].
    """
    if not isinstance(response, str) or not response.strip():
        return _verdict(False, "no answer", SIMPLE_QA_VERSION)
    for reference in _references(query.reference):
        if bounds := _range(reference):
            number = next((one for one in _numbers(response) if bounds[0] <= one <= bounds[1]), None)
            if number is not None:
                return _verdict(True, f"{number} is within {bounds[0]} to {bounds[1]}", SIMPLE_QA_VERSION)
        for name in _names(reference):
            if _NUMBER.fullmatch(name):
                matched = _value(name) in _numbers(response)
            else:
                matched = _holds(response, name) or bool(normalise(name) and normalise(name) == normalise(response))
            if matched:
                return _verdict(True, f"matches {name!r}", SIMPLE_QA_VERSION)
    return _verdict(False, f"{_shown(response)} matches no reference", SIMPLE_QA_VERSION)


def _names(reference: str) -> list[str]:
    """What a reference accepts, the most literal last."""
    without = _RANGE.sub("", _ALTERNATIVE.sub("", reference))
    names = [without, *_ALTERNATIVE.findall(reference), reference]
    return list(dict.fromkeys(" ".join(name.split()).removesuffix(".").rstrip() for name in names))


def _range(reference: str) -> tuple[Decimal, Decimal] | None:
    match = _RANGE.search(reference)
    if match is None:
        return None
    try:
        low, high = (Decimal(match[end].replace(",", "")) for end in ("low", "high"))
    except InvalidOperation:
        return None
    return (low, high) if low <= high else (high, low)


def _numbers(text: str) -> Iterator[Decimal]:
    return (_value(match[0]) for match in _NUMBER.finditer(text))


def _value(number: str) -> Decimal:
    return Decimal(number.replace(",", "").replace("−", "-"))


def _holds(response: str, name: str) -> bool:
    text, name = " ".join(response.lower().split()), name.lower()
    if not re.search(r"[^\W_]", name):
        return False
    before = r"(?<![^\W_])" + (r"(?<!\d[.,])(?<![-−])" if name[0].isdigit() else "")
    after = (r"(?![.,]\d)" if name[-1].isdigit() else "") + r"(?![^\W_])"
    return re.search(before + re.escape(name) + after, text) is not None


def simulated(response: str, query: Query) -> Verdict:
    """Exact match with any reference of a procedural query, blind to case, spacing and a final full stop.

    Signs and decimal points stay, unlike in SQuAD's normalisation: these answers may be numbers.
    """
    given = _plain(response) if isinstance(response, str) else ""
    correct = bool(given) and any(_plain(reference) == given for reference in _references(query.reference))
    detail = f"{_shown(given)} {'matches' if correct else 'matches no reference'}" if given else "no answer"
    return _verdict(correct, detail, SIMULATED_VERSION)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).removesuffix(".").rstrip()


def _references(reference: Any) -> tuple[str, ...]:
    accepted = (reference,) if isinstance(reference, (str, int, float)) else reference
    return tuple(str(one) for one in accepted) if isinstance(accepted, (tuple, list)) else ()


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}…")


def _verdict(correct: bool, detail: str, version: str) -> Verdict:
    return Verdict(correct, detail, kind=VerdictKind.PASS if correct else VerdictKind.WRONG, scorer=version)
