"""Mathematics with an answer to compare: MATH, MATH-500, Omni-MATH, GSM8K and AIME."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rw.data.answer_formats import MATHS
from rw.data.hub import Hub
from rw.data.sources.schema import Item, Place, Source, Unusable, field, known, text_of

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_WRAPPED = re.compile(r"\s*(?:\\\[((?:(?!\\[\[\]]).)*)\\\]|\\\(((?:(?!\\[()]).)*)\\\)|\$\$([^$]*)\$\$)\s*\Z", re.DOTALL)
_AIME_MOST = 999
_MATH_CONFIGS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)


def last_box(text: str) -> str | None:
    r"""What stands in the last `\boxed{…}` or `\fbox{…}`, braces inside it matched; None where there is none.

    `\boxed 2` without braces holds what follows up to the next dollar sign or line end.
    """
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    start = boxes[-1].end()
    if not text.startswith("{", start):
        return re.split(r"\$|\n|\\\]|\\\)", text[start:], maxsplit=1)[0].strip()
    depth, index = 0, start
    while index < len(text):
        if text[index] == "\\":
            index += 1  # an escaped brace is a character of the answer
        elif text[index] in "{}":
            depth += 1 if text[index] == "{" else -1
            if depth == 0:
                return text[start + 1 : index].strip()
        index += 1
    return None


def read_math(row: Mapping[str, Any], place: Place) -> Item:
    """MATH (Hendrycks et al.): problem, level "Level 1" … "Level 5" or "Level ?", type, solution; no answer column."""
    level = re.search(r"[1-5]", str(row.get("level") or ""))
    number = int(level.group()) if level else None
    if place.options.levels and number not in place.options.levels:
        raise Unusable("level_not_wanted" if number else "level_unknown")
    answer = last_box(text_of(row, "solution"))
    if answer is None:
        raise Unusable("no_boxed_answer")
    if not answer:
        raise Unusable("empty_answer")
    metadata = {**({"level": number} if number else {}), **known(row, ["type"])}
    return Item("", text_of(row, "problem"), MATHS, answer, metadata)


def read_math_500(row: Mapping[str, Any], place: Place) -> Item:
    """MATH-500: problem, answer, subject, level as a number, unique_id such as test/precalculus/807.json."""
    key = text_of(row, "unique_id").removesuffix(".json")
    return Item(key, text_of(row, "problem"), MATHS, text_of(row, "answer"), known(row, ["level", "subject"]))


def read_omni_math(row: Mapping[str, Any], place: Place) -> Item:
    """Omni-MATH: problem, answer, domain (a list), difficulty, source; some answers are boxed or set as a display.

    Many answers are sentences, which no rule can compare; they are kept, since the paper's test set is drawn from all.
    The subset that rules can check is published as a set of its own, in the same schema.
    """
    answer = text_of(row, "answer")
    boxed = last_box(answer)
    wrapped = _WRAPPED.match(answer)
    if boxed:
        answer = boxed
    elif wrapped:
        answer = next(part for part in wrapped.groups() if part is not None).strip()
    if not answer.strip():
        raise Unusable("empty_answer")
    return Item("", text_of(row, "problem"), MATHS, answer, known(row, ["difficulty", "source", "domain"]))


def read_gsm8k(row: Mapping[str, Any], place: Place) -> Item:
    """GSM8K: question, and an answer whose last line is `#### 1,234`."""
    _, marker, final = text_of(row, "answer").rpartition("####")
    final = final.strip().replace(",", "")
    if not marker or not final:
        raise Unusable("no_final_answer")
    return Item("", text_of(row, "question"), MATHS, final, {})


def read_aime(row: Mapping[str, Any], place: Place) -> Item:
    """AIME of any year: problem, and an answer from 0 to 999, often padded with zeros, which are taken off here.

    The ids of the collections are running numbers that overlap between years, so they are kept as metadata alone.
    """
    answer = str(field(row, "answer")).strip()
    if not re.fullmatch(r"\d{1,9}(\.0+)?", answer) or int(answer.partition(".")[0]) > _AIME_MOST:
        raise Unusable("answer_not_of_aime")
    number = str(int(answer.partition(".")[0]))
    return Item("", text_of(row, "problem", "question"), MATHS, number, known(row, ["id", "year", "url"]))


SOURCES = {
    "math": Source(
        read_math, "math", Hub("EleutherAI/hendrycks_math", {"train": "train", "test": "test"}, _MATH_CONFIGS)
    ),
    "math_500": Source(read_math_500, "math", Hub("HuggingFaceH4/MATH-500", {"test": "test"})),
    "omni_math": Source(
        read_omni_math, "math", Hub("KbsdJames/Omni-MATH", {"train": "test", "test": "test"}), unread=("solution",)
    ),
    "gsm8k": Source(read_gsm8k, "math", Hub("openai/gsm8k", {"train": "train", "test": "test"}, ("main",))),
    "aime": Source(read_aime, "math", Hub("AI-MO/aimo-validation-aime", {"test": "train"}), unread=("solution",)),
}
