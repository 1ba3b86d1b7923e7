"""Plots of the results of an evaluation: accuracy against cost, modes, and what the choice of a mode is worth.

They are made from the summary alone; each returns None where nothing of it was measured.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from rw.evaluation import style
from rw.evaluation.aggregate import NO_MODE_WORD, WORDS
from rw.evaluation.arm_names import KINDS, kind
from rw.evaluation.label_places import place_labels
from rw.evaluation.table import cost_unit

Summary = Mapping[str, Any]
KIND_COLOURS = dict(
    zip(KINDS, (style.RED, "#0072B2", style.GREY, style.SKY, style.YELLOW, "#5E4B8B", "#009E73"), strict=True)
)
CHOSEN = "#666666"  # the router's own choice among modes, which have colours
FORCED = tuple(f"forced_{word}" for word in WORDS)


def pareto(summary: Summary) -> Figure | None:
    """Accuracy against mean Worker cost on a log scale, with the frontier of arms that no other one beats in both.
    Oracles know the answers, so that nobody could be measured by them; they are beside it."""
    points = [
        (name, arm["cost_usd"]["mean"]["mean"], arm["accuracies"]["average"], arm["title"])
        for name, arm in summary["arms"].items()
        if arm["cost_usd"]["mean"] and arm["cost_usd"]["mean"]["mean"] > 0 and arm["accuracies"]["average"]
    ]
    if not points:
        return None
    factor, unit = cost_unit(cost for _, cost, _, _ in points)
    made, [[axes]] = style.figure("Accuracy against cost", size=(9.5, 6))
    style.plain(axes, x=f"mean Worker cost of a question, {unit} (log scale)", y="Avg, % right (bar: 95 %)")
    x = np.array([factor * cost for _, cost, _, _ in points])
    y = np.array([100 * interval["mean"] for _, _, interval, _ in points])
    for (name, _, interval, _), cost in zip(points, x, strict=True):
        colour = KIND_COLOURS[kind(name)]
        axes.plot([cost] * 2, [100 * interval["low"], 100 * interval["high"]], color=colour, alpha=0.3, linewidth=1.4)
        axes.plot(cost, 100 * interval["mean"], "o", color=colour, markersize=8, markeredgecolor="white", zorder=4)
    real = [i for i in np.argsort(x) if kind(points[i][0]) != "oracle"]
    frontier = [i for i in real if not any(_beats(x[j], y[j], x[i], y[i]) for j in real)]
    axes.plot(x[frontier], y[frontier], color=style.INK, linewidth=1, linestyle=(0, (4, 3)), zorder=3)
    axes.set_xscale("log")
    axes.set_xlim(x.min() / 1.6, x.max() * 1.6)
    axes.margins(y=0.12)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(top=min(axes.get_ylim()[1], 102))
    found = [group for group in KINDS if any(kind(name) == group for name, *_ in points)]
    made.legend(
        handles=[style.patch(KIND_COLOURS[group], group) for group in found], ncols=len(found),
        loc="outside lower left", frameon=False, fontsize=style.SMALL, handlelength=1, columnspacing=1.2,
    )  # fmt: skip
    colours = [KIND_COLOURS[kind(name)] for name, *_ in points]
    place_labels(made, axes, x, y, [title for *_, title in points], colours, frontier)
    return made


def _beats(cost: float, right: float, other_cost: float, other_right: float) -> bool:
    """Whether an arm is no dearer and no worse, and one of them better."""
    return cost <= other_cost and right >= other_right and (cost < other_cost or right > other_right)


def modes(summary: Summary) -> Figure | None:
    """Which modes an arm chose, overall and by domain: one panel a router that chose for itself."""
    chosen = {
        name: arm
        for name, arm in summary["arms"].items()
        if arm["mode_share"]["overall"] and (name == "trained" or kind(name) == "untrained router")
    }
    chosen = {name: arm for name, arm in chosen.items() if name == "trained" or not _is_forced(name)}
    if not chosen:
        return None
    domains = summary["domains"]
    size = (9, 1.2 + len(chosen) * (0.7 + 0.3 * (len(domains) + 1)))
    made, panels = style.figure("Modes chosen", rows=len(chosen), size=size)
    words = WORDS
    for axes, arm in zip(panels[:, 0], chosen.values(), strict=True):
        shares = {"all": arm["mode_share"]["overall"], **arm["mode_share"]["domains"]}
        rows = ["all", *(domain for domain in domains if domain in shares)]
        style.plain(axes, title=arm["title"])
        if any(shares[row].get(NO_MODE_WORD, 0) > 0 for row in rows):
            words = (*WORDS, NO_MODE_WORD)
        _mode_bars(axes, rows, shares)
    style.mode_legend(made, words)
    return made


def _is_forced(name: str) -> bool:
    return name.rpartition("_")[2] in WORDS


def _mode_bars(axes: Axes, rows: Sequence[str], shares: Mapping[str, Mapping[str, float]]) -> None:
    left = np.zeros(len(rows))
    for word in (*WORDS, NO_MODE_WORD):
        widths = np.array([100 * shares[row].get(word, 0.0) for row in rows])
        axes.barh(range(len(rows)), widths, left=left, height=0.72, color=style.MODE_COLOURS[word])
        for place, (start, width) in enumerate(zip(left, widths, strict=True)):
            if width >= 6:
                axes.text(start + width / 2, place, f"{width:.0f}", ha="center", va="center", fontsize=style.SMALL,
                          color="white" if word != "multi" else style.INK)  # fmt: skip
        left = left + widths
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    axes.grid(False)


def chosen_or_forced(summary: Summary) -> Figure | None:
    """Accuracy by domain where the router chooses the mode, and where each mode is forced on it."""
    arms = [name for name in ("trained", *FORCED) if name in summary["arms"]]
    if "trained" not in arms or len(arms) < 2 or not summary["domains"]:
        return None
    rows = ["Avg", *summary["domains"]]
    made, [[axes]] = style.figure("The chosen mode against each mode forced", size=(max(7.0, 1.5 * len(rows) + 2), 4.8))
    style.plain(axes, y="% right (bar: 95 %)")
    for place, name in enumerate(arms):
        found = summary["arms"][name]["accuracies"]
        intervals = [found["average"], *(found["domains"].get(domain) for domain in summary["domains"])]
        shown = [(row, interval) for row, interval in enumerate(intervals) if interval]
        x = np.array([row for row, _ in shown]) + (place - (len(arms) - 1) / 2) * 0.2
        y = np.array([interval["mean"] for _, interval in shown])
        limits = [
            [interval["mean"] - interval["low"] for _, interval in shown],
            [interval["high"] - interval["mean"] for _, interval in shown],
        ]
        colour = CHOSEN if name == "trained" else style.MODE_COLOURS[name.removeprefix("forced_")]
        axes.bar(x, y, width=0.18, color=colour, alpha=0.9)
        axes.errorbar(x, y, yerr=limits, fmt="none", ecolor=style.INK, elinewidth=1.2, capsize=2.5)
    axes.set_xticks(range(len(rows)), rows)
    axes.grid(False, axis="x")
    style.percent_axis(axes)
    colours = [CHOSEN, *(style.MODE_COLOURS[name.removeprefix("forced_")] for name in arms[1:])]
    words = ["chosen", *(name.removeprefix("forced_") + " forced" for name in arms[1:])]
    made.legend(
        handles=[style.patch(*pair) for pair in zip(colours, words, strict=True)], ncols=len(arms), frameon=False,
        loc="upper right", bbox_to_anchor=(0.995, 1.0), fontsize=style.SMALL, handlelength=1, columnspacing=1.2,
    )  # fmt: skip
    return made


def workers(summary: Summary) -> Figure | None:
    """Each Worker's share of the reference arm's calls, in each mode."""
    arm = summary["arms"][summary["reference"]]
    by_mode = {word: shares for word, shares in arm["worker_share"]["by_mode"].items() if word in WORDS}
    names = list(arm["worker_share"]["overall"])
    if not by_mode or len(names) < 2:
        return None
    made, [[axes]] = style.figure(f"Workers by mode, {arm['title']}", size=(max(6.5, 1.0 * len(names) + 2), 4))
    style.plain(axes, y="% of the mode's calls")
    for place, (word, shares) in enumerate(by_mode.items()):
        x = np.arange(len(names)) + (place - (len(by_mode) - 1) / 2) * 0.26
        axes.bar(x, [shares.get(name, 0.0) for name in names], width=0.24, color=style.MODE_COLOURS[word])
    axes.set_xticks(range(len(names)), names, rotation=0 if len(names) < 8 else 30)
    axes.grid(False, axis="x")
    style.percent_axis(axes, top=min(1.0, 1.1 * max(max(shares.values()) for shares in by_mode.values())))
    style.mode_legend(made, list(by_mode))
    return made


PLOTS: Mapping[str, tuple[Callable[[Summary], Figure | None], str]] = {
    "results_pareto": (
        pareto,
        "Up and to the left is better. The dashed line joins the arms that no other one beats in both, oracles aside, "
        "which know the answers. Colours are kinds of arm; one whose cost is 0 or not known has no place here.",
    ),
    "results_chosen_or_forced": (
        chosen_or_forced,
        "Grey is the router's own choice of mode. It earns its keep where grey stands above every colour on "
        "average, since no single mode is best in every domain.",
    ),
    "results_modes": (modes, "One bar a domain. If all bars look alike, the router ignores the question."),
    "results_workers": (workers, "Shares of calls, not of questions: multi and agentic make several."),
}


def write_plots(summary: Summary, folder: pathlib.Path) -> list[tuple[str, str, str]]:
    """Draws what was measured; (name without .png, title, how to read it) of each. Older plots that are not drawn
    again are removed."""
    drawn = []
    for name, (draw, reading) in PLOTS.items():
        path = folder / f"{name}.png"
        made = draw(summary)
        if made is None:
            path.unlink(missing_ok=True)
        else:
            style.save(made, path)
            drawn.append((name, made.get_suptitle(), reading))
    return drawn
