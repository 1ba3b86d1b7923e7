"""Scorer of BIG-Bench Hard. Pure; never raises."""

from __future__ import annotations

import re

from rw.scoring.final_answer import after_marker, last_line, plain, undelimited
from rw.types import Query, Verdict, VerdictKind

VERSION = "bbh/1"

_OPTION = re.compile(r"\(([A-Z])\)")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}")
_INTEGER = re.compile(r"[-+]?\d+|[-+]?\d{1,3}(?:,\d{3})+")


def bbh(response: str, query: Query) -> Verdict:
    """Exact match with the target after the gentlest normalisation that targets of 27 tasks need [ours].

    What is compared is the last line of the response, or what follows "answer is" or "answer:" there, without emphasis,
    box or final full stop, blind to case and spacing. Then by the target's form:
    - "(B)": "B", "B." and "B)" will do, and so will the option as the question prints it, "(B) 05/01/2021";
    - an integer: thousands may be grouped;
    - closing brackets (dyck_languages): spacing means nothing, every sign counts;
    - several words (word_sorting): commas may part them.
    """
    target = str(query.reference).strip()
    line = last_line(response) if isinstance(response, str) else ""
    if re.search(r"\w", target):
        line = plain(line)
        given = _TEXT.sub(r"\1", undelimited(after_marker(line) or line))
    else:  # of brackets, ">" opens no quotation
        given = (after_marker(line) or line).strip("*` ").removesuffix(".")
    correct = bool(target) and any(_matches(target, text, query.prompt) for text in (given, line))
    detail = f"{given[:80]!r} {'is' if correct else 'is not'} {target[:80]!r}" if given else "no answer"
    return Verdict(correct, detail, kind=VerdictKind.PASS if correct else VerdictKind.WRONG, scorer=VERSION)


def _digits(integer: str) -> str:
    """The integer as a text, since Python makes no int of a text of thousands of digits."""
    digits = integer.replace(",", "").lstrip("+-").lstrip("0") or "0"
    return f"-{digits}" if integer.startswith("-") and digits != "0" else digits


def _matches(target: str, given: str, prompt: str) -> bool:
    given = " ".join(given.replace("−", "-").split()).strip("\"'“”")
    if given.casefold() == " ".join(target.split()).casefold():
        return True
    if option := _OPTION.fullmatch(target):
        if re.fullmatch(rf"\(?{option[1]}[).:]*", given):
            return True
        return given.startswith(target) and given in (" ".join(line.split()) for line in prompt.split("\n"))
    if _INTEGER.fullmatch(target):
        return bool(_INTEGER.fullmatch(given)) and _digits(given) == _digits(target)
    if not re.search(r"\w", target):
        return "".join(given.split()) == "".join(target.split())
    if " " in target:
        return given.replace(",", " ").casefold().split() == target.casefold().split()
    return False
