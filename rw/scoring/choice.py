"""Scorer of multiple choice: SuperGPQA, GPQA-Diamond. Pure; never raises."""

from __future__ import annotations

import re

from rw.types import Query, Verdict, VerdictKind

VERSION = "choice/1"
LETTERS = "ABCDEFGHIJ"  # where a query does not say which letters its options have

# A capital by itself: no letter, digit or apostrophe touches it, it is no part of "A-level", "U.S.A." or a command.
_CAPITAL = re.compile(r"(?<![\w'’\\])(?<!\w-)(?<![A-Z]\.)([A-Z])(?![\w'’])(?!-[A-Za-z])(?!\.[A-Z](?![a-z]))")
# Emphasis by underscores and single quotes around a letter; those of subscripts and of primes stay.
_AROUND = re.compile(
    r"(?<![\w})\]])_{1,3}(?=[^\s_])|(?<=[^\s_])_{1,3}(?![\w{])|(?<!\w)['‘’](?=[A-Z]['’](?!\w))|(?<=['‘’][A-Z])['’](?!\w)"
)
_ARTICLE = re.compile(r"[ \t]+[a-z]")


def choice(response: str, query: Query) -> Verdict:
    """The last option letter of the response must be the reference (RouteWeaver, Appendix B.2).

    The options' letters are `query.metadata["letters"]`. A letter counts where it stands alone ("B", "(B)", "**B**",
    "__B__", "B.", "\\boxed{B}"); the paper does not say more, and as "A" and "I" are words too, they are none before a
    lower-case word ("A force acts", "I think") [ours]. Lower-case letters never count.
    """
    letters = query.metadata.get("letters") or LETTERS
    reference = str(query.reference).strip("() .\n").upper()
    given = last_letter(response, letters) if isinstance(response, str) else None
    if given is None:
        return Verdict(False, f"no letter of {letters}", kind=VerdictKind.WRONG, scorer=VERSION)
    correct = given == reference
    detail = f"{given} {'is' if correct else 'is not'} {reference}"
    return Verdict(correct, detail, kind=VerdictKind.PASS if correct else VerdictKind.WRONG, scorer=VERSION)


def last_letter(text: str, letters: str) -> str | None:
    """The last capital of `letters` that stands alone in `text`; None where there is none."""
    last, text = None, _AROUND.sub(" ", text)
    for match in _CAPITAL.finditer(text):
        if match[1] in letters and not (match[1] in "AI" and _ARTICLE.match(text, match.end())):
            last = match[1]
    return last
