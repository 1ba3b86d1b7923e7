"""Scorer of SATBench: satisfiable or not. Pure; never raises."""

from __future__ import annotations

import re

from rw.types import Query, Verdict, VerdictKind

VERSION = "sat_label/1"

# SAT in capitals ("he sat" is none), the others in any case. UNSAT comes first: SAT is a part of it.
_LABEL = re.compile(
    r"(?<![A-Za-z0-9])(?<![A-Za-z0-9]_)"
    r"(?P<negated>(?i:not|never|non|cannot|can['’]t|isn['’]t)(?:\s+(?i:be|a)(?=\s))?[\s*_`'\"“(\[-]+)?"
    r"(?P<label>(?i:un[- ]?satisfiable)|(?i:un-?sat)|UN SAT|(?i:satisfiable)|SAT)(?!_?[A-Za-z0-9])"
)


def sat_label(response: str, query: Query) -> Verdict:
    """The last SAT or UNSAT of the response must be the reference (RouteWeaver, Appendix B.2).

    Whole words; SATISFIABLE and UNSATISFIABLE are labels too [released]; brackets and emphasis around one do no harm. A
    label right after "not" or its like counts as the other one [ours]: "not satisfiable" must not pass for SAT.
    """
    given = last_label(response) if isinstance(response, str) else None
    if given is None:
        return Verdict(False, "neither SAT nor UNSAT", kind=VerdictKind.WRONG, scorer=VERSION)
    correct = given == query.reference
    detail = f"{given} {'is' if correct else 'is not'} {query.reference}"
    return Verdict(correct, detail, kind=VerdictKind.PASS if correct else VerdictKind.WRONG, scorer=VERSION)


def last_label(text: str) -> str | None:
    """The last label of `text`, SAT or UNSAT; None where there is neither."""
    last = None
    for match in _LABEL.finditer(text):
        unsatisfiable = match["label"].upper().startswith("UN")
        last = "UNSAT" if unsatisfiable != bool(match["negated"]) else "SAT"
    return last
