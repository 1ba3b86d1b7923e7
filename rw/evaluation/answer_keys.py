"""When two answers count as the same one, by the data set's own rule of what an answer is.

Votes compare answers with one another, where a scorer compares one with a reference: what is compared is what the set's
scorer would read in them. Nothing here knows references.
"""

from __future__ import annotations

import re

from rw.scoring import CHOICE_SETS, CODE_SETS, MATH_SETS
from rw.scoring.choice import LETTERS, last_letter
from rw.scoring.final_answer import final_answer, last_line, plain
from rw.scoring.math_text import normalise as normalised_math
from rw.scoring.math_text import numbers
from rw.scoring.program import extract_program
from rw.scoring.sat_label import last_label
from rw.scoring.short_answer import normalise

LONGEST_NUMBER = 64  # characters: longer texts are compared as texts


def answer_key(answer: str | None, dataset: str) -> str | None:
    """What answers must have in common to agree; None for one that says nothing, which agrees with none.

    Maths: the final answer, numbers by value; choice: the letter; SATBench: the label; programs: the last fenced block,
    line by line; short answers: SQuAD's normalisation; anything else: the text but for case and spacing.
    """
    if answer is None:
        return None
    if dataset in MATH_SETS or dataset == "aime":
        return _math_key(final_answer(answer)) or None
    if dataset in CHOICE_SETS:
        return last_letter(answer, LETTERS)
    if dataset == "sat_bench":
        return last_label(answer)
    if dataset in CODE_SETS:
        return "\n".join(line.rstrip() for line in extract_program(answer).strip("\n").split("\n")) or None
    if dataset in ("trivia_qa", "nq", "simple_qa_verified"):
        return normalise(answer) or None
    if dataset == "bbh":
        answer = plain(last_line(answer))
    return " ".join(re.sub(r"\.\s*$", "", answer).casefold().split()) or None


def _math_key(given: str) -> str:
    found = numbers(given) if len(given) <= LONGEST_NUMBER else None
    if found and len(found) == 1 and not (found[0].percent or found[0].base):
        return str(found[0].value)
    return normalised_math(given)
