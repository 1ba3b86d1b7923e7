"""What holds of every text: the last word counts, what precedes it does not, and scorers are functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rw.scoring import SCORERS
from rw.types import Query

ANYTHING = st.text(max_size=200) | st.text("AB()I SATUN\\{}$.,\n0123456789=xyz^_", max_size=200)
# dataset -> (reference, an ending that says it, another reference)
ENDINGS = {
    "math": ("12", "\n\n\\boxed{12}", "13"),
    "gsm8k": ("12", "\n\n#### 12", "13"),
    "aime": ("012", "\nThe answer is $12$.", "013"),
    "super_gpqa": ("B", "\nAnswer: (B).", "A"),
    "sat_bench": ("UNSAT", "\n[UNSAT]", "SAT"),
    "bbh": ("(B)", "\nSo the answer is (B).", "(A)"),
}


def judged(dataset, response, reference):
    return SCORERS[dataset](response, Query("q1", dataset, "d", "?", reference, {"letters": "ABCD"}))


@pytest.mark.parametrize("dataset", sorted(ENDINGS))
@given(before=ANYTHING)
def test_what_the_end_says_decides_whatever_comes_before(dataset, before):
    reference, ending, other = ENDINGS[dataset]
    before = before.replace("boxed", "")
    if dataset == "gsm8k":
        before = before.replace("\\", "")
    assert judged(dataset, before + ending, reference).correct
    assert not judged(dataset, before + ending, other).correct


@pytest.mark.parametrize("dataset", ["bbh", "sat_bench", "simple_qa_verified", "simulated", "super_gpqa", "trivia_qa"])
@given(response=ANYTHING, reference=ANYTHING)
def test_the_same_answer_gets_the_same_verdict(dataset, response, reference):
    assert judged(dataset, response, reference) == judged(dataset, response, reference)


@given(reference=st.text(st.characters(categories=("Lu", "Ll", "Nd")), min_size=1, max_size=20), around=ANYTHING)
def test_simple_qa_finds_a_reference_between_spaces_and_not_inside_a_word(reference, around):
    assert judged("simple_qa_verified", f"{around} {reference} {around}", reference).correct
    assert not judged("simple_qa_verified", f"x{reference}x", reference).correct
