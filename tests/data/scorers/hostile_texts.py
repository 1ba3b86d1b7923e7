"""Texts that scorers must survive: a fixed table of the worst, and a generator of random mixtures."""

import random
from collections.abc import Iterator

SLOW = (  # an algebra works on some of them for ages, on the others longer than is good
    r"9^{9^{9^9}}",
    "(((9!)!)!)!",
    r"\binom{10^{9}}{5 \cdot 10^{8}}",
    r"\sum_{n=1}^{10^{12}} \frac{1}{n^2}",
    "x^{1000000}+1",
    "x^{" * 300 + "2" + "}" * 300,
    "1+" * 900 + "1",
    "(" * 900 + "1" + ")" * 900,
    "-" * 1900 + "1",
    "\\int_0^\\infty e^{-x^2} \\sin(x^{17}) dx",
)

WORST = (
    "",
    " \n\t ",
    "\x00",
    "\ud800 lone surrogates \udfff",
    "a\x00b\ud8345",
    "$",
    "$$",
    "\\",
    "\\boxed{",
    "\\boxed{}" * 500,
    "\\boxed{" * 1500,
    "{" * 5000,
    "}" * 5000,
    "\\(" * 4000,
    "\\[" * 4000,
    "$" * 4001,
    "$1 " * 2500,
    "\\begin{pmatrix}" * 400,
    "\\frac{1}{" * 300 + "2" + "}" * 300,
    "\\sqrt{" * 300 + "x" + "}" * 300,
    "9" * 5000,
    "9" * 1900,
    "1" + "0" * 1900 + "/7",
    "0." + "3" * 1900,
    "1," * 900 + "1",
    "answer is " * 800,
    "Answer: " * 1000,
    "A " * 4000,
    "not " * 2000 + "SAT",
    "UN" * 3000 + "SAT",
    "\\text{" * 400 + "a" + "}" * 400,
    "1:00 p.m.",
    "\\pm" * 50 + "1",
    "∞−∞×½²³√",
    "𝟙𝟚𝟛 ١٢٣",
    "\u2028\u2029\x85",
    "__import__('os').system('true')",
    "exit()",
    "#### " * 2000,
    "```\n" * 2000,
    "**" * 4000,
    "the " * 250_000,  # 1 MB, as are the next
    "7" * 1_000_000,
    "é\x00" * 500_000,
    "(B) " * 250_000,
    "1,000 " * 170_000,
)

_PIECES = (
    *"0123456789abcxyzABEIn+-*/^_=<>(){}[]|!,.;:%$&~'\"",
    " ", "\n", "\x00", "\ud800", "\udcff", "é", "−", "½", "∞", "π", "\\", "\\\\",
    "\\frac", "\\frac{1}{2}", "\\dfrac12", "\\sqrt", "\\sqrt{2}", "\\boxed{", "\\boxed{5}", "\\text{", "\\text{Yes}",
    "\\left(", "\\right)", "\\pi", "\\infty", "\\cup", "\\in", "\\pm", "\\le", "\\ldots", "\\cdot", "\\log_2", "\\sin",
    "\\begin{pmatrix}", "\\end{pmatrix}", "^{2}", "_5", "^\\circ", "\\%", "\\$", "$", "$$", "\\(", "\\)", "\\[", "\\]",
    "and ", "or ", "is ", "the answer is ", "Answer: ", "#### ", "SAT", "UNSAT", "not ", "satisfiable", "(B)", "A ",
    "True", "Yes", "No, ", "1,000", "0.5", "12", "148", "(or ", "1/2", "x = ", "**", "`", "```\n", "> ", "] ) }",
)  # fmt: skip


def random_texts(count: int, seed: int) -> Iterator[str]:
    """`count` mixtures of up to 40 pieces; one in fifty stands at the end of a long text."""
    draw = random.Random(seed)
    for number in range(count):
        text = "".join(draw.choice(_PIECES) for _ in range(draw.randint(0, 40)))
        yield text if number % 50 else draw.choice(_PIECES) * draw.randint(1000, 20_000) + text
