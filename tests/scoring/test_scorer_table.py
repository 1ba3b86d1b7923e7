"""The table of scorers: which data sets it serves, what loading it costs, what its verdicts say of themselves."""

import subprocess
import sys

import pytest

from rw.scoring import SCORERS, scorers
from rw.scoring.config import ScoringConfig
from rw.types import Query

TEXT_SETS = (
    "aime", "bbh", "gpqa_diamond", "gsm8k", "math", "math_500", "nq", "omni_math", "sat_bench", "simple_qa_verified",
    "simulated", "super_gpqa", "trivia_qa",
)  # fmt: skip


@pytest.mark.parametrize("table", [SCORERS, scorers(ScoringConfig(math_equality="string"))], ids=["defaults", "config"])
def test_every_set_whose_answer_is_a_text_has_a_scorer(table):
    assert set(TEXT_SETS) <= set(table)


@pytest.mark.parametrize("dataset", TEXT_SETS)
def test_verdicts_name_their_rule_and_its_version(dataset):
    name, _, version = SCORERS[dataset]("no", Query("q1", dataset, "d", "?", "yes")).scorer.partition("/")
    assert name and int(version) >= 1


def test_loading_the_table_loads_no_algebra_and_no_accelerator():
    code = "import rw.scoring, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "rw" in loaded
    assert not {"sympy", "math_verify", "latex2sympy2_extended", "jax", "jaxlib", "aiohttp"} & set(loaded)
