"""Who decides whether an answer is right: one scorer a dataset, a pure function of the answer's body and the query."""

from __future__ import annotations

from collections.abc import Callable

from rw.scoring import bbh, choice, math_answer, program, sat_label, short_answer
from rw.scoring.config import ScoringConfig
from rw.scoring.own import own_scorers
from rw.types import Query, Verdict

Scorer = Callable[[str, Query], Verdict]

MATH_SETS = ("gsm8k", "math", "math_500", "omni_math")
CODE_SETS = ("apps", "human_eval", "live_code_bench", "mbpp", "taco")
CHOICE_SETS = ("gpqa_diamond", "super_gpqa")


def scorers(config: ScoringConfig) -> dict[str, Scorer]:
    """The scorer of every data set under `config`, with those of `config.own`. None of rw's raises on any text or takes
    unbounded time.

    Raises:
        ConfigError: one's own scorer that is not there, or has the name of one of rw's.
    """
    known = {
        **dict.fromkeys(MATH_SETS, math_answer.math_scorer(config)),
        "aime": math_answer.aime_scorer(config),
        **dict.fromkeys(CHOICE_SETS, choice.choice),
        **dict.fromkeys(CODE_SETS, program.program_scorer(config)),
        "sat_bench": sat_label.sat_label,
        "bbh": bbh.bbh,
        "trivia_qa": short_answer.trivia_qa,
        "simple_qa_verified": short_answer.simple_qa_verified,
        "nq": short_answer.trivia_qa,  # recorded Natural Questions, judged by TriviaQA's rule
        "simulated": short_answer.simulated,
    }
    return {**known, **own_scorers(config.own_functions, known)}


SCORERS: dict[str, Scorer] = scorers(ScoringConfig())
