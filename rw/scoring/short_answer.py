"""Scorers of short factual answers. Pure; they judge the body of the router's answer, and never raise."""

from __future__ import annotations

import re
import string
from typing import Any

from rw.types import Query, Verdict

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
        return Verdict(False, "no answer")
    accepted = _references(query.reference)
    match = next((reference for reference in accepted if normalise(reference) == given), None)
    return Verdict(match is not None, f"matches {match!r}" if match is not None else f"{given!r} matches no reference")


def simulated(response: str, query: Query) -> Verdict:
    """Exact match with any reference of a procedural query, blind to case, spacing and a final full stop.

    Signs and decimal points stay, unlike in SQuAD's normalisation: these answers may be numbers.
    """
    given = _plain(response) if isinstance(response, str) else ""
    correct = bool(given) and any(_plain(reference) == given for reference in _references(query.reference))
    return Verdict(correct, f"{given!r} {'matches' if correct else 'matches no reference'}" if given else "no answer")


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).removesuffix(".").rstrip()


def _references(reference: Any) -> tuple[str, ...]:
    accepted = (reference,) if isinstance(reference, (str, int, float)) else reference
    return tuple(str(one) for one in accepted) if isinstance(accepted, (tuple, list)) else ()
