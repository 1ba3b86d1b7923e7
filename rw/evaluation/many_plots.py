"""Plots of many runs: what their spread is, one dot a run, where one colour a run would tell nobody anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rw.evaluation import style
from rw.evaluation.history import History
from rw.evaluation.table import MARGINS, accuracy_of, arm_words, ordered_arms

Summaries = Sequence[Mapping[str, Any]]


def validation(histories: Sequence[History], name: str, title: str) -> Figure:
    """A metric over steps: each run pale, and the mean over the runs that measured it at a step."""
    figure, [[axes]] = style.figure(title)
    style.plain(axes, x=style.STEP_LABEL, y="questions answered right")
    by_step: dict[int, list[float]] = {}
    for history in histories:
        steps, values = history.series(name)
        axes.plot(steps, values, color=style.PALE, linewidth=0.9)
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            by_step.setdefault(step, []).append(value)
    steps = sorted(by_step)
    mean = [float(np.mean(by_step[step])) for step in steps]
    axes.plot(steps, mean, color=style.RED, linewidth=2.2)
    style.step_axis(axes, max(history.steps for history in histories))
    style.percent_axis(axes)
    style.end_labels(axes, [(mean[-1], f"mean of {len(histories)} runs", style.RED)])
    return figure


def arms(summaries: Summaries) -> Figure | None:
    """Accuracy of every arm: a dot a run, and the mean over runs with its standard deviation."""
    merged = {"accuracy_by_type": {arm: {} for summary in summaries for arm in summary["accuracy_by_type"]}}
    found = {arm: [accuracy_of(summary, arm) for summary in summaries] for arm in ordered_arms(merged)}
    lines = {arm_words(arm): [interval["mean"] for interval in values if interval] for arm, values in found.items()}
    if not lines:
        return None
    figure, [[axes]] = style.figure(f"Test accuracy of every arm over {len(summaries)} runs", size=_size(lines))
    style.plain(axes, x="% of questions answered right; bar: mean ± standard deviation over runs")
    _dots(axes, lines)
    return figure


def margins(summaries: Summaries) -> Figure | None:
    """The trained router minus what it should beat: a dot a run, and the mean with its standard deviation."""
    lines = {
        words: [summary["margins"][name]["mean"] for summary in summaries if summary["margins"][name]]
        for name, words in MARGINS.items()
    }
    lines = {words: values for words, values in lines.items() if values}
    if not lines:
        return None
    figure, [[axes]] = style.figure(f"Trained router minus …, over {len(summaries)} runs", size=_size(lines))
    style.plain(axes, x="percentage points of accuracy; bar: mean ± standard deviation over runs")
    _dots(axes, lines, signed=True)
    axes.axvline(0, color=style.INK, linewidth=1)
    return figure


def _size(lines: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    return (9, 1.6 + 0.42 * len(lines))


def _dots(axes: Axes, lines: Mapping[str, Sequence[float]], signed: bool = False) -> None:
    """One line of dots a name, from the top down, with its mean written at the right."""
    names = list(lines)
    for place, name in enumerate(names):
        values = 100 * np.array(lines[name])
        mean, deviation = values.mean(), values.std(ddof=1) if len(values) > 1 else 0.0
        axes.plot(values, [-place] * len(values), ".", color=style.GREY, alpha=0.45, markersize=7)
        axes.plot([mean - deviation, mean + deviation], [-place] * 2, color=style.RED, linewidth=2.2)
        axes.plot([mean], [-place], "o", color=style.RED, markersize=6)
        axes.text(
            1.015, -place, format(mean, "+.1f" if signed else ".1f"), transform=axes.get_yaxis_transform(), va="center",
            fontsize=style.SMALL, color=style.RED,
        )  # fmt: skip
    axes.set_yticks([-place for place in range(len(names))], names)
    axes.set_ylim(0.6 - len(names), 0.6)
    axes.grid(False, axis="y")
    axes.margins(x=0.06)
