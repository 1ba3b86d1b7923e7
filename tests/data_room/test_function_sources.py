"""Loaders of HumanEval and MBPP, on rows in their schemas; what they make really runs."""

import pytest

from rw.data import answer_formats
from rw.data.source import load

HUMAN = {
    "task_id": "HumanEval/900",
    "prompt": "import math\n\n\ndef half(x):\n    return x / 2\n\n\ndef quarter(x: float) -> float:\r\n"
    '    """ A quarter of x.\n    >>> quarter(4)\n    1.0\n    """\n',
    "entry_point": "quarter",
    "canonical_solution": "    return half(half(x))\n",
    "test": "\n\nMETADATA = {}\n\n\ndef check(candidate):\n    assert candidate(4) == 1\n"
    "    assert math.isclose(candidate(2 * half(1)), 0.25)\n",
}
MBPP = {
    "text": "Write a function to add.",
    "code": "def add(a, b):\r\n\treturn a + b",
    "task_id": 69,
    "test_setup_code": "start = 1\r\n",
    "test_list": ["assert add(start, 2) == 3", "assert add(0, 0) == 0\r\n"],
    "challenge_test_list": [],
}


def holds(tests, program):
    """Whether the program passes, run as its judges run it: what it may rely on, the program, then each check."""
    space = {}
    exec(f"{tests.setup}\n{program}", space)
    for source in tests.inputs:
        try:
            exec(source, space)
        except AssertionError:
            return False
    return True


def test_human_eval_checks_the_function_with_what_stands_before_it():
    (query,) = load("human_eval", [HUMAN]).queries
    assert query.id == "human_eval/900" and query.domain == "code" and query.reference.kind == "asserts"
    assert query.reference.function == "quarter" and query.reference.outputs == () and query.reference.public == 0
    assert holds(query.reference, "def quarter(x):\n    return half(half(x))")
    assert not holds(query.reference, "def quarter(x):\n    return half(x)")
    assert query.prompt.endswith(f'    1.0\n    """\n```\n\n{answer_formats.CHECKED_PROGRAM}')
    assert "\r" not in query.prompt + query.reference.setup


def test_human_eval_without_its_function_is_dropped():
    assert load("human_eval", [{**HUMAN, "entry_point": "third"}]).dropped == {"no_entry_point": 1}


def test_mbpp_shows_its_asserts_and_checks_each():
    (query,) = load("mbpp", [MBPP]).queries
    assert query.id == "mbpp/69" and query.reference.public == len(query.reference.inputs) == 2
    assert query.prompt == (
        "Write a function to add.\n\nThese must hold:\n\n```python\nassert add(start, 2) == 3\n"
        f"assert add(0, 0) == 0\n```\n\n{answer_formats.CHECKED_PROGRAM}"
    )
    assert holds(query.reference, MBPP["code"]) and not holds(query.reference, "def add(a, b):\n\treturn 3")
    assert query.reference.setup == "start = 1\n"


def test_the_sanitised_mbpp_names_its_columns_otherwise():
    row = {key: value for key, value in MBPP.items() if key not in ("text", "test_setup_code", "challenge_test_list")}
    row = {**row, "prompt": "Add.", "test_imports": ["import math", "start = 1"]}
    (query,) = load("mbpp", [row]).queries
    assert query.prompt.startswith("Add.\n\n") and query.reference.setup == "import math\nstart = 1"
    assert holds(query.reference, MBPP["code"])


@pytest.mark.parametrize(
    "asserts, reason", [([], "no_tests"), ("assert x", "tests_not_texts"), ([""], "tests_not_texts")]
)
def test_mbpp_rows_without_asserts_are_dropped(asserts, reason):
    assert load("mbpp", [{**MBPP, "test_list": asserts}]).dropped == {reason: 1}
