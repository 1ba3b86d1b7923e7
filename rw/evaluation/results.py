"""The results of an evaluation: what all arms of a directory come to, beside one another and beside other directories.

`<workdir>/report/results.html`, results.md, results.json and plots are made from the arms' files alone, at any time.
Nothing here samples, calls or scores.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from rw.errors import WorkdirError
from rw.evaluation import pairs
from rw.evaluation.outcomes import FOLDER as ARMS_FOLDER
from rw.evaluation.outcomes import ArmResult, named_arms, read_arms, trajectories_path
from rw.evaluation.report import FOLDER, WORKERS_WERE, write_whole, written_folder
from rw.evaluation.results_html import HEADINGS, page
from rw.evaluation.results_summary import REFERENCES, results_summary
from rw.evaluation.results_tables import against_table, main_table, paper_words, tables
from rw.evaluation.router_arena import BETA, CHEAPEST, DEAREST
from rw.evaluation.shown_trajectories import read_questions, shown
from rw.evaluation.table import Table, print_one, terminal

NAME = "results"
INTERVALS = (
    "Every arm answers the same questions, one rollout each; one lost to infrastructure counts as wrong and is counted "
    "in the last column. 95 % intervals: Wilson's for the share of one set; for means of sets and for graded scores a "
    "bootstrap that draws from each set apart."
)
DIFFERENCES = (
    "Paired by question: both arms answered the same ones, and only those are counted. 95 % intervals of a bootstrap "
    "that draws pairs from each set apart; cost differences have a normal interval. An interval without 0 in it tells "
    "the arms apart; with many arms, some do so by chance. results.html compares any two arms, results.json holds all."
)
CHOSEN = " What is subtracted was chosen as the best on these very questions, which makes it a hard bar."
ARENA = (
    f"Costs are the Workers', at the config's prices; a mean leaves out questions whose cost is unknown or that were "
    "lost. The router reads each token once. Seconds are how long a question waited for its Workers: the slowest call "
    f"of each turn. RouterArena: (1 + β)AC/(βA + C) in percent, β = {BETA}, A the share right, C the cost of 1,000 "
    f"questions on a log scale from {DEAREST:g} USD (0) to {CHEAPEST:g} USD (1), with the router's cost in it where "
    "that is priced; * marks a cost outside that scale, which counts as its end."
)


def write_results(
    workdir: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, against: Sequence[str] = ()
) -> pathlib.Path:
    """Writes the results of all arms of a directory and returns the path of their page, results.html.

    Args:
        workdir: holds the arms, in `evaluation/`.
        out: the folder they go to; None: `<workdir>/report`.
        against: other directories, `WORKDIR` (all its arms) or `WORKDIR:ARM`, compared on the questions in common.

    Raises:
        WorkdirError: no arm is there or an arm of `against` is not, or the folder cannot be written.
        DataError: an arm's file is damaged, or arms answer different questions.
    """
    from rw.evaluation.results_plots import write_plots  # here, since matplotlib takes longer to load than rw

    path = pathlib.Path(workdir)
    arms = read_arms(path)
    if not arms:
        raise WorkdirError(f"no arm was evaluated in {str(path)!r}: {path / ARMS_FOLDER} holds no .jsonl file")
    others = {name: arm for reference in against for name, arm in _arms_of(path, reference).items()}
    summary = results_summary(path.resolve().name, arms, others)
    folder = pathlib.Path(out) if out is not None else path / FOLDER
    made, notes = tables(summary), _notes(summary)
    ordered = {name: arms[name] for name in summary["arms"]}
    with written_folder(folder):
        plots = write_plots(summary, folder)
        data = json.dumps(summary, indent=2, allow_nan=False, ensure_ascii=False)
        write_whole(folder / f"{NAME}.json", data + "\n")
        write_whole(folder / f"{NAME}.md", results_text(summary, made, notes, plots))
        write_whole(folder / f"{NAME}.html", page(summary, made, notes, plots, folder, shown(path, ordered)))
    return folder / f"{NAME}.html"


def has_arms(workdir: str | os.PathLike[str]) -> bool:
    """Whether a directory holds arms, so that results can be written of it."""
    return any((pathlib.Path(workdir) / ARMS_FOLDER).glob("*.jsonl"))


def print_results(path: str | os.PathLike[str], console: Console | None = None) -> None:
    """Prints the main tables of results that were written, and where they are; `path` is their page."""
    console = console or terminal()
    summary = json.loads(pathlib.Path(path).with_suffix(".json").read_text(encoding="utf-8"))
    for table in (main_table(summary, intervals=False), against_table(summary)):
        if table.rows:
            print_one(table, console)
    notes = _notes(summary)
    for words in filter(None, (notes["warning"], summary["aggregation"])):
        console.print(words, markup=False, soft_wrap=True)
    console.print(f"results: {path}", markup=False, soft_wrap=True)


def results_text(
    summary: Mapping[str, Any],
    made: Sequence[tuple[str, Table]],
    notes: Mapping[str, str],
    plots: Sequence[tuple[str, str, str]],
) -> str:
    """results.md."""
    sections = [f"# {summary['run']}: results", notes["top"], *filter(None, [notes["warning"]])]
    for name, table in made:
        sections += [f"## {HEADINGS[name]}", *filter(None, [notes.get(name)]), f"{table.title}:", table.markdown()]
    if plots:
        sections.append("## Plots")
        sections += [f"{reading}\n\n![{title}]({name}.png)" for name, title, reading in plots]
    sections.append(f"[`{NAME}.html`]({NAME}.html) shows the same and trajectories; `{NAME}.json` holds the numbers.")
    return "\n\n".join(sections) + "\n"


def _notes(summary: Mapping[str, Any]) -> dict[str, str]:
    """What is said beside the tables, by their id."""
    warnings = [words for source, words in WORKERS_WERE.items() if source in summary["sources"]]
    modelled = [arm["cost_usd"]["modelled"] for arm in summary["arms"].values()]
    if any(modelled):
        whose = "All costs" if all(modelled) else "Costs marked “modelled”"
        warnings.append(f"{whose} are computed from prices and assumed lengths, not measured.")
    if len({arm["questions"] for arm in summary["arms"].values()}) > 1:
        warnings.append(
            "Arms answered different questions: each accuracy is over its own, differences over common ones."
        )
    compared = [_compared_words(summary, other) for other in summary["against"]]
    is_router = summary["reference"] in REFERENCES
    return {
        "top": summary["aggregation"],
        "warning": " ".join(warnings),
        "accuracy": INTERVALS,
        "differences": DIFFERENCES + ("" if is_router else CHOSEN),
        "against": " ".join([*compared, DIFFERENCES]) if compared else "",
        "cost": ARENA,
        "failures": "In parentheses: the reasons, each with its share of all questions.",
        "paper": paper_words(summary).replace("**", ""),
    }


def _compared_words(summary: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """How many questions an arm of another directory shares with those here, and whether it was asked as they were."""
    counts = {found["questions"] for found in other["minus"].values()}
    all_of_it = other["questions"] + other["held_out_questions"]
    words = f"{other['name']}: {', '.join(map(str, sorted(counts)))} of its {all_of_it} questions are in common"
    ours, theirs = (
        {arm["about"].get("conditions") for arm in arms} - {None} for arms in (summary["arms"].values(), [other])
    )
    return words + (", asked under other conditions (Workers, limits or prompts)." if theirs - ours and ours else ".")


def _arms_of(workdir: pathlib.Path, reference: str) -> dict[str, ArmResult]:
    """The arms that `WORKDIR` or `WORKDIR:ARM` names, by the name that tells them apart.

    Raises:
        WorkdirError: none is there.
        DataError: a question that both directories keep the text of has another text there.
    """
    path, found = named_arms(reference)
    pairs.check_texts(_questions(workdir), _questions(path), (str(workdir), str(path)))
    return {f"{path.resolve().name}:{name}": result for name, result in found.items()}


def _questions(workdir: pathlib.Path) -> dict[str, str]:
    """Texts of the questions that a directory keeps, by id; those of one arm, since arms answer the same ones."""
    paths = sorted(trajectories_path(workdir, "_").parent.glob("*.jsonl"))
    return read_questions(paths[0]) if paths else {}
