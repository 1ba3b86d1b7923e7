"""Several runs side by side: each one's summary, and the mean and range over them. Made from their reports' numbers."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from rw.errors import WorkdirError
from rw.evaluation.aggregate import summary as summarise
from rw.evaluation.history import read_history
from rw.evaluation.report import FOLDER as RUN_FOLDER
from rw.evaluation.report import (
    SUMMARY,
    TEXT,
    WORKERS_WERE,
    read_summary,
    write_report,
    write_whole,
    written_folder,
)
from rw.evaluation.table import (
    ABSENT,
    MANY,
    MARGINS,
    Table,
    accuracy_of,
    arm_words,
    cost_unit,
    interval_words,
    ordered_arms,
    percent,
    print_one,
    terminal,
)

FOLDER = "comparison"
DEVIATION = "standard deviation"
OVER_RUNS = ("accuracy_", "cost_usd_mean", "margins", "mode_share", "invalid")  # fields that have a mean over runs


def write_comparison(
    workdirs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str] | None = None
) -> pathlib.Path:
    """Writes each run's own report and one of all of them; returns the path of the latter's report.md.

    Args:
        workdirs: of the runs, each once.
        out: where the side-by-side report goes; None: `comparison` beside the first run.

    Raises:
        WorkdirError: a directory given twice, or without a run, or `out` is one of the runs or cannot be written.
        DataError: as `write_report`.
    """
    from rw.evaluation.comparison_plots import write_plots  # here, since matplotlib takes longer to load than rw

    paths = [pathlib.Path(workdir).resolve() for workdir in workdirs]
    folder = pathlib.Path(out) if out is not None else pathlib.Path(workdirs[0]).absolute().parent / FOLDER
    _check_paths(paths, folder)
    histories = [read_history(workdir) for workdir in workdirs]
    for workdir in workdirs:
        write_report(workdir)
    names = run_names(paths)
    summaries = [
        {**summarise(history.arms, history.rows, history.identity), "run": name}
        for history, name in zip(histories, names, strict=True)
    ]
    with written_folder(folder):
        plots = write_plots(histories, summaries, folder)
        write_whole(
            folder / SUMMARY, json.dumps(over_runs(summaries), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        )
        write_whole(folder / TEXT, comparison_text(summaries, plots, _links(paths, folder)))
    return folder / TEXT


def print_comparison(path: str | os.PathLike[str], console: Console | None = None) -> None:
    """Prints the table of a comparison that was written, and where it is; `path` is its report.md."""
    console = console or terminal()
    summaries = read_summary(path)["runs"]
    print_one(comparison_table(summaries, intervals=False), console)
    for note in (*differences(summaries), *workers_words(summaries)):
        console.print(note, markup=False, soft_wrap=True)
    console.print(f"report: {path}", markup=False, soft_wrap=True)


def run_names(paths: Sequence[pathlib.Path]) -> list[str]:
    """The directories' names, with as many of their parents as it takes to tell them apart."""
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names


def over_runs(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """{"runs", "mean", "range", "count"}: the summaries, and over the runs that have a value its mean, its [least,
    greatest] and their number, in the places where the summaries have it."""
    chosen = [{name: value for name, value in summary.items() if name.startswith(OVER_RUNS)} for summary in summaries]
    reductions: dict[str, Callable[[list[float]], Any]] = {
        "mean": lambda values: sum(values) / len(values),
        "range": lambda values: [min(values), max(values)],
        "count": len,
    }
    return {"runs": list(summaries), **{name: _reduced(chosen, how) for name, how in reductions.items()}}


def _reduced(values: Sequence[Any], how: Callable[[list[float]], Any]) -> Any:
    """Values of one place in the summaries, reduced: numbers, means of intervals, or dicts of these; None for none."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    if isinstance(there[0], Mapping):
        if "mean" in there[0]:
            return how([value["mean"] for value in there])
        names = dict.fromkeys(name for value in there for name in value)
        return {name: _reduced([value.get(name) for value in there], how) for name in names}
    return how(there)


def comparison_table(summaries: Sequence[Mapping[str, Any]], intervals: bool = True) -> Table:
    """One column a run, with the interval within it where wanted, then mean and range over the runs with a value.

    Many runs have no columns of their own: their standard deviation stands instead.
    """
    rows: list[tuple[str, ...]] = []
    arms = sorted({arm for summary in summaries for arm in ordered_arms(summary)}, key=_places(summaries).get)
    for arm in arms:
        found = [accuracy_of(summary, arm) for summary in summaries]
        rows.append(_row(f"% right, {arm_words(arm)}", found, intervals))
    for name, words in MARGINS.items():
        found = [summary["margins"][name] for summary in summaries]
        if any(found):
            rows.append(_row(f"trained minus {words}, points", found, intervals, signed=True))
    costs = {arm: [summary["cost_usd_mean"].get(arm) for summary in summaries] for arm in arms}
    factor, unit = cost_unit(value["mean"] for found in costs.values() for value in found if value)
    for arm, found in costs.items():
        means = [value and value["mean"] for value in found]
        rows.append(_cells(f"cost, {arm_words(arm)}, {unit}", means, lambda mean: f"{mean * factor:.3g}"))
    for kind in sorted({kind for summary in summaries for kind in summary["majority_mode"] or {}}):
        chosen = [(summary["majority_mode"] or {}).get(kind) or ABSENT for summary in summaries]
        rows.append((f"majority mode, {kind}", *chosen, *_most_frequent(chosen)))
    for name in ("source", "seed", "test_queries", "test_draw_seed", "steps", "best_step"):
        found = [ABSENT if summary[name] is None else str(summary[name]) for summary in summaries]
        rows.append((name.replace("_", " "), *found, "", "", ""))
    columns = ("", *(summary["run"] for summary in summaries), "mean", "range", DEVIATION)
    kept = [0, -3, -1, -2] if len(summaries) > MANY else range(len(columns) - 1)
    chosen = (tuple(row[place] for place in kept) for row in (columns, *rows) if any(row[place] for place in kept[1:]))
    columns, *rows = chosen
    return Table(f"{len(summaries)} runs", columns, tuple(rows))


def _most_frequent(words: Sequence[str]) -> tuple[str, str, str]:
    """What stands for a mean of words, and nothing for their range."""
    word, count = collections.Counter(words).most_common(1)[0]
    return (f"{word} ({count} of {len(words)})", "", "")


def _places(summaries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Where each arm stands in the order for people."""
    merged = {"accuracy_by_type": {arm: {} for summary in summaries for arm in summary["accuracy_by_type"]}}
    return {arm: place for place, arm in enumerate(ordered_arms(merged))}


def _row(
    words: str, found: Sequence[Mapping[str, Any] | None], with_intervals: bool, signed: bool = False
) -> tuple[str, ...]:
    cells = _cells(words, [interval and interval["mean"] for interval in found], lambda mean: percent(mean, signed))
    return (words, *(interval_words(interval, signed) for interval in found), *cells[-3:]) if with_intervals else cells


def _cells(words: str, values: Sequence[float | None], form: Callable[[float], str]) -> tuple[str, ...]:
    """A row: each run's value, then mean, range and standard deviation over the runs that have one."""
    there = [value for value in values if value is not None]
    cells = [ABSENT if value is None else form(value) for value in values]
    if not there:
        return (words, *cells, ABSENT, ABSENT, ABSENT)
    partly = "" if len(there) == len(values) else f" ({len(there)} of {len(values)})"
    spread = form(statistics.stdev(there)).lstrip("+") if len(there) > 1 else ABSENT
    mean = form(sum(there) / len(there)) + partly
    return (words, *cells, mean, f"{form(min(there))} to {form(max(there))}", spread)


def comparison_text(
    summaries: Sequence[Mapping[str, Any]], plots: Sequence[tuple[str, str]], links: Sequence[str]
) -> str:
    """report.md of several runs; `plots` are (file, how to read it), `links` lead to the runs' own reports."""
    runs = [
        f"- [{summary['run']}]({link}): "
        + ("finished" if summary["finished"] else "not finished")
        + f", step {summary['steps']}"
        for summary, link in zip(summaries, links, strict=True)
    ]
    notes = differences(summaries)
    sections = [
        f"# {len(summaries)} runs side by side",
        "\n".join(runs),
        *(["**They differ in more than chance:**\n\n" + "\n".join(f"- {note}" for note in notes)] if notes else []),
        *workers_words(summaries),
        comparison_table(summaries).markdown(),
        "In parentheses: the 95 % interval within a run, which is about its questions. The range is over runs, which "
        "is about seeds.",
        *(f"{reading}\n\n![{file}]({file})" for file, reading in plots),
    ]
    return "\n\n".join(sections) + "\n"


def workers_words(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Who the Workers of the runs were, where that must be said: once a kind."""
    return [words for source, words in WORKERS_WERE.items() if source in {summary["source"] for summary in summaries}]


def differences(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """What makes the runs no repetitions of one another, a sentence each."""
    notes = []
    for name, words in (
        ("source", "questions come from different sources"),
        ("test_queries", "the test has different sizes"),
        ("steps", "they have different numbers of steps"),
    ):
        values = [summary[name] for summary in summaries]
        if len(set(values)) > 1:
            notes.append(f"{words} ({', '.join(map(str, values))})")
    if unfinished := [summary["run"] for summary in summaries if not summary["finished"]]:
        notes.append(f"not finished: {', '.join(unfinished)}")
    return notes


def _check_paths(paths: Sequence[pathlib.Path], folder: pathlib.Path) -> None:
    for place, path in enumerate(paths):
        if path in paths[:place]:
            raise WorkdirError(f"run {str(path)!r} is given twice; each run counts once")
        if path == folder.resolve():
            raise WorkdirError(f"--out {str(folder)!r} is one of the runs; take another directory")


def _links(paths: Sequence[pathlib.Path], folder: pathlib.Path) -> list[str]:
    return [os.path.relpath(path / RUN_FOLDER / TEXT, folder.resolve()) for path in paths]
