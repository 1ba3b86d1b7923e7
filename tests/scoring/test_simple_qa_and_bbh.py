"""SimpleQA-Verified with its references as the file writes them, and BIG-Bench Hard with targets of every form."""

import pytest

from rw.scoring import SCORERS, bbh, short_answer
from rw.types import Query, VerdictKind

HEIGHT = "390 metres (acceptable range: anything between 386 and 394 metres)"
PEOPLE = "10,990,502 (acceptable range: anything between 10,440,976 and 11,540,028)"
SHARE = "33.7738 (acceptable range: anything between 33.7586 and 33.8022)"


@pytest.mark.parametrize(
    ("reference", "response", "correct"),
    [
        ("The Coast Guard", "the coast guard", True),
        ("The Coast Guard", "Coast Guard!", True),
        ("The Coast Guard", "It was the coast\n guard, of course.", True),
        ("Eagle", "It was an eagle.", True),
        ("Eagle", "Eagles", False),
        ("Eagle", "_Eagle_", True),  # an underscore is neither letter nor digit
        ("Gvulot.", "gvulot", True),
        (" Fried, Frank, Harris", "They are Fried, Frank, Harris & Co", True),
        ('Kelton "LDB" Kessee', 'He is Kelton "LDB" Kessee', True),
        ("Jóhanna Sigurðardóttir", "JÓHANNA SIGURÐARDÓTTIR", True),
        ("Johanna", "Jóhanna", False),
        ("tramp steamer (or collier)", "a collier", True),
        ("tramp steamer (or collier)", "A tramp steamer.", True),
        ("tramp steamer (or collier)", "tramp steamer (or collier)", True),
        ("tramp steamer (or collier)", "a steamer", False),
        ("2013", "In 2013.", True),
        ("2013", "20130", False),
        ("3", "It has 3.", True),
        ("3", "1,563", False),
        ("3", "3.5", False),
        ("3", "1.3", False),
        ("3", "-3", False),
        ("3", "3.", True),
        ("45", "4.5", False),
        ("102510", "102,510 of them", True),
        ("15", "15th", False),
        ("120,000 euros", "120000 euros", True),
        ("15th place", "She came in 15th place", True),
        ("June 2019", "June 24, 2019", False),
        ("Infinite Crisis #1", "in Infinite Crisis #1", True),
        ("Infinite Crisis #1", "in Infinite Crisis #12", False),
        (HEIGHT, "390 metres", True),
        (HEIGHT, "about 386", True),
        (HEIGHT, "394 m", True),
        (HEIGHT, "395", False),
        (HEIGHT, "385.9", False),
        (HEIGHT, "1390", False),
        (HEIGHT, "-390", False),
        (HEIGHT, "in 1990 it was 388.5 metres high", True),
        (HEIGHT, HEIGHT, True),
        (PEOPLE, "11,000,000 people", True),
        (PEOPLE, "11000000", True),
        (PEOPLE, "11", False),
        (SHARE, "33.76", True),
        (SHARE, "33.75", False),
        ("x (acceptable range: anything between 5 and 2)", "3", True),
        ("150 (acceptable range: anything between . and ..)", "150", False),  # no numbers: the text stands as it is
        ("Lima", "", False),
        ("Lima", "  ", False),
        ("...", "anything...", False),
    ],
)
def test_simple_qa(reference, response, correct):
    query = Query("q1", "simple_qa_verified", "recall", "?", reference)
    verdict = SCORERS["simple_qa_verified"](response, query)
    assert verdict.correct is correct, verdict
    assert (verdict.kind == VerdictKind.PASS, verdict.scorer) == (correct, short_answer.SIMPLE_QA_VERSION)


PROMPT = "Which day is it?\nOptions:\n(A) 05/01/2021\n(B) 02/23/2021"


@pytest.mark.parametrize(
    ("target", "response", "correct"),
    [
        ("(B)", "(B)", True),
        ("(B)", "B", True),
        ("(B)", "b", False),
        ("(B)", "B.", True),
        ("(B)", "B)", True),
        ("(B)", "**(B)**", True),
        ("(B)", r"\boxed{(B)}", True),
        ("(B)", r"$\boxed{\text{B}}$", True),
        ("True", r"\boxed{\text{False}}", False),
        ("(B)", "Let me think.\nSo the answer is (B).", True),
        ("(B)", "Answer: B", True),
        ("(B)", "(B) 02/23/2021", True),
        ("(B)", "(B) 05/01/2021", False),
        ("(B)", "(A)", False),
        ("(B)", "(A) or (B)", False),
        ("(B)", "(B)\n(A)", False),
        ("True", "true", True),
        ("True", "not true", False),
        ("yes", "Yes.", True),
        ("No", "no", True),
        ("valid", "The argument is valid", False),
        ("valid", "The answer is valid", True),
        ("valid", "invalid", False),
        ("88", "88", True),
        ("88", "**Answer:** $88$", True),
        ("-37", "−37", True),
        ("1234", "1,234", True),
        ("-37", "37", False),
        ("37", "+037", True),
        ("37", "9" * 5000, False),
        ("88", "88 apples", False),
        ("88", "8 8", False),
        ("] ) }", "] ) }", True),
        ("] ) }", "])}", True),
        ("] ) }", "So the answer is ] ) }.", True),
        ("] ) }", "] )", False),
        ("] ) }", "] ] ) }", False),
        ("> } ]", "> } ]", True),
        ("> } ]", "} ]", False),
        (">", "`>`", True),
        ("bonito dreamboat fritter", "bonito, dreamboat, fritter", True),
        ("bonito dreamboat fritter", "Bonito dreamboat  fritter", True),
        ("bonito dreamboat fritter", "dreamboat bonito fritter", False),
        ("bonito dreamboat fritter", "1. bonito\n2. dreamboat\n3. fritter", False),
        ("(B)", "", False),
        ("", "", False),
    ],
)
def test_bbh(target, response, correct):
    verdict = SCORERS["bbh"](response, Query("q1", "bbh", "reason", PROMPT, target))
    assert verdict.correct is correct, verdict
    assert (verdict.kind == VerdictKind.PASS, verdict.scorer) == (correct, bbh.VERSION)
