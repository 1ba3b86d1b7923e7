"""The report of one run: `<workdir>/report/` with summary.json, report.md and plots, made from the run's files alone.

It can be made again at any time, of an unfinished run too; what is not there yet is said. Nothing here samples.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from rw.errors import WorkdirError
from rw.evaluation.aggregate import summary as summarise
from rw.evaluation.description import essentials, source_paragraph
from rw.evaluation.history import History, read_history
from rw.evaluation.table import (
    before_after_table,
    margin_table,
    markdown_or,
    ordered_arms,
    print_table,
    terminal,
    type_table,
)
from rw.evaluation.time_tables import time_sections

FOLDER, SUMMARY, TEXT, RESULTS = "report", "summary.json", "report.md", "results.html"
INTERVALS = (
    "Every arm answers the same questions, one greedy rollout each. A question lost to infrastructure (`lost`) "
    "counts as wrong. Accuracy has Wilson's 95 % interval. The mean cost has a normal one, over the questions whose "
    "cost is known and that infrastructure did not cut short. Margins are paired by question, with Newcombe's "
    "interval for paired shares. The best forced mode and the best scripted router are chosen on these very "
    "questions, which makes them hard bars."
)
WORKERS_WERE = {
    "simulated": "The Workers were SIMULATED: programs, not models. The numbers say nothing about real ones.",
}
FILES = (
    ("config.json", "the resolved config"),
    ("metrics.jsonl", "one row a step"),
    ("validation.jsonl", "one row a validation"),
    ("evaluation", "one file an arm, one line a test question"),
    ("trajectories", "rollouts, one line each"),
    ("ledger.jsonl", "every paid attempt and every logical call"),
    ("checkpoints", "states by step"),
    ("best", "the router that validated best"),
    ("profile", "traces of single steps, for TensorBoard and Perfetto"),
)


def write_report(workdir: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Writes the report of a run, and the results of its arms where it has any; returns the path of its report.md. An
    older report is replaced.

    Args:
        workdir: of the run, finished or not.
        out: where the report goes; None: `<workdir>/report`.

    Raises:
        WorkdirError: there is no run, or the report cannot be written.
        DataError: a file of the evaluation is damaged, or its arms answer different questions.
    """
    from rw.evaluation.plots import write_plots  # here, since matplotlib takes longer to load than rw

    history = read_history(workdir)
    summary = summarise(history.arms, history.rows, history.identity)
    folder = pathlib.Path(out) if out is not None else history.path / FOLDER
    if history.arms:
        _write_results(workdir, folder)
    with written_folder(folder):
        drawn, without = write_plots(history, summary, folder)
        write_whole(folder / SUMMARY, json.dumps(summary, indent=2, allow_nan=False, ensure_ascii=False) + "\n")
        plots = [f"### {plot.name.capitalize()}\n\n{plot.reading}\n\n![{plot.name}]({plot.name}.png)" for plot in drawn]
        text = report_text(
            history, summary, plots, [plot.name for plot in without], os.path.relpath(history.path, folder)
        )
        write_whole(folder / TEXT, text)
    return folder / TEXT


def _write_results(workdir: str | os.PathLike[str], folder: pathlib.Path) -> None:
    from rw.evaluation.results import write_results  # here, since it takes its folder and notes from this file

    write_results(workdir, folder)


def print_report(path: str | os.PathLike[str], console: Console | None = None) -> None:
    """Prints the tables of a written report, who the Workers were, and where it is; `path` is its report.md."""
    console = console or terminal()
    summary = read_summary(path)
    print_table(summary, console)
    if summary["source"] in WORKERS_WERE:
        console.print(WORKERS_WERE[summary["source"]], markup=False, soft_wrap=True)
    console.print(f"report: {path}", markup=False, soft_wrap=True)


def read_summary(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The summary beside a report.md."""
    return json.loads((pathlib.Path(path).parent / SUMMARY).read_text(encoding="utf-8"))


def report_text(
    history: History, summary: Mapping[str, Any], plots: Sequence[str], without: Sequence[str], to_workdir: str
) -> str:
    """report.md.

    Args:
        plots: a paragraph each.
        without: names of plots for which nothing was measured.
        to_workdir: the run's directory, as seen from the report.
    """
    if without:
        plots = [*plots, f"Nothing was measured for: {', '.join(without)}."]
    sections = [
        f"# Run {history.name}",
        state_words(history, summary),
        source_paragraph(history.config),
        "## What was run",
        "\n".join(f"- {what}: {value}" for what, value in essentials(history.config, summary)),
        "## Before and after",
        *_test_sections(history, summary),
        *time_sections(history),
        "## Plots",
        *(plots or ["No step is finished, so there is nothing to draw yet."]),
        "## Files",
        "\n".join(
            f"- [`{name}`]({to_workdir}/{name}): {words}" for name, words in FILES if (history.path / name).exists()
        ),
        f"[`{SUMMARY}`]({SUMMARY}) holds the numbers of this report. `rw report WORKDIR` makes it again.",
    ]
    return "\n\n".join(sections) + "\n"


def _test_sections(history: History, summary: Mapping[str, Any]) -> list[str]:
    if not ordered_arms(summary):
        wanted = history.identity.test_queries
        return [
            f"No test question has been answered yet: {wanted} are at the end of the run."
            if wanted
            else "This run has no final evaluation (`evaluation.test_queries` is 0)."
        ]
    return [
        before_after_table(summary).markdown(),
        INTERVALS,
        f"[`{RESULTS}`]({RESULTS}) has every set and domain, costs, differences of any two arms, and trajectories.",
        "### By type of question",
        type_table(summary).markdown(),
        majority_words(summary),
        "### Margins of the trained router",
        markdown_or(margin_table(summary), "Nothing to compare the trained router with has been evaluated."),
    ]


def state_words(history: History, summary: Mapping[str, Any]) -> str:
    """Whether the run is finished, how far it is, and which router was kept."""
    wanted = history.identity.steps
    state = "Finished" if summary["finished"] else "Not finished"
    steps = "no step yet" if not summary["steps"] else f"step {summary['steps']}"
    words = [f"{state}: {steps}{f' of {wanted}' if wanted else ''}."]
    if summary["best_step"] is not None:
        words.append(f"The router kept is that of step {summary['best_step']}.")
    elif summary["steps"]:
        words.append("Nothing was validated.")
    if history.unreadable:
        words.append(f"Lines of its metrics that cannot be read and are left out: {history.unreadable}.")
    return " ".join(words)


def majority_words(summary: Mapping[str, Any]) -> str:
    """Whether the trained router treats types of question differently."""
    chosen = {mode for mode in (summary["majority_mode"] or {}).values() if mode is not None}
    if not chosen:
        was_tested = bool(summary["majority_mode"])
        return f"The trained router {'declared no mode' if was_tested else 'was not evaluated'}."
    if len(summary["majority_mode"]) == 1:
        return f"There is one type of question; most of it is answered in mode {min(chosen)}."
    if len(chosen) == 1:
        return f"The majority mode is {min(chosen)} for every type of question."
    return f"The majority mode differs between types of question: {len(chosen)} modes are some type's majority."


@contextlib.contextmanager
def written_folder(folder: pathlib.Path) -> Iterator[None]:
    """Makes the folder for what is written inside; raises WorkdirError where either cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise WorkdirError(f"cannot write a report to {str(folder)!r}: {error.strerror or error}") from error


def write_whole(path: pathlib.Path, text: str) -> None:
    """Writes a file whole or not at all."""
    aside = path.with_name(path.name + ".part")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)
