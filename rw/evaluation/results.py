"""The results of an evaluation: what all arms of a directory come to, beside one another and beside other directories.

`<workdir>/report/results.json`, results.md, results.html and plots are made from the arms' files alone, at any time.
Nothing here samples, calls or scores.
"""

from __future__ import annotations

import html
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from rw.errors import WorkdirError
from rw.evaluation.accuracies import accuracies
from rw.evaluation.domains import aggregation_words, strata
from rw.evaluation.outcomes import FOLDER as ARMS_FOLDER
from rw.evaluation.outcomes import read_arms
from rw.evaluation.report import FOLDER, write_whole, written_folder
from rw.evaluation.table import Table, interval_words, print_one, terminal

NAME = "results"


def write_results(
    workdir: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, against: Sequence[str] = ()
) -> pathlib.Path:
    """Writes the results of all arms of a directory and returns the path of their page, results.html.

    Args:
        workdir: holds the arms, in `evaluation/`.
        out: the folder they go to; None: `<workdir>/report`.
        against: other directories, `WORKDIR` or `WORKDIR:ARM`, whose arms are compared on the questions in common.

    Raises:
        WorkdirError: no arm is there, or the folder cannot be written.
        DataError: an arm's file is damaged, or arms cannot be compared.
    """
    path = pathlib.Path(workdir)
    arms = read_arms(path)
    if not arms:
        raise WorkdirError(f"no arm was evaluated in {str(path)!r}: {path / ARMS_FOLDER} holds no .jsonl file")
    folder = pathlib.Path(out) if out is not None else path / FOLDER
    found = {name: accuracies(arm.outcomes) for name, arm in arms.items()}
    words = aggregation_words(list(strata(next(iter(arms.values())).outcomes)))
    summary = {"run": path.resolve().name, "aggregation": words, "accuracies": found}
    table, data = _table(summary), json.dumps(summary, indent=2, allow_nan=False, ensure_ascii=False)
    with written_folder(folder):
        write_whole(folder / f"{NAME}.json", data + "\n")
        write_whole(folder / f"{NAME}.md", f"# Results of {summary['run']}\n\n{table.markdown()}\n\n{words}\n")
        write_whole(folder / f"{NAME}.html", _page(table, words))
    return folder / f"{NAME}.html"


def print_results(path: str | os.PathLike[str], console: Console | None = None) -> None:
    """Prints the main table of results that were written, and where they are; `path` is their page."""
    console = console or terminal()
    summary = json.loads(pathlib.Path(path).with_suffix(".json").read_text(encoding="utf-8"))
    print_one(_table(summary), console)
    console.print(f"results: {path}", markup=False, soft_wrap=True)


def _table(summary: dict[str, Any]) -> Table:
    arms = summary["accuracies"]
    domains = list(dict.fromkeys(domain for arm in arms.values() for domain in arm["domains"]))
    rows = [
        (name, *(interval_words(arm["domains"].get(domain)) for domain in domains), interval_words(arm["average"]))
        for name, arm in arms.items()
    ]
    return Table(f"{summary['run']}: % right (95 %)", ("arm", *domains, "Avg"), tuple(rows))


def _page(table: Table, words: str) -> str:
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in (table.columns, *table.rows)
    )
    return (
        f'<!doctype html><meta charset="utf-8"><title>{html.escape(table.title)}</title>'
        f"<table>{rows}</table><p>{html.escape(words)}</p>\n"
    )
