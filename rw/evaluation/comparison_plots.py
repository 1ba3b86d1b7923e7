"""Plots of several runs: validation over steps, the test's arms, and the margins, one colour a run."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from rw.evaluation import many_plots, style
from rw.evaluation.history import History
from rw.evaluation.table import MANY, MARGINS, accuracy_of, arm_words, ordered_arms

Summaries = Sequence[Mapping[str, Any]]
READINGS = {
    "validation": "Greedy accuracy on each run's validation questions, which it is chosen by: so it flatters a little.",
    "arms": "Bars of one arm stand together, one a run, with the 95 % interval of its test questions.",
    "margins": "A margin whose interval lies to the right of 0 is more than the luck of its test questions.",
}
READINGS_OF_MANY = READINGS | {
    "arms": "One dot a run; the bar is the mean over runs with its standard deviation.",
    "margins": "One dot a run. Runs that share test questions are not independent: the spread understates the doubt.",
}


def write_plots(histories: Sequence[History], summaries: Summaries, folder: pathlib.Path) -> list[tuple[str, str]]:
    """Draws what can be drawn; returns (file, how to read it) of each. An older file of one that cannot goes."""
    figures = {"validation": validation(histories, summaries), "arms": arms(summaries), "margins": margins(summaries)}
    written = []
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        if figure is None:
            path.unlink(missing_ok=True)
        else:
            style.save(figure, path)
            written.append((path.name, (READINGS_OF_MANY if len(summaries) > MANY else READINGS)[name]))
    return written


def validation(histories: Sequence[History], summaries: Summaries) -> Figure | None:
    """Validation accuracy over steps; the sampled accuracy of training where nothing was validated at all."""
    name, words = "eval/accuracy", "Validation accuracy (greedy) by run"
    if not any(len(history.series(name)[0]) for history in histories):
        name, words = "accuracy", "Training accuracy (as sampled) by run"
    if not any(len(history.series(name)[0]) for history in histories):
        return None
    if len(histories) > MANY:
        return many_plots.validation(histories, name, words)
    figure, [[axes]] = style.figure(words)
    style.plain(axes, x=style.STEP_LABEL, y="questions answered right")
    labels = []
    for place, (history, summary) in enumerate(zip(histories, summaries, strict=True)):
        steps, values = history.series(name)
        if len(steps):
            smooth = 1 if name.startswith("eval/") else 9
            style.line(axes, steps, values, run_colour(place), smooth)
            labels.append((style.running_mean(values, smooth)[-1], summary["run"], run_colour(place)))
    style.step_axis(axes, max(history.steps for history in histories))
    style.percent_axis(axes)
    style.end_labels(axes, labels)
    return figure


def arms(summaries: Summaries) -> Figure | None:
    """Accuracy of every arm on the test, as bars that stand together."""
    merged = {"accuracy_by_type": {arm: {} for summary in summaries for arm in summary["accuracy_by_type"]}}
    names = ordered_arms(merged)
    if not names:
        return None
    if len(summaries) > MANY:
        return many_plots.arms(summaries)
    figure, [[axes]] = style.figure("Test accuracy of every arm, by run", size=(max(7.0, 1.5 + 1.0 * len(names)), 5))
    style.plain(axes, y="questions answered right (95 % interval)")
    width = 0.8 / len(summaries)
    for run, summary in enumerate(summaries):
        found = [(place, accuracy_of(summary, name)) for place, name in enumerate(names)]
        found = [(place, interval) for place, interval in found if interval is not None]
        places = [place + (run - (len(summaries) - 1) / 2) * width for place, _ in found]
        heights = [interval["mean"] for _, interval in found]
        whiskers = [[i["mean"] - i["low"] for _, i in found], [i["high"] - i["mean"] for _, i in found]]
        axes.bar(places, heights, width=0.92 * width, color=run_colour(run), label=summary["run"])
        axes.errorbar(places, heights, yerr=whiskers, fmt="none", ecolor=style.INK, elinewidth=1)
    axes.set_xticks(range(len(names)), [_broken(arm_words(name)) for name in names], fontsize=style.SMALL)
    axes.grid(False, axis="x")
    style.percent_axis(axes)
    _legend(axes)
    return figure


def margins(summaries: Summaries) -> Figure | None:
    """The trained router minus what it should beat, one line a run and bar."""
    if not any(summary["margins"][name] for summary in summaries for name in MARGINS):
        return None
    if len(summaries) > MANY:
        return many_plots.margins(summaries)
    lines = len(summaries) * len(MARGINS)
    figure, [[axes]] = style.figure("Trained router minus …", size=(9, 1.4 + 0.36 * lines))
    style.plain(axes, x="percentage points of accuracy (95 %, paired by question)")
    step = 1 / (len(summaries) + 1)
    for group, (name, _) in enumerate(MARGINS.items()):
        for run, summary in enumerate(summaries):
            interval, height = summary["margins"][name], -group - run * step
            if interval is not None:
                colour = run_colour(run)
                label = summary["run"] if group == 0 else None
                axes.plot([100 * interval["low"], 100 * interval["high"]], [height] * 2, color=colour, linewidth=2.2)
                axes.plot([100 * interval["mean"]], [height], "o", color=colour, markersize=6, label=label)
                axes.annotate(
                    f"{100 * interval['mean']:+.1f}", (100 * interval["high"], height), xytext=(5, 0),
                    textcoords="offset points", va="center", fontsize=style.SMALL, color=colour,
                )  # fmt: skip
    axes.axvline(0, color=style.INK, linewidth=1)
    middle = (len(summaries) - 1) / 2 * step
    axes.set_yticks([-group - middle for group in range(len(MARGINS))], [_broken(words) for words in MARGINS.values()])
    axes.grid(False, axis="y")
    axes.margins(x=0.1)
    _legend(axes)
    return figure


def run_colour(place: int) -> str:
    """Colours of runs are none of the modes'; beyond their number they begin again."""
    return style.SERIES[place % len(style.SERIES)]


def _legend(axes) -> None:
    axes.legend(fontsize=style.SMALL, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _broken(words: str) -> str:
    """Words over several short lines."""
    lines = [""]
    for word in words.split():
        if len(lines[-1]) + len(word) > 11 and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
