"""Who decides whether an answer is right: one scorer a dataset, a pure function of the answer's body and the query."""

from __future__ import annotations

from collections.abc import Callable

from rw.scoring.bbh import bbh
from rw.scoring.choice import choice
from rw.scoring.config import ScoringConfig
from rw.scoring.math_answer import aime_scorer, math_scorer
from rw.scoring.program import program_scorer
from rw.scoring.sat_label import sat_label
from rw.scoring.short_answer import simple_qa_verified, simulated, trivia_qa
from rw.types import Query, Verdict

Scorer = Callable[[str, Query], Verdict]

MATH_SETS = ("gsm8k", "math", "math_500", "omni_math")
CODE_SETS = ("apps", "human_eval", "live_code_bench", "mbpp", "taco")
CHOICE_SETS = ("gpqa_diamond", "super_gpqa")


def scorers(config: ScoringConfig) -> dict[str, Scorer]:
    """The scorer of every data set under `config`. None of them raises on any text or takes unbounded time."""
    math = math_scorer(config)
    return {
        **dict.fromkeys(MATH_SETS, math),
        "aime": aime_scorer(config),
        **dict.fromkeys(CHOICE_SETS, choice),
        **dict.fromkeys(CODE_SETS, program_scorer(config)),
        "sat_bench": sat_label,
        "bbh": bbh,
        "trivia_qa": trivia_qa,
        "simple_qa_verified": simple_qa_verified,
        "nq": trivia_qa,  # recorded Natural Questions, judged by TriviaQA's rule
        "simulated": simulated,
    }


SCORERS: dict[str, Scorer] = scorers(ScoringConfig())
