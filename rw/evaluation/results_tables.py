"""Tables of the results of an evaluation, as rows of text, made from its summary alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rw.evaluation import paper_results
from rw.evaluation.aggregate import NO_MODE_WORD, WORDS
from rw.evaluation.table import ABSENT, Table, cost_unit, cost_words, interval_words, percent, share_words

Summary = Mapping[str, Any]
SMA = "s/m/a: % in mode single, multi, agentic"


def main_table(summary: Summary, intervals: bool = True) -> Table:
    """One line an arm: Avg, domains (with their intervals where wanted), mean cost, modes and what was lost."""
    factor, unit = unit_of(summary)
    rows = [
        (
            arm["title"],
            interval_words(arm["accuracies"]["average"]),
            *(_accuracy(arm["accuracies"]["domains"].get(domain), intervals) for domain in summary["domains"]),
            cost_words(arm["cost_usd"]["mean"], factor),
            share_words(arm["mode_share"]["overall"]),
            str(arm["lost"]),
        )
        for arm in summary["arms"].values()
    ]
    columns = ("arm", "Avg", *summary["domains"], f"cost, {unit}", "s/m/a", "lost")
    return Table(f"Accuracy, % right (95 % interval); {SMA}", columns, tuple(rows))


def set_table(summary: Summary) -> Table:
    """Accuracy of every arm on every set of the averages."""
    return _accuracy_table(summary, "Accuracy by set, % right (95 % interval)", "sets")


def held_out_table(summary: Summary) -> Table:
    """Accuracy of every arm on the held-out sets."""
    return _accuracy_table(summary, "Held-out sets, % right (95 % interval); in no average", "held_out")


def _accuracy_table(summary: Summary, title: str, group: str) -> Table:
    """One column a set, with its number of questions in the heading, or in the cells where arms differ in it."""
    arms = [arm for arm in summary["arms"].values() if arm["accuracies"][group]]
    counts = {
        name: {arm["accuracies"][group][name]["n"] for arm in arms if name in arm["accuracies"][group]}
        for name in summary[group]
    }
    columns = [name + (f" (n={min(found)})" if len(found) == 1 else "") for name, found in counts.items()]
    rows = [
        (
            arm["title"],
            *(_counted(arm["accuracies"][group].get(name), len(found) > 1) for name, found in counts.items()),
        )
        for arm in arms
    ]
    return Table(title, ("arm", *columns), tuple(rows))


def difference_table(summary: Summary) -> Table:
    """Every arm minus the reference arm."""
    title = f"Each arm minus {_title(summary, summary['reference'])}, percentage points (95 %, paired by question)"
    lines = {summary["arms"][name]["title"]: found for name, found in summary["against_reference"].items()}
    return _difference_rows(summary, title, lines, "arm")


def against_table(summary: Summary) -> Table:
    """The arms here minus arms of other directories."""
    lines = {
        f"{_title(summary, name)} minus {other['name']}": found
        for other in summary["against"]
        for name, found in other["minus"].items()
    }
    title = "Against other evaluations, percentage points (95 %, paired by question)"
    return _difference_rows(summary, title, lines, "arms")


def _difference_rows(summary: Summary, title: str, lines: Mapping[str, Any], first: str) -> Table:
    factor, unit = unit_of(summary)
    rows = [
        (
            words,
            interval_words(found["average"], signed=True),
            *(interval_words(found["domains"].get(domain), signed=True) for domain in summary["domains"]),
            *(interval_words(found["held_out"].get(name), signed=True) for name in summary["held_out"]),
            _cost_difference(found["cost_usd"], factor),
            str(found["questions"]),
        )
        for words, found in lines.items()
    ]
    columns = (first, "Avg", *summary["domains"], *summary["held_out"], f"cost, {unit}", "questions")
    return Table(title, columns, tuple(rows))


def cost_table(summary: Summary) -> Table:
    """What each arm cost and how long it took."""
    factor, unit = unit_of(summary)
    rows = [(arm["title"], *_cost_cells(arm, factor)) for arm in summary["arms"].values()]
    columns = (
        "arm", f"Worker cost a question, {unit}", "total, USD", "known", "calls", "Worker tokens in/out",
        "router tokens in/out", "router USD a 1,000", "p50, s", "p90, s", "p99, s", "RouterArena",
    )  # fmt: skip
    return Table("Cost and time", columns, tuple(rows))


def _cost_cells(arm: Mapping[str, Any], factor: float) -> tuple[str, ...]:
    cost, router, seconds, arena = arm["cost_usd"], arm["router"], arm["latency_s"], arm["router_arena"]
    modelled = " (modelled)" if cost["modelled"] else ""
    return (
        cost_words(cost["mean"], factor, arm["questions"]) + modelled,
        number(cost["total"], "{:.4g}"),
        f"{cost['known']} of {cost['questions']}",
        number(arm["calls_mean"], "{:.2f}"),
        _tokens(arm["worker_input_tokens"]["mean"], arm["worker_output_tokens"]["mean"]),
        _tokens(router["input_tokens_mean"], router["output_tokens_mean"]),
        "not priced" if router["usd_mean"] is None else f"{1000 * router['usd_mean']:.4g}",
        *(number(seconds[name], "{:.3g}") for name in ("p50", "p90", "p99")),
        ABSENT if arena is None else f"{100 * arena['score']:.1f}{'*' if arena['is_clamped'] else ''}",
    )


def mode_table(summary: Summary) -> Table:
    """Mode shares overall and by domain, of the arms that declare modes."""
    rows = [
        (
            arm["title"],
            share_words(arm["mode_share"]["overall"]),
            *(share_words(arm["mode_share"]["domains"].get(domain)) for domain in summary["domains"]),
            *(interval_words(arm["accuracy_of_mode"].get(word)) for word in WORDS),
        )
        for arm in summary["arms"].values()
        if arm["mode_share"]["overall"]
    ]
    columns = ("arm", "all", *summary["domains"], *(f"% right in {word}" for word in WORDS))
    return Table(f"Modes ({SMA})", columns, tuple(rows))


def failure_table(summary: Summary) -> Table:
    """Shares of questions that broke the grammar, ran out, or were lost to infrastructure, and why."""
    rows = [
        (arm["title"], *(_ending(arm["status"][name]) for name in ("invalid", "exhausted", "infrastructure")))
        for arm in summary["arms"].values()
    ]
    columns = ("arm", "% invalid", "% exhausted", "% lost to infrastructure")
    return Table("What went wrong, % of questions", columns, tuple(rows))


def worker_table(summary: Summary) -> Table:
    """Each Worker's share of the reference arm's calls, by mode."""
    share = summary["arms"][summary["reference"]]["worker_share"]
    modes = [word for word in (*WORDS, NO_MODE_WORD) if word in share["by_mode"]]
    rows = [
        (worker, percent(overall), *(percent(share["by_mode"][mode].get(worker, 0.0)) for mode in modes))
        for worker, overall in share["overall"].items()
    ]
    if len(rows) == 1:
        rows = []  # of an arm that asks one Worker there is nothing to tell
    title = f"Workers of {_title(summary, summary['reference'])}, % of its calls"
    return Table(title, ("Worker", "all modes", *modes), tuple(rows))


def paper_table(summary: Summary) -> Table:
    """The paper's methods, and below each our arm of its kind; ours of the reference arm in any case."""
    rows: list[tuple[str, ...]] = []
    for row in paper_results.ROWS:
        shares = ABSENT if row.mode_shares is None else "/".join(f"{100 * share:.0f}" for share in row.mode_shares)
        cost = ABSENT if row.cost_change is None else f"{row.cost_change:+.0f} %" if row.cost_change else "reference"
        cells = [*row.domains, row.average, *(row.held_out or (None,) * 3)]
        rows.append((row.method, paper_results.NOTE, *(number(cell, "{:.1f}") for cell in cells), shares, cost))
        if row.arm in summary["arms"]:
            rows.append(_own_row(summary, row.arm))
    if summary["reference"] not in {row.arm for row in paper_results.ROWS}:
        rows.append(_own_row(summary, summary["reference"]))
    columns = ("method", "whose", *paper_results.COLUMNS, "Avg", "AIME", "GPQA-D", "BBH", "s/m/a", "cost")
    return Table("The paper's table beside ours, % right", columns, tuple(rows))


def _own_row(summary: Summary, name: str) -> tuple[str, ...]:
    arm, (factor, unit) = summary["arms"][name], unit_of(summary)
    found = arm["accuracies"]
    intervals = [
        *(found["domains"].get(domain) for domain in paper_results.COLUMNS),
        found["average"],
        *(found["held_out"].get(dataset) for dataset in ("aime", "gpqa_diamond", "bbh")),
    ]
    mean = arm["cost_usd"]["mean"]
    cost = ABSENT if mean is None else f"{mean['mean'] * factor:.3g} {unit}"
    means = (percent(interval["mean"]) if interval else ABSENT for interval in intervals)
    return (arm["title"], paper_results.OURS, *means, share_words(arm["mode_share"]["overall"]), cost)


def paper_words(summary: Summary) -> str:
    """What must be known to read the paper's table beside ours."""
    shares = "; ".join(f"{domain} {words}" for domain, words in paper_results.MODE_SHARES.items())
    same = "The sets are the paper's" if summary["is_the_papers_test"] else "**These are not the paper's questions**"
    return (
        f"Rows marked “{paper_results.NOTE}” are the paper's and its project page's, with the authors' Workers and "
        f"draw of the questions. {same}; Workers, prices and draw are this evaluation's own, so the rows are to be set "
        f"beside one another, not ranked. Mode shares of RouteWeaver by domain, {paper_results.NOTE}, %: {shares}."
    )


def number(value: float | None, form: str) -> str:
    """A number by a format, or a dash where it is not known."""
    return ABSENT if value is None else form.format(value)


def _tokens(read: float | None, written: float | None) -> str:
    return ABSENT if read is None or written is None else f"{read:,.0f}/{written:,.0f}"


def _ending(found: Mapping[str, Any]) -> str:
    reasons = ", ".join(f"{reason} {percent(share)}" for reason, share in found["by"].items())
    return percent(found["share"]) + (f" ({reasons})" if reasons else "")


def _accuracy(interval: Mapping[str, Any] | None, with_limits: bool) -> str:
    return interval_words(interval) if with_limits or interval is None else percent(interval["mean"])


def _counted(interval: Mapping[str, Any] | None, with_count: bool) -> str:
    if interval is None:
        return ABSENT
    return interval_words(interval) + (f" n={interval['n']}" if with_count else "")


def _cost_difference(interval: Mapping[str, Any] | None, factor: float) -> str:
    if interval is None:
        return ABSENT
    mean, low, high = (interval[name] for name in ("mean", "low", "high"))
    limits = "" if low is None else f" ({low * factor:+.3g} to {high * factor:+.3g})"
    return f"{mean * factor:+.3g}{limits}"


def unit_of(summary: Summary) -> tuple[float, str]:
    """(factor, unit) in which the arms' mean costs have few digits."""
    means = (arm["cost_usd"]["mean"] for arm in summary["arms"].values())
    return cost_unit(mean["mean"] for mean in means if mean)


def _title(summary: Summary, name: str) -> str:
    return summary["arms"][name]["title"]


def tables(summary: Summary) -> Sequence[tuple[str, Table]]:
    """(id, table) of all tables that have rows, in reading order."""
    makers: dict[str, Callable[[Summary], Table]] = {
        "accuracy": main_table,
        "differences": difference_table,
        "against": against_table,
        "sets": set_table,
        "held_out": held_out_table,
        "cost": cost_table,
        "modes": mode_table,
        "workers": worker_table,
        "failures": failure_table,
        "paper": paper_table,
    }
    made = ((name, make(summary)) for name, make in makers.items())
    return [(name, table) for name, table in made if table.rows]
