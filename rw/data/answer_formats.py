"""The line at the end of each question that says how its answer must be given: router and Workers both read it.

The lines ask for a place and a form, and never for brevity. RouteWeaver's authors do likewise; the words are ours.
"""

from __future__ import annotations

MATHS = "Put the final answer by itself on the last line."
SHORT_ANSWER = "Put the short answer by itself on the last line."
LETTER = "Put the letter of the right option by itself on the last line."
SAT_LABEL = "Put SAT by itself on the last line if all conditions can hold at once, and UNSAT if they cannot."
STDIN_PROGRAM = (
    "Write a Python program that reads standard input and writes to standard output. "
    "Put the whole program last, in one ```python block."
)
FUNCTION_PROGRAM = (
    "Write it in Python, with the class and function names and the arguments given. "
    "Put the whole program, imports included, last, in one ```python block."
)
CHECKED_PROGRAM = "Put the whole program, imports included, last, in one ```python block."

# How the answers of the BIG-Bench Hard tasks look whose questions show no options; they are compared as they stand.
BBH_FORMS = {
    "boolean_expressions": "True or False",
    "dyck_languages": "the missing closing brackets alone, with a space between them,",
    "multistep_arithmetic_two": "the number",
    "object_counting": "the number, in digits,",
    "sports_understanding": "yes or no",
    "web_of_lies": "Yes or No",
    "word_sorting": "the sorted words, with a space between them,",
}
BBH_LETTERED = "Put the letter of the right option in its brackets, such as (A), by itself on the last line."
BBH_LISTED = "Put the right option, as it is written above, by itself on the last line."


def bbh_line(task: str, question: str) -> str:
    """The line of a BIG-Bench Hard question: by the options that it shows, else by its task."""
    if "\n(A)" in question:
        return BBH_LETTERED
    if "\n- " in question:
        return BBH_LISTED
    return f"Put {BBH_FORMS.get(task, 'the answer')} by itself on the last line."


_LINES = frozenset(
    (MATHS, SHORT_ANSWER, LETTER, SAT_LABEL, STDIN_PROGRAM, FUNCTION_PROGRAM, CHECKED_PROGRAM, BBH_LETTERED, BBH_LISTED)
    + tuple(bbh_line(task, "") for task in ("", *BBH_FORMS))
)


def without_line(prompt: str) -> str:
    """The question of a prompt: all but its last paragraph, where that is one of the lines above."""
    question, _, line = prompt.rpartition("\n\n")
    return question if line in _LINES else prompt
