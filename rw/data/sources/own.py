"""One's own questions: rows that name themselves, their domain, what is asked, what is right, and who judges it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rw.data.sources import choices, contests, functions, maths, reasoning, recall
from rw.data.sources.program_tests import function_tests, parsed_tests, stdin_tests
from rw.data.sources.schema import Item, Place, Source, Unusable
from rw.errors import DataError
from rw.typed_values import did_you_mean
from rw.types import ProgramTests

REQUIRED, OPTIONAL = ("id", "domain", "prompt", "answer", "scorer"), ("letters", "metadata")
ALIASES = (*recall.SOURCES, "nq")
CODE = (*contests.SOURCES, *functions.SOURCES)
SCORERS = (*maths.SOURCES, *CODE, *choices.SOURCES, *reasoning.SOURCES, *ALIASES)


def read_own(row: Mapping[str, Any], place: Place) -> Item:
    """id, domain (any word), prompt (shown as it is, so it says how to answer), answer, and scorer, a data set's name.

    The answer is a text; for trivia_qa and nq also a list of accepted texts; for super_gpqa and gpqa_diamond a letter
    of `letters` (ABCD where the row has none); for sat_bench SAT or UNSAT; for the code sets {"inputs", "outputs"} with
    texts, the same with "fn_name" and argument lists, or a list of asserts; for a scorer of one's own it is whatever
    that compares with, a list as a tuple.

    Raises:
        DataError: a row that is not like that; one's own file can be mended.
    """
    if missing := [name for name in REQUIRED if row.get(name) in (None, "")]:
        raise DataError(f"column {missing[0]} is missing or empty; a row has {', '.join(REQUIRED)}")
    if unknown := [name for name in row if name not in (*REQUIRED, *OPTIONAL)]:
        raise DataError(
            f"unknown column {unknown[0]!r}; a row has {', '.join(REQUIRED)}, and may have letters, metadata"
        )
    scorer, metadata = row["scorer"], row.get("metadata") or {}
    own = place.options.own_scorers
    known = (*SCORERS, *sorted(own))
    if scorer not in known:
        hint = did_you_mean(str(scorer), known, cutoff=0.4) or f"; known are {', '.join(known)}"
        raise DataError(f"scorer {scorer!r} is unknown{hint} (--own-scorers names those of scoring.own)")
    if not isinstance(metadata, Mapping) or not all(isinstance(row[name], str) for name in ("domain", "prompt")):
        raise DataError("domain and prompt must be texts, metadata an object")
    try:
        reference = _own_reference(row) if scorer in own else _reference(scorer, row)
    except Unusable as error:
        raise DataError(
            f"answer of {row['id']!r}: {error.reason.replace('_', ' ')}; for a code set it is a list of asserts, or "
            "an object of inputs and outputs, equally many, with fn_name where a function is called"
        ) from error
    if scorer in choices.SOURCES:
        metadata = {**metadata, "letters": _letters(row)}
    return Item(str(row["id"]), row["prompt"], "", reference, metadata, scorer, row["domain"])


def _reference(scorer: str, row: Mapping[str, Any]) -> Any:
    answer = row["answer"]
    if scorer in CODE:
        if isinstance(answer, list) and answer and all(isinstance(line, str) for line in answer):
            return ProgramTests("asserts", tuple(answer))
        tests = parsed_tests(answer)
        return function_tests(tests, None) if tests.get("fn_name") else stdin_tests(tests, None)
    if scorer in ALIASES and isinstance(answer, list) and answer and all(isinstance(text, str) for text in answer):
        return tuple(answer)
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        answer = str(answer)
    if not isinstance(answer, str):
        raise DataError(f"answer {str(answer)[:60]!r} of {row['id']!r} is not what the scorer {scorer} compares with")
    if scorer in choices.SOURCES and (len(answer) != 1 or answer not in _letters(row)):
        raise DataError(f"answer {answer!r} of {row['id']!r} must be one of the letters {_letters(row)}")
    if scorer == "sat_bench" and answer not in ("SAT", "UNSAT"):
        raise DataError(f"answer {answer!r} of {row['id']!r} must be SAT or UNSAT")
    return (answer,) if scorer in ALIASES and scorer != "simple_qa_verified" else answer


def _own_reference(row: Mapping[str, Any]) -> str | tuple[str, ...]:
    answer = row["answer"]
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        return str(answer)
    if isinstance(answer, list) and answer and all(isinstance(text, str) for text in answer):
        return tuple(answer)
    if not isinstance(answer, str):
        raise DataError(
            f"answer {str(answer)[:60]!r} of {row['id']!r} must be a text or a list of texts; what else the scorer "
            f"{row['scorer']} needs goes into metadata"
        )
    return answer


def _letters(row: Mapping[str, Any]) -> str:
    letters = row.get("letters") or "ABCD"
    if not isinstance(letters, str) or not letters.isalpha() or not letters.isupper():
        raise DataError(f"letters {letters!r} of {row['id']!r} must be capitals, such as ABCD")
    return letters


SOURCES = {"custom": Source(read_own, "")}
