"""Option letters and satisfiability labels: the last one that stands alone."""

import pytest

from rw.scoring import SCORERS, choice, sat_label
from rw.types import Query, VerdictKind


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("C", "C"),
        ("(B)", "B"),
        ("**C**", "C"),
        ("Answer: D.", "D"),
        ("Answer:\nD", "D"),
        ("answer.D", "D"),
        (r"\boxed{D}", "D"),
        (r"$\boxed{\text{E}}$", "E"),
        ("A or B? It must be B!", "B"),
        ("B, since C is too small", "C"),
        ("The answer is A", "A"),
        ("The answer is A.", "A"),
        ("A. A force acts on it", "A"),
        ("(A) because it is", "A"),
        ("C. A force acts on it", "C"),  # an article
        ("C, I think", "C"),
        ("__B__", "B"),
        ("_Answer: B_", "B"),
        ("B, as V_A and )_C", "B"),
        ("'D'", "D"),
        ("D holds of A' alone", "D"),
        ("C. I'm sure", "C"),
        ("C. I’ll stay with it", "C"),
        ("It is I.", "I"),
        ("I", "I"),
        ("The answer is I\nwhich is odd", "I"),
        ("B is at A-level in the U.S.A.", "B"),
        ("E in J/K and ABC", "J"),  # K is no option
        ("vitamin B12, D3 and C", "C"),
        ("H2O", None),
        ("café A", "A"),
        ("ÉA and Bé", None),
        ("b", None),
        ("K", None),
        ("", None),
        ("the quick brown fox", None),
    ],
)
def test_last_letter(response, letter):
    assert choice.last_letter(response, "ABCDEFGHIJ") == letter


@pytest.mark.parametrize("dataset", ["super_gpqa", "gpqa_diamond"])
def test_choice_compares_with_the_reference_among_the_options_of_the_query(dataset):
    query = Query("q1", dataset, "knowledge", "which?", "B", {"letters": "ABCD"})
    right, wrong, none = (SCORERS[dataset](text, query) for text in ("B. Not E.", "B? No, C.", "E"))
    assert (right.correct, right.kind, right.scorer) == (True, VerdictKind.PASS, choice.VERSION)
    assert (wrong.correct, wrong.kind) == (False, VerdictKind.WRONG)
    assert (none.correct, none.detail) == (False, "no letter of ABCD")


def test_without_the_letters_of_its_options_a_query_has_ten():
    query = Query("q1", "super_gpqa", "knowledge", "which?", "J")
    assert SCORERS["super_gpqa"]("J", query).correct
    assert SCORERS["super_gpqa"]("J, not K", query).correct


@pytest.mark.parametrize(
    ("response", "label"),
    [
        ("SAT", "SAT"),
        ("UNSAT", "UNSAT"),
        ("[SAT]", "SAT"),
        ("**[UNSAT]**.", "UNSAT"),
        (r"\boxed{UNSAT}", "UNSAT"),
        ("The formula is SATISFIABLE", "SAT"),
        ("UNSATISFIABLE", "UNSAT"),
        ("It is unsatisfiable.", "UNSAT"),
        ("It is Satisfiable.", "SAT"),
        ("UNSAT at first sight, but SAT", "SAT"),
        ("SAT? No: UNSAT", "UNSAT"),
        ("UN-SAT", "UNSAT"),
        ("UN SAT", "UNSAT"),
        ("This 3-SAT instance is UNSAT", "UNSAT"),
        ("The clauses are not satisfiable.", "UNSAT"),
        ("They cannot all hold: not SAT", "UNSAT"),
        ("not UNSAT", "SAT"),
        ("not be satisfiable", "UNSAT"),
        ("so it is not **SAT**", "UNSAT"),
        ("not [SAT]", "UNSAT"),
        ("It isn't satisfiable", "UNSAT"),
        ("It can never be satisfiable", "UNSAT"),
        ("Non-satisfiable", "UNSAT"),
        ("Un-SAT", "UNSAT"),
        ("UnSAT", "UNSAT"),
        ("__UNSAT__", "UNSAT"),
        ("Could it fail? It could not. SAT", "SAT"),
        ("The cat sat on the mat", None),
        ("SATURDAY, SATISFY, UNSATED, xSAT, SAT2, SAT_1, is_SAT", None),
        ("", None),
    ],
)
def test_last_label(response, label):
    assert sat_label.last_label(response) == label


@pytest.mark.parametrize(
    ("response", "reference", "correct"),
    [
        ("UNSAT", "SAT", False),
        ("UNSAT", "UNSAT", True),
        ("SAT", "SAT", True),
        ("SAT", "UNSAT", False),
        ("", "SAT", False),
    ],
)
def test_the_label_must_be_the_reference(response, reference, correct):
    verdict = SCORERS["sat_bench"](response, Query("q1", "sat_bench", "reason", "?", reference))
    assert (verdict.correct, verdict.scorer) == (correct, sat_label.VERSION)
    assert verdict.kind == (VerdictKind.PASS if correct else VerdictKind.WRONG)
