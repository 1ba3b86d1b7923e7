"""Mathematical answers: hand tables of right and wrong ones, and who decides where opinions differ."""

import pytest

from rw.scoring import SCORERS, math_answer, scorers
from rw.scoring.config import ScoringConfig
from rw.types import Query, VerdictKind


def query(reference, dataset="math") -> Query:
    return Query("q1", dataset, "math", "how many?", reference)


def score(answer, reference, dataset="math"):
    return SCORERS[dataset](answer, query(reference, dataset))


RIGHT = [
    ("1/2", "0.5"), (r"\frac12", r"\frac{1}{2}"), (r"\frac 59", "5/9"), ("0.5", ".5"), ("2", "2.0"), ("12.5", "12.50"),
    ("1000", "1,000"), ("1,000", "1000"), ("1000000", r"1{,}000{,}000"), ("28800", "28 800"), ("1,000,000", "10^6"),
    (r"\frac{1}{3}", "0.333333"), (r"1\frac{4}{5}", "1 4/5"), (r"1\frac{4}{5}", "9/5"), (r"0.\overline{3}", "1/3"),
    (r"\frac{-1}{2}", "-0.5"), (r"3\times 10^5", "300000"), ("120", "5!"), ("30", r"5 \cdot 6"),
    (r"50\%", "50"), (r"50\%", "0.5"), ("50", "50%"), (r"106^\circ", "106"), (r"106^\circ", "106 degrees"),
    (r"30^\circ", "30°"), (r"\$1,234.50", "1234.5"), ("5", "$5"), ("5", "5 cm"), (r"5\text{ cm}", "5"),
    ("6", "6 people"), (r"5\sqrt{2}", r"The area is $5\sqrt{2}$ square units."), ("5", "x = 5"), ("x=5", "5"),
    ("5", "x = 2+3 = 5"), ("1,2", "2,1"), ("1, 5, 9", r"\{1, 5, 9\}"), ("-1,2", "$x=-1$ or $x=2$"),
    ("5, -5", "x=5 or x=-5"), (r"\pm 3", "3, -3"), ("(2n+1)(2n-1)", "4n^2-1"),
    (r"\{(1,2),(3,4)\}", "(1,2), (3,4)"), ("(1,2)", "1,2"), (r"\{1,2\}", "1, 2"), ("1, 2", r"S = \{2, 1\}"),
    ("(3,4]", "(3, 4]"), (r"x \in [-2,7]", "[-2,7]"), ("[2,5)", r"2 \le x < 5"), (r"(2,\infty)", "x > 2"),
    ("(2, 3), (2, 5)", "(2,5), (2,3)"), ("(-2,3)", "(-2, 3)"), (r"(0,9) \cup (9,36)", r"(0,9)\cup(9,36)"),
    (r"7\pi", "7π"), (r"70 \sqrt{2}", "70√2"), (r"2\sqrt{3}", "2*sqrt(3)"), (r"2\sqrt{3}", r"\sqrt{12}"),
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"), ("p - q", "-q+p"), ("6 - 5i", "-5i + 6"), ("x^2+2x+1", "(x+1)^2"),
    (r"2^{r+1}", r"2 \cdot 2^r"), ("x+1", "f(x) = x+1"), ("y=2x+1", "y-2x=1"), ("AE + AP = PD", "AE = PD - AP"),
    (r"\begin{pmatrix} -2 \\ 7 \end{pmatrix}", "\\begin{pmatrix}-2\\\\\n7\\end{pmatrix}"), ("204_5", "204_{5}"),
    (r"\text{Yes}", "Yes"), (r"\text{Yes}", "Yes, since 3 is odd."), (r"\text{No}", r"\boxed{\text{no}}"),
    (r"\text{No, there is no such prime } p.", "No"), (r"\text{east}", "East"), (r"\text{(A)}", "A"),
    (r"\text{No such } n \text{ exists}", "No such n exists."), (r"\emptyset", r"\varnothing"),
    (r"\[ \boxed{\frac{n+1}{4n-2}} \]", r"\frac{n+1}{2(2n-1)}"), ("#### 72", "72"),
    (r"\begin{pmatrix} 1/5 \\ -2/3 \end{pmatrix}", r"\begin{bmatrix} \frac15 \\ -\frac{2}{3} \end{bmatrix}"),
    (r"\log_2 3", r"\frac{\ln 3}{\ln 2}"), ("5", "x + 2\n= 5"), ("x=1, y=2", "1, 2"), ("x=1, x=2", "2, 1"),
    (r"\frac{-1 \pm \sqrt{5}}{2}", r"\frac{-1-\sqrt5}{2}, \frac{-1+\sqrt5}{2}"), ("4, 6", r"5 \pm 1"),
    (r"\ln 2", "ln(2)"),
    (r"\text{No}", "No. Suppose there were one; no such number is even."),
]  # fmt: skip

WRONG = [
    ("1,2", "12"), ("12", "1,2"), ("1,2", "1,2,2"), ("7", "$7$ or $8$"), ("-5", "x=5 or x=-5"), (r"\frac13", "0.33"),
    ("6", "6.0000001"), ("0", "0.0000001"), ("0.0000001", "0"), ("1", "0.9999999"), ("3", "-3"), ("p - q", "q - p"),
    ("5", "5!"), ("5", "5 squared"), ("12", "12 million"), ("12", "12 dozen"), (r"\frac{2}{3}", r"66.7\%"),
    ("11", "(5)(6)"), ("8", "3 5"), ("204_5", "204_6"), ("204", "204_5"), ("204_5", "54"),
    (r"\frac{\pi}{6}", r"30^\circ"),
    ("(3,4]", "[3,4]"), ("(3,4)", "(4,3)"), ("[2,5)", r"2 \le x \le 5"), ("(2, 3), (2, 5)", "(3,2), (2,5)"),
    ("(1,2)", r"\{1,2\}"), (r"\{1,2\}", "(1,2)"), ("5", "~5"), ("5", "about 5"), ("5", r"\approx 5"), ("5", "5 (or 6)"),
    ("5", "5xy"), ("5xy", "5"), ("2k", "2"), ("2k", "2K"), (r"\frac{A}{B}", r"\frac{a}{b}"), ("3", r"\pm\sqrt{9}"),
    ("x^2+y^2=1", "x^2+y^2=2"), ("x^2+1=0", "x^2+2=0"), ("x^2+1", "x^2+1=0"), ("12:30", "2/5"), (r"7\pi", "21.99"),
    (r"n \text{ must be odd}", "n"), ("n", "n must be odd"),
    (r"4122 \text{ (minimum)}, 6049 \text{ (maximum)}", "4122"),
    (r"1 + \frac{1}{2} + \ldots + \frac{1}{7}", r"1 + \frac12 + \frac17"), (r"\{1,2,\ldots,n\}", r"\{1,2,n\}"),
    (r"\text{Yes}", "No"), (r"\text{Yes}", "Yesterday"), (r"\text{(A)}", "B"),
    (r"\text{Tuesday}", "It is on a Tuesday"),
    ("2", ""), ("2", r"\boxed{}"), ("2", r"\infty"), ("0", r"\emptyset"),
    ("2", "so $\\boxed{2}$ fails and $\\boxed{3}$ is it"),
    (r"\text{Yes}", "Yes or no"), (r"\text{No}", r"\boxed{\text{No}} or \boxed{\text{Yes}}"), ("No", "No/yes"),
    ("x=1, y=2", "2, 1"), ("x=1, y=2", "y=1, x=2"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"),
    (r"\pm 5", "5"), (r"\frac{-1 \pm \sqrt{5}}{2}", r"\frac{-1+\sqrt5}{2}"), ("4", r"5 \pm 1"),
    (r"\begin{cases} n & x>0 \\ m & x<0 \end{cases}", r"\begin{cases} m & x>0 \\ n & x<0 \end{cases}"),
]  # fmt: skip


@pytest.mark.parametrize(("reference", "answer"), RIGHT)
def test_right(reference, answer):
    verdict = score(answer, reference)
    assert verdict.correct, verdict
    assert (verdict.kind, verdict.scorer) == (VerdictKind.PASS, "math/1")


@pytest.mark.parametrize(("reference", "answer"), WRONG)
def test_wrong(reference, answer):
    verdict = score(answer, reference)
    assert not verdict.correct, verdict
    assert (verdict.kind, verdict.scorer) == (VerdictKind.WRONG, "math/1")


@pytest.mark.parametrize(
    ("reference", "answer", "opinions"),
    [
        ("1,2", "1,2,2", "numbers no, math_verify yes"),
        (r"1\frac{4}{5}", "1 4/5", "numbers yes, math_verify no, points no"),
        (r"0.\overline{3}", "1/3", "numbers yes, math_verify no"),
        (r"\emptyset", r"\varnothing", "text yes, math_verify no"),
        ("2k", "2K", "math_verify yes, points yes, case no"),
        ("(1,2)", r"\{1,2\}", "math_verify yes, brackets no"),
        ("x^2+1=0", "x^2+2=0", "math_verify yes, points no"),
        ("x=1, y=2", "2, 1", "math_verify yes, places no"),
    ],
)
def test_a_verdict_on_which_opinions_differ_says_so(reference, answer, opinions):
    assert score(answer, reference).detail.endswith(f"; {math_answer.OPINIONS_DIFFER}: {opinions}")


def test_an_undisputed_verdict_does_not_claim_a_difference():
    assert score("0.5", "1/2").detail == "'0.5' is '1/2'"
    assert score("3", "1/2").detail == "'3' is not '1/2'"


def test_a_verdict_says_why_an_algebra_was_not_asked():
    assert score("n", r"n \text{ must be odd}").detail.endswith("; not shown to math_verify: prose")


def test_verdicts_are_signed_with_the_rule_where_it_is_not_the_default():
    for rule, signature in (("released", "math_released/1"), ("string", "math_string/1")):
        assert scorers(ScoringConfig(math_equality=rule))["math"]("5", query("5")).scorer == signature


@pytest.mark.parametrize("dataset", ["math", "math_500", "omni_math", "gsm8k", "aime"])
def test_every_set_of_mathematics_judges_by_the_same_rule(dataset):
    assert score("The answer is $\\boxed{72}$.", "72", dataset).correct
    assert not score("The answer is $\\boxed{27}$.", "72", dataset).correct


@pytest.mark.parametrize(
    ("reference", "answer", "correct"),
    [
        ("045", "45", True),
        ("45", "045", True),
        ("073", "Thus, the answer is 73.", True),
        ("073", "m = 33 + 40 = 73", True),
        ("073", "73.0", True),
        ("100", "10^2", True),
        ("120", "5!", True),
        (45, "$045$", True),
        ("073", "730", False),
        ("073", "73.5", False),
        ("073", "x = 73 or x = 7", False),
        ("045", "", False),
    ],
)
@pytest.mark.parametrize("rule", ["math_verify", "string"])
def test_aime_answers_are_integers(rule, reference, answer, correct):
    verdict = scorers(ScoringConfig(math_equality=rule))["aime"](answer, query(reference, "aime"))
    assert verdict.correct is (correct and not (rule == "string" and answer == "5!"))
    assert verdict.scorer == ("aime/1" if rule == "math_verify" else "aime_string/1")


@pytest.mark.parametrize(
    ("reference", "answer", "correct"),
    [
        (r"\frac12", r"$\dfrac{1}{2}$", True),
        ("5", "x = 5", True),
        (r"x \le 5", r"x\leq5", True),
        (r"\text{East}", "east", True),
        ("10 11", "1011", False),
        ("1/2", "0.5", False),
        ("2,1", "1,2", False),
        ("X", "x", False),
    ],
)
def test_the_string_rule(reference, answer, correct):
    score_by_text = scorers(ScoringConfig(math_equality="string"))["math"]
    assert score_by_text(answer, query(reference)).correct is correct


@pytest.mark.parametrize(
    ("reference", "answer", "correct"),
    [
        ("1/2", "0.5", True),
        (r"\pm 3", "-3, 3", True),
        ("1, 5, 9", r"\{9, 1, 5\}", True),
        ("1,2", "2 and 1", True),
        ("5", "x = 5", True),
        (r"2\sqrt{3}", r"\sqrt{12}", True),
        ("(x+1)^2", "x^2+2x+1", True),
        ("(1,2)", "(1,2)", True),
        ("1,1,2", "1,2,2", False),
        ("1,2", "1,2,3", False),
        (r"\frac13", "0.333333", False),
        ("1000", "1,000", True),
        ("(1,2)", "(2,1)", False),
    ],
)
def test_the_released_rule(reference, answer, correct):
    released = scorers(ScoringConfig(math_equality="released"))["math"]
    assert released(answer, query(reference)).correct is correct


def test_one_of_several_references_is_enough_and_none_is_no_match():
    assert score("3", ("2", "3")).correct
    assert not score("4", ("2", "3")).correct
    assert score("3", None) == score("3", ()) and not score("3", None).correct


def test_what_takes_the_algebra_too_long_is_wrong_and_says_so():
    limited = scorers(ScoringConfig(math_s=0.3))["math"]
    verdict = limited(r"9^{9^{9^9}}", query("2"))
    assert (verdict.correct, verdict.kind) == (False, VerdictKind.TIME)
    assert "more than 0.3 s" in verdict.detail
    assert limited("2", query("2")).correct  # equal texts and plain numbers need no algebra to be believed
