"""When two texts ask the same thing in the same words."""

from __future__ import annotations

import re
import unicodedata

_TYPOGRAPHY = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "−": "-", "\u00ad": None})
_TOKEN = re.compile(r"\w+|[^\w\s]")


def normalised(text: str) -> str:
    """The text for telling equal questions: case, runs of blanks, quote and dash forms and the last mark do not count.

    Other punctuation does: x + 1 and x - 1, or two rows of brackets, are different questions.
    """
    folded = unicodedata.normalize("NFC", text).translate(_TYPOGRAPHY).casefold()
    return " ".join(folded.split()).rstrip(" .?!:")


def tokens(text: str) -> list[str]:
    """Words and single marks of the normalised text, in order."""
    return _TOKEN.findall(normalised(text))
