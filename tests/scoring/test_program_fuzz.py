"""On any text the scorer of programs gives a verdict: the worst texts known, and random mixtures as programs."""

import os
import pathlib
import random
import sys

import pytest

from rw.scoring.config import ScoringConfig
from rw.scoring.program import extract_program, program_scorer
from rw.types import ProgramTests, Query, VerdictKind

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "data" / "scorers"))
from hostile_texts import WORST, random_texts  # noqa: E402

FULL = bool(os.environ.get("RW_TEST_FULL"))
TESTS = (
    ProgramTests("stdin", ("1\n",), ("an output that no text has by chance\n",)),
    ProgramTests("function", ((1,),), ("a value that no text returns by chance",), function="f"),
    ProgramTests("asserts", ("assert f(1) == 'a value that no text returns by chance'",)),
)
PIECES = (
    "```python\n", "\n```\n", "~~~\n", "print(1)\n", "def f(x):\n", "    return x\n", "class Solution:\n", "input()\n",
    "import os\n", "os._exit(0)\n", "raise SystemExit\n", "\0", "\ud800", "é", "\t", "\\\n", "'''", "(",
    "\r\n", "# coding: latin-1\n", "\x0c", "f'{", "lambda: ", "try:\n", "except BaseException: pass\n", "del print\n",
    "exit()\n", "__name__ = 1\n", "import sys; sys.stdout = None\n", "sys.exit('x')\n", "globals().clear()\n",
)  # fmt: skip


def verdicts(texts):
    score = program_scorer(ScoringConfig(test_s=2))
    for number, text in enumerate(texts):
        verdict = score(text, Query("q", "apps", "code", "?", TESTS[number % 3]))
        assert not verdict.correct and len(verdict.detail) < 1200, (text, verdict)
        assert verdict.kind not in (VerdictKind.PASS, VerdictKind.SANDBOX_FAULT), (text, verdict)
        yield verdict


def mixed(count, seed):
    draw = random.Random(seed)
    return ["".join(draw.choices(PIECES, k=draw.randrange(1, 30))) for _ in range(count)]


PARTS = 20 if FULL else 1


@pytest.mark.usefixtures("tight_sandbox")
@pytest.mark.parametrize("part", range(PARTS))
def test_no_text_is_right_by_chance_and_none_breaks_the_scorer(part):
    count = 335 if FULL else 100
    worst = WORST[part::PARTS] if FULL else ()
    texts = [*mixed(count, 1 + 10 * part), *random_texts(count // 2, seed=2 + 10 * part), *worst]
    assert len(list(verdicts(texts))) == len(texts)


def test_a_program_is_found_in_any_text():
    for text in (*mixed(10_000 if FULL else 300, 3), *WORST, *random_texts(10_000 if FULL else 300, seed=4)):
        program = extract_program(text)
        assert len(program) <= len(text) and "```\n```\n```" not in program
