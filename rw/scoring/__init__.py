"""Who decides whether an answer is right: one scorer a dataset, a pure function of the answer's body and the query."""

from __future__ import annotations

from collections.abc import Callable

from rw.scoring.short_answer import simulated, trivia_qa
from rw.types import Query, Verdict

Scorer = Callable[[str, Query], Verdict]

SCORERS: dict[str, Scorer] = {
    "nq": trivia_qa,  # recorded Natural Questions, judged by TriviaQA's rule
    "simulated": simulated,
    "trivia_qa": trivia_qa,
}
