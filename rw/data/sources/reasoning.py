"""Logical reasoning: SATBench and BIG-Bench Hard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rw.data.answer_formats import SAT_LABEL, bbh_line
from rw.data.hub import Hub
from rw.data.sources.schema import Item, Place, Source, Unusable, field, known, text_of

_EASY, _MEDIUM = 15, 30  # most clauses of SATBench's easy and medium problems
BBH_TASKS = (
    "boolean_expressions",
    "causal_judgement",
    "date_understanding",
    "disambiguation_qa",
    "dyck_languages",
    "formal_fallacies",
    "geometric_shapes",
    "hyperbaton",
    "logical_deduction_five_objects",
    "logical_deduction_seven_objects",
    "logical_deduction_three_objects",
    "movie_recommendation",
    "multistep_arithmetic_two",
    "navigate",
    "object_counting",
    "penguins_in_a_table",
    "reasoning_about_colored_objects",
    "ruin_names",
    "salient_translation_error_detection",
    "snarks",
    "sports_understanding",
    "temporal_sequences",
    "tracking_shuffled_objects_five_objects",
    "tracking_shuffled_objects_seven_objects",
    "tracking_shuffled_objects_three_objects",
    "web_of_lies",
    "word_sorting",
)


def read_sat_bench(row: Mapping[str, Any], place: Place) -> Item:
    """SATBench: scenario, conditions (a list of numbered sentences), question, and satisfiable, a bool."""
    satisfiable = field(row, "satisfiable")
    if not isinstance(satisfiable, bool):
        raise Unusable("label_not_boolean")
    conditions = field(row, "conditions")
    if not isinstance(conditions, list) or not conditions or not all(isinstance(line, str) for line in conditions):
        raise Unusable("conditions_not_texts")
    question = "\n\n".join((text_of(row, "scenario"), "\n".join(conditions), text_of(row, "question")))
    metadata = known(row, ["num_vars", "num_clauses"])
    clauses = metadata.get("num_clauses")
    if isinstance(clauses, int):
        metadata["difficulty"] = "easy" if clauses <= _EASY else "medium" if clauses <= _MEDIUM else "hard"
    return Item("", question, SAT_LABEL, "SAT" if satisfiable else "UNSAT", metadata)


def read_bbh(row: Mapping[str, Any], place: Place) -> Item:
    """BIG-Bench Hard: input and target; the task is a column, or the name of the file or of the hub's config.

    Targets are kept as they stand: brackets of dyck_languages and the capitals of yes and no belong to the answer.
    """
    task = str(row.get("task") or place.origin)
    if task not in BBH_TASKS:
        raise Unusable("unknown_task")
    question = text_of(row, "input")
    # The tasks' own inputs are told apart by their texts, and two tasks never share one.
    return Item("", question, bbh_line(task, question), text_of(row, "target").strip(), {"task": task})


SOURCES = {
    "sat_bench": Source(
        read_sat_bench,
        "reason",
        Hub("LLM4Code/SATBench", {"train": "train", "test": "train"}),
        unread=("consistency_check_trace_history", "recovered_formula_full_text", "recovered_formula"),
    ),
    "bbh": Source(read_bbh, "reason", Hub("lukaemon/bbh", {"test": "test"}, BBH_TASKS), container="examples"),
}
