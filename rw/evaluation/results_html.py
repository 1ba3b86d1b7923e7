"""The page of an evaluation's results: one file without a request to anywhere, with its plots and trajectories in it.

Texts of routers and Workers reach it as JSON alone, in which no markup can begin, and become text nodes there.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rw.evaluation.paper_results import NOTE
from rw.evaluation.results_tables import unit_of
from rw.evaluation.shown_trajectories import HEAD, TAIL
from rw.evaluation.table import ABSENT, Table, cost_unit, cost_words, interval_words, share_words

_WITH_LIMITS = re.compile(r"(\S+) \((.+)\)(.*)")
_INTERVAL = re.compile(r"([-+]\S+) \(([-+]\S+) to ([-+]\S+)\)")
COMPARE = (
    '<div class="filters" role="group" aria-label="any two arms"><label>any arm<select id="first"></select></label>'
    '<label>minus<select id="second"></select></label></div><p id="difference" role="status"></p>'
)
SIGNED = ("differences", "against")  # tables whose cells are differences
HEADINGS = {
    "accuracy": "Accuracy",
    "differences": "Differences",
    "against": "Against other evaluations",
    "sets": "Sets",
    "held_out": "Held-out sets",
    "cost": "Cost and time",
    "modes": "Modes",
    "workers": "Workers",
    "failures": "What went wrong",
    "paper": "The paper's table",
}


def page(
    summary: Mapping[str, Any],
    tables: Sequence[tuple[str, Table]],
    notes: Mapping[str, str],
    plots: Sequence[tuple[str, str, str]],
    folder: pathlib.Path,
    shown: Mapping[str, Any],
) -> str:
    """The whole page.

    Args:
        tables: (id, table), each a section.
        notes: by id of a table, what is said below it; `top` and `warning` stand above all.
        plots: (name without .png, title, how to read it), which lie in `folder`.
        shown: by arm, its trajectories as shown_trajectories.shown gives them.
    """
    style, script = (importlib.resources.files("rw.evaluation").joinpath(f"page/results.{kind}").read_text("utf-8")
                     for kind in ("css", "js"))  # fmt: skip
    arms = {name: {"title": summary["arms"][name]["title"], **found} for name, found in shown.items()}
    sections = [_section(name, table, notes.get(name, "")) for name, table in tables]
    sections[1:1] = [_plots(plots, folder)] if plots else []
    links = [(name, HEADINGS[name]) for name, _ in tables]
    links[1:1] = [("plots", "Plots")] if plots else []
    links += [("browse", "Trajectories")] if arms else []
    nav = "".join(f'<a href="#{name}">{html.escape(words)}</a>' for name, words in links)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(summary['run'])}: results</title>\n<style>{style}</style>\n</head>\n<body>",
            f'<header><h1>{_text(summary["run"])}: results of {_count(len(summary["arms"]), "arm")}</h1>',
            f'<p class="note">{_text(notes["top"])}</p>',
            f'<p class="warning">{_text(notes["warning"])}</p>' if notes.get("warning") else "",
            f"{_tiles(summary)}</header>\n<nav aria-label=\"sections\"><div>{nav}</div></nav>\n<main>",
            *sections,
            _browser(arms) if arms else "",
            "</main>\n<footer>Made from the evaluation's files alone; results.json holds its numbers.</footer>",
            f'<script type="application/json" id="data">{embedded({"arms": arms, **_any_two(summary)})}</script>',
            f"<script>{script}</script>\n</body>\n</html>\n",
        ]
    )  # fmt: skip


def embedded(data: Any) -> str:
    """JSON that may stand in a script element: ASCII, without a character that markup could begin with. A half
    surrogate, which UTF-8 lacks, stays an escape."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _any_two(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The differences of any two arms, as the page's script reads them: [first, second, limits in points, limits in
    the unit of cost, questions], arms by their place in "titles"."""
    place = {name: i for i, name in enumerate(summary["arms"])}
    factor, unit = unit_of(summary)
    differences = [
        [
            *(place[found[which]] for which in ("first", "second")),
            _limits(found["average"], 100),
            _limits(found["cost_usd"], factor),
            found["questions"],
        ]
        for found in summary["differences"]
    ]
    titles = [arm["title"] for arm in summary["arms"].values()]
    return {"titles": titles, "cost_unit": unit, "differences": differences}


def _limits(interval: Mapping[str, Any] | None, factor: float) -> list[float | None] | None:
    """[mean, low, high] times a factor; None for what is not known."""
    if interval is None:
        return None
    return [None if (value := interval[name]) is None else factor * value for name in ("mean", "low", "high")]


def _policy(style: str, script: str) -> str:
    """Allows the page's own script and style, by digest, and its own pictures: nothing else runs or is fetched."""
    own = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    style_digest, script_digest = own
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{style_digest}'; script-src 'sha256-{script_digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _tiles(summary: Mapping[str, Any]) -> str:
    arm = summary["arms"][summary["reference"]]
    factor, unit = cost_unit([arm["cost_usd"]["mean"]["mean"]] if arm["cost_usd"]["mean"] else [])
    average, seconds, arena = arm["accuracies"]["average"], arm["latency_s"], arm["router_arena"]
    tiles = [
        (_mean(average), f"% right, Avg ({interval_words(average).partition(' (')[2] or ABSENT}"),
        (cost_words(arm["cost_usd"]["mean"], factor), f"Worker cost a question, {unit}"),
        (share_words(arm["mode_share"]["overall"]), "% single/multi/agentic"),
        (ABSENT if seconds["p50"] is None else f"{seconds['p50']:.3g} s", "median wait for Workers"),
        (ABSENT if arena is None else f"{100 * arena['score']:.1f}", "RouterArena score"),
        (f"{arm['questions']:,}", f"questions; {arm['lost']} lost to infrastructure"),
    ]
    cells = "".join(
        f'<div class="tile"><b>{_text(value)}</b><span>{_text(words)}</span></div>' for value, words in tiles
    )
    return f'<h3>{_text(arm["title"])}</h3><div class="tiles">{cells}</div>'


def _mean(interval: Mapping[str, Any] | None) -> str:
    return interval_words(interval).partition(" ")[0]


def _section(name: str, table: Table, note: str) -> str:
    head = "".join(f'<th scope="col"><button type="button">{_text(column)}</button></th>' for column in table.columns)
    between = COMPARE if name == "differences" else ""
    body = "\n".join(f"<tr{_row_class(name, row)}>{_cells(name, table.columns, row)}</tr>" for row in table.rows)
    said = f'<p class="note">{_text(note)}</p>' if note else ""
    return (
        f'<section id="{name}"><h2>{html.escape(HEADINGS[name])}</h2>{said}<div class="scroll" tabindex="0" '
        f'role="region" aria-label="{_text(table.title)}"><table class="sortable"><caption>{_text(table.title)}'
        f"</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{between}</section>"
    )


def _row_class(name: str, row: Sequence[str]) -> str:
    if name != "paper":
        return ""
    return ' class="authors"' if row[1] == NOTE else ' class="ours"'


def _cells(name: str, columns: Sequence[str], row: Sequence[str]) -> str:
    cells = [f"<td>{_text(row[0])}</td>"]
    for column, cell in zip(columns[1:], row[1:], strict=True):
        parts = _WITH_LIMITS.fullmatch(cell)
        shown = f"{_text(parts[1])} <small>{_text(parts[2] + parts[3])}</small>" if parts else _text(cell)
        is_accuracy = name in SIGNED and not column.startswith("cost")
        cells.append(f"<td{_side(cell) if is_accuracy else ''}>{shown}</td>")
    return "".join(cells)


def _side(cell: str) -> str:
    """Marks a difference of accuracy whose whole interval lies on one side of nothing."""
    found = _INTERVAL.fullmatch(cell)
    if found is None or float(found[2]) * float(found[3]) <= 0:
        return ""
    return ' class="above"' if float(found[2]) > 0 else ' class="below"'


def _plots(plots: Sequence[tuple[str, str, str]], folder: pathlib.Path) -> str:
    figures = []
    for name, title, reading in plots:
        data = base64.b64encode((folder / f"{name}.png").read_bytes()).decode()
        figures.append(
            f'<figure><img alt="{_text(title)}" src="data:image/png;base64,{data}">'
            f"<figcaption>{_text(reading)}</figcaption></figure>"
        )
    return f'<section id="plots"><h2>Plots</h2><div class="plots">{"".join(figures)}</div></section>'


def _browser(arms: Mapping[str, Any]) -> str:
    held = ", ".join(f"{len(found['trajectories'])} of {found['of']} of {found['title']}" for found in arms.values())
    selects = "".join(
        f'<label>{words}<select id="by-{name}"></select></label>'
        for name, words in (("arm", "arm"), ("set", "set"), ("mode", "mode"), ("outcome", "outcome"))
    )
    return (
        '<section id="browse"><h2>Trajectories</h2>'
        '<p class="note">Columns are turns of the router. Choose a box of the graph to read what was asked and '
        "answered; arrow keys move in the list, Tab and Enter in the graph.</p>"
        f'<details><summary>What the page holds</summary><p class="note">A spread over sets, modes and outcomes: '
        f"{_text(held)}. Of texts longer than {HEAD + TAIL:,} characters the first {HEAD:,} and the last {TAIL:,} are "
        "kept. The whole of all is in evaluation/trajectories.</p></details>"
        f'<div class="filters" role="search">{selects}<label>text<input type="search" id="by-text" '
        'placeholder="in questions, answers, calls"></label></div>'
        '<p class="note" id="count" role="status"></p>'
        '<div class="browser"><ul class="list" id="list" role="listbox" tabindex="0" aria-label="trajectories"></ul>'
        '<div class="shown" id="shown"></div></div></section>'
    )


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")


def _text(words: str) -> str:
    """Words as markup shows them; what UTF-8 lacks becomes a question mark."""
    return html.escape(words.encode("utf-8", "replace").decode())
