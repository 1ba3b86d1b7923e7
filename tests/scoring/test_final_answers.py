"""Where in a text its final answer stands."""

import pytest

from rw.scoring.final_answer import READ, final_answer, undelimited


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("5", "5"),
        ("  0.5. \n", "0.5"),
        ("3...", "3..."),
        (r"\boxed{5}", "5"),
        (r"The answer is $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"\boxed{\text{No}} .", r"\text{No}"),
        (r"\boxed 5", "5"),
        (r"\boxed{{7}}", "7"),
        (r"\boxed{5", "5"),
        ("\\boxed{5\nand then", "5"),
        (r"\fbox{5} is the answer, or so I hope.", "5"),
        (r"$\boxed{1}$ and $\boxed{2}$", "1, 2"),
        (r"so $\boxed{1}$ is wrong, thus $\boxed{2}$", "2"),
        (r"\boxed{3}, and then \boxed{}", "3"),
        ("12 * 3 = 36\n#### 36", "36"),
        ("#### 1,080\n\nDone.", "1,080"),
        ("Let me see.\nAnswer:\n\n42", "42"),
        ("We get x=3.\n**42**", "42"),
        ("`5`", "5"),
        ("**Answer:** 12", "12"),
        ("Final Answer: The final answer is $X+1$. I hope it is correct.", "X+1"),
        ("The answer is 12.\n\nThis holds because twelve divides everything in sight.", "12"),
        ("The answer is 12? No.\n13", "13"),
        ("There are 12 ways.", "12 ways"),
        ("The solutions are 3 and 4.", "3 and 4"),
        ("Hence the sum of them all equals 12", "12"),
        ("The value of $f(2)$ is 7", "7"),
        ("we get $x=2$ and $y=3$.", "x=2, y=3"),
        ("$1$ or $2$", "1, 2"),
        ("($1$, $2$)", "(1, 2)"),
        (r"$\frac{1}{2}$ of the total", r"\frac{1}{2}"),
        ("x = 5", "x = 5"),
        (r"$x = \boxed{2}$ or $x = \boxed{3}$", "2, 3"),
        (r"$x = \boxed{2}$ and $y = \boxed{3}$", "3"),
        ("So the answer is 12, which is even.", "12"),
        ("The answer is $12$, because $3 \\cdot 4 = 12$.", "12"),
        (r"$f(x)=x$ for all $x \in \mathbb{R}$.", "f(x)=x"),
        ("Answer: $2k$, where $k$ is an integer", "2k"),
        ("Total: -12", "-12"),
        ("So x=5.\n\\[ x = \\frac{1}\n{2} \\]", r"x = \frac{1} {2}"),
        (r"\(\boxed{337}\)", "337"),
        ("\\begin{pmatrix} 1 \\\\\n2 \\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        ("Thus the price is $12", "$12"),
        (r"$\$5$", r"\$5"),
        ("Yes, there exists one.", "Yes, there exists one"),
        ("The answer is: No, it is not.", "No, it is not"),
        ("5!", "5!"),
        ("", ""),
        ("\n \n", ""),
        ("```\n5\n```", "5"),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


def test_only_the_end_of_a_long_text_is_read():
    assert final_answer(r"\boxed{1}" + " word" * READ + "\n2") == "2"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\[\n\\boxed{\\frac{n+1}{4n-2}}\n\\]", r"\frac{n+1}{4n-2}"),
        ("It is impossible to select 16 such numbers.", "It is impossible to select 16 such numbers"),
        ("$1$ or $2$", "$1$ or $2$"),
        (r"\boxed{1}, \boxed{2}", r"\boxed{1}, \boxed{2}"),
        ("{5}", "5"),
        ("{1}{2}", "{1}{2}"),
    ],
)
def test_a_reference_loses_nothing_but_what_encloses_it(text, answer):
    assert undelimited(text) == answer
