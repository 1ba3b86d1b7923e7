"""Small functions with asserts: HumanEval and MBPP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rw.data.answer_formats import CHECKED_PROGRAM
from rw.data.hub import Hub
from rw.data.sources.schema import Item, Place, Source, Unusable, code_of, field, text_of, unix_lines
from rw.types import ProgramTests


def read_human_eval(row: Mapping[str, Any], place: Place) -> Item:
    """HumanEval: task_id, prompt (code that ends in a docstring), entry_point, test (defines `check`).

    What stands before the function in the prompt, imports and whole helpers that the tests call, runs before the
    program: an answer need not repeat it.
    """
    prompt, test = (unix_lines(text_of(row, name)) for name in ("prompt", "test"))
    entry = text_of(row, "entry_point").strip()
    head = re.search(rf"^(?:async )?def {re.escape(entry)}\(", prompt, re.MULTILINE)
    if head is None:
        raise Unusable("no_entry_point")
    check = f"{test.rstrip()}\n\ncheck({entry})\n"
    tests = ProgramTests("asserts", (check,), function=entry, setup=prompt[: head.start()].lstrip("\n"))
    question = f"Complete this Python function.\n\n```python\n{prompt.strip()}\n```"
    return Item(text_of(row, "task_id").removeprefix("HumanEval/"), question, CHECKED_PROGRAM, tests, {})


def read_mbpp(row: Mapping[str, Any], place: Place) -> Item:
    """MBPP: text (`prompt` in the sanitised version), task_id, test_list of asserts, test_setup_code or test_imports.

    The question shows all asserts, as the set's authors do: without them it often does not say enough.
    """
    asserts = field(row, "test_list")
    if not isinstance(asserts, list) or not all(isinstance(line, str) and line.strip() for line in asserts):
        raise Unusable("tests_not_texts")
    if not asserts:
        raise Unusable("no_tests")
    asserts = tuple(unix_lines(line).strip() for line in asserts)
    imports = row.get("test_imports") or []
    if not isinstance(imports, list) or not all(isinstance(line, str) for line in imports):
        raise Unusable("imports_not_texts")
    setup = code_of(row, "test_setup_code") or unix_lines("\n".join(imports))
    shown = "\n".join(asserts)
    question = f"{text_of(row, 'text', 'prompt').strip()}\n\nThese must hold:\n\n```python\n{shown}\n```"
    tests = ProgramTests("asserts", asserts, setup=setup, public=len(asserts))
    return Item(text_of(row, "task_id"), question, CHECKED_PROGRAM, tests, {})


SOURCES = {
    "human_eval": Source(read_human_eval, "code", Hub("openai/openai_humaneval", {"test": "test"})),
    "mbpp": Source(
        read_mbpp,
        "code",
        Hub("google-research-datasets/mbpp", {"train": "train", "validation": "validation", "test": "test"}, ("full",)),
        unread=("code",),
    ),
}
