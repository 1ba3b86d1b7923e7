"""Programs and inputs that are odd and not hostile: large, deep, or of characters that few expect."""

import pytest

from rw.scoring.config import ScoringConfig
from rw.scoring.program import extract_program, run_program
from rw.types import ProgramTests, VerdictKind

CONFIG = ScoringConfig(test_s=3)
pytestmark = pytest.mark.usefixtures("tight_sandbox")


def outcome(program, given="", expected="fine"):
    return run_program(program, ProgramTests("stdin", (given,), (expected,)), CONFIG)


@pytest.mark.parametrize(
    "program",
    [
        "def f(n): return n and 1 + f(n - 1)\nprint('fine' if f(40000) == 40000 else 'no')",
        "import functools\n@functools.lru_cache(None)\ndef f(n): return n and 1 + f(n - 1)\nf(15000)\nprint('fine')",
        "import threading\nthreading.stack_size(128 << 20)\nthreading.Thread(target=print, args=('fine',)).start()",
        "from concurrent.futures import ThreadPoolExecutor as E\nprint(''.join(E(8).map(str, ['fi', 'ne'])))",
        "import os\nprint('fine', flush=True)\nos.close(0)",
        "print('fine')\nimport sys\nsys.stdout.close()",
        "x = '" + "a" * 1_000_000 + "'\nprint('fine')",
        "x = [" + "1, 2, 3,\n" * 60_000 + "]\nprint('fine')",
        "import sys\nsys.stdout.buffer.write(b'fine')",
        "print('fine')\nexit()",
        "print('fine')\nquit(0)",
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n  x: int = 1\nprint('fine')",
        "import pickle\nclass A: pass\npickle.loads(pickle.dumps(A()))\nprint('fine')",
        "import decimal, asyncio, fractions, sqlite3, xml.dom, numbers\nprint('fine')",
        "\tprint('fine')".strip() + "\r\n",
    ],
)
def test_odd_programs_that_are_right(program):
    assert outcome(program).kind is VerdictKind.PASS, outcome(program)


@pytest.mark.parametrize(
    "program, detail",
    [
        ("def f(): return f()\nf()", "RecursionError"),
        ("print('fine')\0", "null bytes"),
        ("print('\ud800')", "surrogates"),
        ("(" * 100_000, "SyntaxError"),
        ("import os\nos.abort()", "SIGABRT"),
        ("import ctypes\nctypes.string_at(1)", "SIGSEGV"),
        ("raise SystemExit('no')", "no"),
        ("import sys\nprint('fine')\nsys.exit(256 + 3)", "exit status 3"),
        ("class E(Exception):\n def __str__(s): 1 / 0\nraise E", "E: "),
        ("raise Exception('x' * 10 ** 7)", "xxx"),
        ("import os\nos.close(1)\nprint('fine')", ""),
    ],
)
def test_odd_programs_that_crash(program, detail):
    result = outcome(program)
    assert (result.kind, detail in result.detail) == (VerdictKind.CRASH, True), result
    assert len(result.detail) < 1000


def test_odd_inputs_come_through():
    echo = "import sys\nsys.stdout.write(sys.stdin.read())"
    for text in ("a\0b", "é∀🙂", "1\r\n2", "x" * 3_000_000, "\ufeffa"):
        assert outcome(echo, text, text.replace("\r\n", "\n")).kind is VerdictKind.PASS, text[:9]
    assert outcome(echo, "\ud800", "\ud800").kind is VerdictKind.WRONG  # no output can hold half a character
    assert outcome("print('fine')", "x" * 5_000_000).kind is VerdictKind.PASS  # input that is not read


def test_a_response_of_nothing_but_fences_takes_no_time():
    assert extract_program("```\n" * 250_001) == ""
    assert extract_program("```\na\n```\n" * 100_000) == "a\n"
    assert extract_program("`" * 1_000_000) == "" and extract_program(" " * 1_000_000 + "x").endswith("x")
    assert extract_program("```x`\n" * 100_000).startswith("```x`")
