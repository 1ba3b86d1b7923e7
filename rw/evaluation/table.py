"""Tables of a summary, as rows of text: for report.md and for a terminal. They are made from the summary alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table as TerminalTable

from rw.evaluation.aggregate import NO_MODE_WORD, WORDS

ABSENT = "-"
LINE_WIDTH = 140  # of tables where no terminal says how wide it is
MANY = 6  # more runs than these are not told one by one: their spread takes the place
ORDER = ("warm_start", "trained", "forced_", "scripted_", "knn", "random", "oracle")
WORDING = {"warm_start": "warm start (before)", "trained": "trained (after)", "knn": "k nearest neighbours"}
BASELINES = ("warm_start", "trained", "oracle")  # columns of the accuracy by type, with the best fixed modes between
SMA = "s/m/a: share answered in mode single, multi, agentic"
MARGINS = {
    "trained_minus_best_forced": "best mode forced on it",
    "trained_minus_best_scripted": "best scripted router",
    "trained_minus_warm_start": "warm start",
}


@dataclasses.dataclass(frozen=True)
class Table:
    """A heading, the names of the columns, and cells of text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """Without the heading; the first column to the left, the others to the right."""
        lines = [self.columns, ("---", *["---:"] * (len(self.columns) - 1)), *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def before_after_table(summary: Mapping[str, Any]) -> Table:
    """One line an arm: accuracy, modes, cost, and what went wrong."""
    factor, unit = cost_unit(value["mean"] for value in summary["cost_usd_mean"].values() if value)
    rows = [
        (
            arm_words(arm),
            interval_words(accuracy_of(summary, arm)),
            share_words(summary["mode_share_by_arm"].get(arm)),
            cost_words(summary["cost_usd_mean"].get(arm), factor, summary["test_queries"]),
            percent(summary["invalid"].get(arm)),
            str(summary["infrastructure"].get(arm, ABSENT)),
        )
        for arm in ordered_arms(summary)
    ]
    columns = ("arm", "% right (95 %)", "s/m/a, %", f"mean cost, {unit}", "% invalid", "lost")
    return Table(f"{summary['run']}: {summary['test_queries']} test questions ({SMA})", columns, tuple(rows))


def type_table(summary: Mapping[str, Any]) -> Table:
    """One line a type of question: accuracy of the arms that matter, and which modes the router chose for it."""
    by_type = summary["accuracy_by_type"]
    arms = [arm for arm in (*BASELINES[:2], *best_fixed_arms(summary), BASELINES[2]) if arm in by_type]
    before, after = ((summary[name] or {"by_type": {}})["by_type"] for name in ("mode_share_warm_start", "mode_share"))
    rows = []
    for kind in sorted({kind for arm in arms for kind in by_type[arm]}):
        count = next(by_type[arm][kind]["n"] for arm in arms if kind in by_type[arm])
        rows.append(
            (
                kind,
                str(count),
                *(percent(by_type[arm].get(kind, {}).get("mean")) for arm in arms),
                share_words(before.get(kind)),
                share_words(after.get(kind)),
                (summary["majority_mode"] or {}).get(kind) or ABSENT,
            )
        )
    columns = ("type", "n", *map(_column_words, arms), "s/m/a before", "s/m/a after", "majority")
    return Table(
        "By type of question: % right, and modes of the warm start and the trained router", columns, tuple(rows)
    )


def margin_table(summary: Mapping[str, Any]) -> Table:
    """The trained router against what it should beat."""
    rows = [
        (words, interval_words(summary["margins"][name], signed=True))
        for name, words in MARGINS.items()
        if summary["margins"][name] is not None
    ]
    return Table("Margins", ("trained router minus", "percentage points (95 %, paired)"), tuple(rows))


def print_table(summary: Mapping[str, Any], console: Console | None = None) -> None:
    """Prints what the run came to: the table of arms, that by type of question, and the margins."""
    console = console or terminal()
    if not ordered_arms(summary):
        console.print(f"{summary['run']}: step {summary['steps']}, no test question answered yet", markup=False)
        return
    for table in (before_after_table(summary), type_table(summary), margin_table(summary)):
        if table.rows:
            print_one(table, console)


def print_one(table: Table, console: Console) -> None:
    """Prints one table; columns for which there is no room follow in a table below, after the first column again."""
    for place, columns in enumerate(_columns_that_fit(table, console.width)):
        title = f"{table.title} (more columns)" if place else table.title
        drawn = TerminalTable(title=title, title_justify="left", title_style="bold")
        for number in columns:
            justify = "right" if number else "left"
            drawn.add_column(table.columns[number], justify=justify, no_wrap=not number, overflow="fold")
        for row in table.rows:
            drawn.add_row(*(row[number] for number in columns))
        console.print(drawn, markup=False, soft_wrap=False)  # soft wrap, where it is the console's rule, cuts cells


def terminal() -> Console:
    """Standard output, wide enough for tables where it is no terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=LINE_WIDTH)


def _columns_that_fit(table: Table, width: int) -> list[list[int]]:
    """Numbers of columns, the first of the table and as many as fit each time without breaking a word."""
    first, *others = zip(table.columns, *table.rows, strict=True)
    room = width - 4 - max(map(len, first))  # a column takes two spaces and a line, and the last line one more
    parts, left = [[0]], room
    for number, cells in enumerate(others, start=1):
        needed = 3 + max(len(word) for cell in cells for word in cell.split() or [""])
        if needed > left and len(parts[-1]) > 1:
            parts, left = [*parts, [0]], room
        parts[-1].append(number)
        left -= needed
    return parts


def ordered_arms(summary: Mapping[str, Any]) -> list[str]:
    """The arms of a summary as people read them: before, after, then what it is compared with."""
    names = summary["accuracy_by_type"]
    known = [name for start in ORDER for name in sorted(names, key=_mode_order) if _is_of(name, start)]
    return [*known, *sorted(set(names) - set(known))]


def accuracy_of(summary: Mapping[str, Any], arm: str) -> Mapping[str, Any] | None:
    """The accuracy of any arm; None where it was not evaluated."""
    if arm.startswith("forced_"):
        return summary["accuracy_forced"].get(arm.removeprefix("forced_"))
    return summary.get(f"accuracy_{arm}") or summary["accuracy_scripted"].get(arm)


def best_fixed_arms(summary: Mapping[str, Any]) -> list[str]:
    """The best forced mode and the best scripted router, where there are any."""
    forced = {word: value["mean"] for word, value in summary["accuracy_forced"].items() if value is not None}
    best = [f"forced_{max(forced, key=forced.get)}"] if forced else []
    return best + ([summary["accuracy_best_scripted"]["arm"]] if summary["accuracy_best_scripted"] else [])


def arm_words(arm: str) -> str:
    """An arm's name for people."""
    if arm.startswith("forced_"):
        return f"trained, forced to {arm.removeprefix('forced_')}"
    if arm.startswith("scripted_worker_"):
        return f"always {arm.removeprefix('scripted_')}"
    if arm.startswith("scripted_"):
        return f"scripted {arm.removeprefix('scripted_')}"
    return WORDING.get(arm, arm)


def _column_words(arm: str) -> str:
    return {"warm_start": "warm start", "trained": "trained"}.get(arm) or arm_words(arm).removeprefix("trained, ")


def interval_words(interval: Mapping[str, Any] | None, signed: bool = False) -> str:
    """A share with its limits in percent, such as "76.1 (72.5 to 79.3)"."""
    if interval is None:
        return ABSENT
    mean, low, high = (percent(interval[name], signed) for name in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def cost_words(interval: Mapping[str, Any] | None, factor: float = 1.0, questions: int = 0) -> str:
    """A mean cost times `factor` with half the width of its interval, such as "17.4 ± 0.8"; where it is known of fewer
    than all `questions`, it says of how many, since those with many calls are the likeliest to lack it."""
    if interval is None:
        return ABSENT
    mean = interval["mean"] * factor
    decimals = 0 if mean >= 100 else 1 if mean >= 10 else 2
    half = "" if interval["high"] is None else f" ± {interval['high'] * factor - mean:.{decimals}f}"
    partly = f" ({interval['n']} of {questions})" if interval["n"] < questions else ""
    return f"{mean:.{decimals}f}{half}{partly}"


def cost_unit(costs_usd: Iterable[float]) -> tuple[float, str]:
    """(factor, unit) in which amounts of USD have few digits."""
    highest = max(costs_usd, default=0.0)
    units = ((1.0, "USD"), (1e3, "10⁻³ USD"), (1e6, "10⁻⁶ USD"))
    if highest <= 0:
        return units[0]
    return next(((factor, unit) for factor, unit in units if highest * factor >= 1), units[-1])


def share_words(shares: Mapping[str, float] | None) -> str:
    """Mode shares in percent, such as "71/20/9"; the share without a mode is said after it unless it rounds to 0."""
    if not shares:
        return ABSENT
    text = "/".join(f"{100 * shares[word]:.0f}" for word in WORDS)
    lacking = f"{100 * shares.get(NO_MODE_WORD, 0.0):.0f}"
    return text if lacking == "0" else f"{text} (none {lacking})"


def percent(share: float | None, signed: bool = False) -> str:
    """A share in percent with one decimal."""
    return ABSENT if share is None else f"{100 * share:{'+' if signed else ''}.1f}"


def markdown_or(table: Table, otherwise: str) -> str:
    """The table, or a sentence where it has no rows."""
    return table.markdown() if table.rows else otherwise


def _is_of(name: str, start: str) -> bool:
    return name.startswith(start) if start.endswith("_") else name == start


def _mode_order(name: str) -> tuple[int, str]:
    word = name.rpartition("_")[2]
    return (WORDS.index(word) if word in WORDS else len(WORDS), name)
