"""Second opinions without an algebra: equal texts, plain numbers, and what an algebra would misread."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rw.scoring import math_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3.50", Fraction(-7, 2)),
        ("1,234.5", Fraction(2469, 2)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"2\frac12", Fraction(5, 2)),
        ("2 1/2", Fraction(5, 2)),
        (r"0.1\overline{6}", Fraction(1, 6)),
        (r"1.5\times 10^{-3}", Fraction(3, 2000)),
        ("10^{-7}", Fraction(1, 10**7)),
        ("12 ways", 12),
        ("7 square inches", 7),
    ],
)
def test_plain_numbers(text, value):
    (number,) = math_text.numbers(text)
    assert number.value == value


@pytest.mark.parametrize(
    "text",
    ["", "x", "2k", "5xy", "1,2x", "12,34", "12 million", "5 squared", "1/0", "5!", "2^3", r"\pi", "--1", "9" * 500],
)
def test_what_is_no_plain_number(text):
    assert math_text.number(text) is None


@pytest.mark.parametrize(
    ("gold", "answer", "opinion"),
    [
        ("12", "12", True),
        ("12", "13", False),
        ("1/3", "0.333333", None),
        ("1/3", "0.33333", False),
        ("50%", "0.5", True),
        ("5 cm", "5 m", None),
        ("5 feet", "5 miles", None),
        ("1, 2", "2 and 1", True),
        ("1, 2", "1, 1", False),
        ("101_2", "101_3", False),
        ("101_2", "101", None),
        ("12", "x", None),
    ],
)
def test_opinions_on_numbers(gold, answer, opinion):
    assert math_text.same_numbers(gold, answer) is opinion


@given(st.fractions(max_denominator=10**6), st.integers(-5, 5))
def test_a_fraction_is_itself_and_no_other(value, shift):
    gold = (
        rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
        if value >= 0
        else f"{value.numerator}/{value.denominator}"
    )
    other = value + shift
    assert math_text.same_numbers(gold, f"{other.numerator}/{other.denominator}") is (shift == 0)


@given(st.lists(st.integers(-999, 999), min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_lists_match_in_any_order_and_count_repeats(values, draw):
    shuffled = draw.sample(values, len(values))
    gold = ", ".join(map(str, values))
    assert math_text.same_numbers(gold, ", ".join(map(str, shuffled))) is True
    assert math_text.same_numbers(gold, ", ".join(map(str, [*shuffled, shuffled[0]]))) is False


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (r"1, 2, \ldots, n", "dots or a congruence"),
        (r"5 \approx 6", "dots or a congruence"),
        ("12:30", "a time of day"),
        ("(5)(6)", "numbers side by side"),
        ("3 5", "numbers side by side"),
        (r"n \text{ must be odd}", "prose"),
        ("A - a", "a letter in both cases"),
        ("9" * 2001, "too long"),
        (r"5\sqrt{2} \text{ square units}", None),
        (r"x = 1 \text{ or } x = 2", None),
        (r"\sin x \cos x", None),
        ("1 4/5", None),
        ("1:2", None),
        (r"2 \frac12", None),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", None),
        (r"\begin{array}{cc} A & B \end{array}", None),
        (r"\log_2 3", None),
        (r"a_2 3 5", "numbers side by side"),
    ],
)
def test_what_an_algebra_must_not_be_asked(text, reason):
    assert math_text.misread(text) == reason


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("x = 5", "5", "5"),
        ("x = 5", "x = 5", "x = 5"),
        (r"x_1 = \frac12", "1/2", r"\frac12"),
        ("f(x) = x + 1", "x + 1", "x + 1"),
        ("x = 2 + 3 = 5", "5", "5"),
        ("x = 5 or x = -5", "-5", "5, -5"),
        ("x = 2, y = 3", "2, 3", "x = 2, y = 3"),
        (r"S = \{1, 2\}", "2", r"\{1, 2\}"),
        (r"x \in [1, 2]", "[1, 2]", "[1, 2]"),
        ("2x + 1 = 5", "5", "2x + 1 = 5"),
    ],
)
def test_the_side_that_holds_the_value(answer, gold, value):
    assert math_text.value_side(answer, gold) == value
