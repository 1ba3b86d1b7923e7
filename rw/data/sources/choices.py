"""Questions with lettered options: SuperGPQA and GPQA-Diamond."""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from rw.data.answer_formats import LETTER
from rw.data.hub import Hub
from rw.data.sources.schema import Item, Place, Source, Unusable, field, known, text_of

FEWEST, MOST = 4, 10  # options of SuperGPQA
_FOLDED = re.compile(r"\A(?P<stem>.*)\n\s*Options are:\n(?P<options>A\. .*)\Z", re.DOTALL)


def question_with_options(stem: str, options: Sequence[str]) -> str:
    """The question and below it its options, lettered from A."""
    lettered = "\n".join(f"{letter}. {option}" for letter, option in zip(string.ascii_uppercase, options, strict=False))
    return f"{stem}\n\n{lettered}"


def read_super_gpqa(row: Mapping[str, Any], place: Place) -> Item:
    """SuperGPQA: uuid, question, 4 to 10 options, answer (an option's text), answer_letter, discipline and so on.

    Also read: a copy in circulation with the options folded into the question and "B. text" as the answer.
    """
    stem, answer = text_of(row, "question"), text_of(row, "answer")
    if "options" in row:
        options = _option_texts(row["options"])
        letter = str(row.get("answer_letter") or "").strip().upper() or _letter_of(answer, options)
    else:
        stem, options = _unfolded(stem)
        letter, _, answer = (part.strip() for part in answer.partition("."))
    if not FEWEST <= len(options) <= MOST:
        raise Unusable("options_not_4_to_10")
    letters = string.ascii_uppercase[: len(options)]
    if len(letter) != 1 or letter not in letters or options[letters.index(letter)].strip() != answer.strip():
        raise Unusable("letter_and_answer_differ")
    if sum(option.strip() == answer.strip() for option in options) > 1:
        raise Unusable("right_option_twice")
    metadata = {"letters": letters, **known(row, ["difficulty", "discipline", "field", "subfield", "is_calculation"])}
    return Item(str(row.get("uuid") or ""), question_with_options(stem, options), LETTER, letter, metadata)


def read_gpqa_diamond(row: Mapping[str, Any], place: Place) -> Item:
    """GPQA: Question, Correct Answer, Incorrect Answer 1 to 3, Record ID; the order of the options is drawn here.

    The draw depends on the item alone, so every run and every machine shows the same letters.
    """
    stem = text_of(row, "Question").strip()
    right = text_of(row, "Correct Answer").strip()
    options = [right, *(text_of(row, f"Incorrect Answer {number}").strip() for number in (1, 2, 3))]
    if options.count(right) > 1:
        raise Unusable("right_option_twice")
    key = str(row.get("Record ID") or "").strip()
    drawn_by = key or stem
    options = [options[index] for index in sorted(range(4), key=lambda index: _draw(drawn_by, index))]
    metadata = {"letters": "ABCD", **known(row, ["High-level domain", "Subdomain"])}
    return Item(key, question_with_options(stem, options), LETTER, "ABCD"[options.index(right)], metadata)


def _draw(key: str, index: int) -> bytes:
    return hashlib.sha256(f"{key}/{index}".encode("utf-8", "surrogatepass")).digest()


def _option_texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(option, str) and option.strip() for option in value):
        raise Unusable("options_not_texts")
    return value


def _letter_of(answer: str, options: Sequence[str]) -> str:
    places = [index for index, option in enumerate(options) if option.strip() == answer.strip()]
    return string.ascii_uppercase[places[0]] if len(places) == 1 else ""


def _unfolded(text: str) -> tuple[str, list[str]]:
    """The question and its options, which follow in the order of their letters, each at the beginning of a line."""
    found = _FOLDED.match(text)
    if found is None:
        field({}, "options")
    rest, options = f"\n{found['options']}", []
    for letter in string.ascii_uppercase:
        head, marker, tail = rest.partition(f"\n{letter}. ")
        if not marker:
            break
        options += [head] if letter != "A" else []
        rest = tail
    return found["stem"], [*options, rest]


SOURCES = {
    "super_gpqa": Source(read_super_gpqa, "knowledge", Hub("m-a-p/SuperGPQA", {"train": "train", "test": "train"})),
    "gpqa_diamond": Source(
        read_gpqa_diamond, "knowledge", Hub("Idavidrein/gpqa", {"test": "train"}, ("gpqa_diamond",))
    ),
}
