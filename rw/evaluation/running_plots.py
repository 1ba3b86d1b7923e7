"""Plots of how a run went: what broke or was lost, and what it cost.

Each function draws one figure from a run's history and summary, or returns None where nothing was measured. What a
metric means is defined where it is computed (rw/metrics.py, rw/train.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rw.errors import FailureCause
from rw.evaluation import style
from rw.evaluation.history import History
from rw.evaluation.learning_plots import SMOOTH, arm_colour
from rw.evaluation.table import arm_words, cost_unit, ordered_arms
from rw.evaluation.time_plots import on_steps
from rw.types import Violation

Summary = Mapping[str, Any]
MOST_REASONS = 6  # with a colour of their own; the others are one layer


def failures(history: History, summary: Summary) -> Figure | None:
    """What broke the grammar, what ran out, what infrastructure cost: each by reason, never merged."""
    if not len(history.series("invalid/total")[0]) and not len(history.series("infra/excluded_frac")[0]):
        return None
    figure, [[left, middle, right]] = style.figure("What went wrong, by reason", columns=3, size=(11, 4.4))
    reasons = [(f"invalid/{reason}", str(reason).replace("_", " ")) for reason in Violation]
    style.plain(left, "broke the grammar (reward -1)", style.STEP_LABEL, "share of retained rollouts")
    _layers(left, history, reasons, SMOOTH, "none did")
    style.plain(middle, "ran out or was cut", style.STEP_LABEL, "share of rollouts")
    _lines(middle, history)
    causes = [(f"infra/{cause}", str(cause).replace("_", " ")) for cause in FailureCause]
    style.plain(right, "lost to infrastructure (left out)", style.STEP_LABEL, "rollouts in the step")
    _layers(right, history, [*causes, ("infra/unmeasured", "unmeasured")], 1, "none was", counts=True)
    for axes in (left, middle, right):
        style.step_axis(axes, history.steps)
    return figure


def _layers(
    axes: Axes, history: History, names: Sequence[tuple[str, str]], smooth: int, otherwise: str, counts: bool = False
) -> None:
    """Stacked reasons, the most frequent at the bottom, named in a legend in the order of the stack."""
    found = [(words, *history.series(name)) for name, words in names]
    found = sorted((item for item in found if item[2].any()), key=lambda item: -item[2].sum())
    steps = np.array(sorted({step for _, part, _ in found for step in part.tolist()}))
    if not found:
        style.say_inside(axes, otherwise)
        axes.set_ylim(0, 1)
        axes.set_yticks([])
        return
    layers = [on_steps(steps, part, values) for _, part, values in found]
    words = [words for words, _, _ in found]
    if len(layers) > MOST_REASONS:
        layers = [*layers[: MOST_REASONS - 1], np.sum(layers[MOST_REASONS - 1 :], axis=0)]
        words = [*words[: MOST_REASONS - 1], f"{len(found) - MOST_REASONS + 1} others"]
    colours = style.SERIES[: len(layers)]
    if counts:
        bottom = np.zeros(len(steps))
        for layer, colour, word in zip(layers, colours, words, strict=True):
            axes.bar(steps, layer, bottom=bottom, width=1.0, color=colour, label=f"{word} ({layer.sum():.0f})")
            bottom += layer
        axes.set_ylim(0, max(1.0, 1.65 * bottom.max()))
        axes.yaxis.get_major_locator().set_params(integer=True)
    else:
        layers = [style.running_mean(layer, smooth) for layer in layers]
        labels = [f"{word} ({100 * layer[-1]:.1f} % now)" for word, layer in zip(words, layers, strict=True)]
        axes.stackplot(steps, layers, colors=colours, labels=labels, alpha=0.9, linewidth=0)
        style.percent_axis(axes, _top(np.sum(layers, axis=0)))
    _legend(axes)


def _lines(axes: Axes, history: History) -> None:
    """Shares that may overlap, so that they are lines and not a stack."""
    names = {
        "exhausted_frac": "out of turns or tokens, no answer",
        "len/truncated_frac/response_budget": "cut by the response budget",
        "len/truncated_frac/turns": "cut by the number of turns",
        "len/truncated_frac/mode_truncated": "cut in the mode turn",
    }
    highest = 0.0
    for place, (name, words) in enumerate(names.items()):
        steps, values = history.series(name)
        if values.any():
            dashes = "-" if place == 0 else (0, (2 + place, 2))  # two of them are often equal
            style.line(axes, steps, values, style.SERIES[place], SMOOTH, label=words, linestyle=dashes)
            highest = max(highest, values.max())
    if not highest:
        style.say_inside(axes, "none did")
        axes.set_ylim(0, 1)
        axes.set_yticks([])
        return
    style.percent_axis(axes, _top(np.array([highest])))
    _legend(axes)


def cost(history: History, summary: Summary) -> Figure | None:
    """Worker cost in USD at the frozen prices: of a rollout, of the run so far, and of a test question by arm."""
    mean, dearest, spent = (history.series(f"cost/{name}") for name in ("per_rollout", "p95", "total"))
    arms = [arm for arm in ordered_arms(summary) if summary["cost_usd_mean"].get(arm)]
    if not (len(mean[0]) or len(spent[0]) or len(history.series("eval/cost_usd")[0]) or arms):
        return None
    rows, columns, size = (2, 2, (10, 7)) if arms else (1, 3, (11, 4))
    nominal = ": nominal, nothing was paid" if history.setting("workers", "kind") in ("simulated", "replay") else ""
    figure, grid = style.figure(f"Worker cost at the frozen prices{nominal}", rows, columns, size=size)
    panels = list(grid.flat)
    scale, unit = cost_unit([*mean[1], *dearest[1], *(summary["cost_usd_mean"][arm]["mean"] for arm in arms)])
    style.plain(panels[0], "of a rollout", style.STEP_LABEL, unit)
    _cost_lines(panels[0], history, scale)
    _spent(panels[1], history.series("cost/per_step"), "of each step", bars=True)
    _spent(panels[2], spent, "of the run so far")
    _all_spending(panels[2], history.series("cost/spent_usd"), spent[1])
    for axes in panels[:3]:
        style.step_axis(axes, history.steps)
    if arms:
        _cost_of_arms(panels[3], summary, arms[::-1], scale, unit)
    return figure


def _spent(axes: Axes, series: tuple[np.ndarray, np.ndarray], title: str, bars: bool = False) -> None:
    steps, values = series
    scale, unit = cost_unit(values)
    style.plain(axes, title, style.STEP_LABEL, unit)
    if not len(steps):
        style.say_inside(axes, "no step yet")
        return
    if bars:
        axes.bar(steps, values * scale, width=1.0, color=style.SKY)
    else:
        style.line(axes, steps, values * scale, style.INK)
        axes.fill_between(steps, values * scale, color=style.INK, alpha=0.08, linewidth=0)
        axes.text(
            0.97, 0.08, f"{values[-1]:.3g} USD", transform=axes.transAxes, ha="right", fontsize=style.NORMAL,
            fontweight="bold", color=style.INK,
        )  # fmt: skip
    axes.set_ylim(0)


def _all_spending(axes: Axes, series: tuple[np.ndarray, np.ndarray], accepted: np.ndarray) -> None:
    """With what the ledger holds besides: rejected attempts, unknown spending, warm start and evaluations."""
    steps, values = series
    if len(steps) and len(accepted) and values.max() > 0:
        scale, _ = cost_unit(accepted)
        style.line(axes, steps, values * scale, style.RED, linestyle="--", label="all spending")
        axes.plot([], [], color=style.INK, label="accepted calls of training")
        axes.legend(fontsize=style.SMALL - 1, frameon=False, loc="upper left")
        axes.set_ylim(0, 1.25 * scale * max(values.max(), accepted.max()))


def _cost_lines(axes: Axes, history: History, scale: float) -> None:
    """Mean and 95th percentile of a step's rollouts, greedy validation, and the reference cost of the reward."""
    names = {
        "cost/p95": ("95th percentile", style.SKY, SMOOTH),
        "cost/per_rollout": ("mean", style.INK, SMOOTH),
        "eval/cost_usd": ("validation, greedy, mean", style.RED, 1),
    }
    for name, (words, colour, smooth) in names.items():
        steps, values = history.series(name)
        if len(steps):
            style.line(axes, steps, values * scale, colour, smooth, label=words)
    reference = history.setting("reward", "reference_cost_usd")
    if reference:
        axes.axhline(
            reference * scale, color=style.GREY, linewidth=1, linestyle=":", label="reference cost of the reward"
        )
    axes.set_ylim(0, 1.45 * axes.get_ylim()[1])
    _legend(axes)


def _cost_of_arms(axes: Axes, summary: Summary, arms: Sequence[str], scale: float, unit: str) -> None:
    style.plain(axes, "of a test question, by arm", unit)
    for place, arm in enumerate(arms):
        interval, colour = summary["cost_usd_mean"][arm], arm_colour(arm)
        axes.barh([place], [interval["mean"] * scale], height=0.6, color=colour, alpha=0.85)
        if interval["low"] is not None:
            axes.plot([interval["low"] * scale, interval["high"] * scale], [place, place], color=style.INK, linewidth=1)
        at = (interval["high"] or interval["mean"]) * scale
        axes.text(at, place, f" {interval['mean'] * scale:.3g}", va="center", fontsize=style.SMALL - 1, color=style.INK)
    axes.set_yticks(range(len(arms)), [arm_words(arm) for arm in arms], fontsize=style.SMALL - 1)
    axes.set_xlim(0, 1.18 * axes.get_xlim()[1])
    axes.grid(False, axis="y")


def _top(values: np.ndarray) -> float:
    """The upper end of an axis of shares that leaves room for a legend."""
    return float(min(1.0, max(1.65 * values.max(initial=0.0), 0.01)))


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], fontsize=style.SMALL - 1, frameon=False, loc="upper right")
