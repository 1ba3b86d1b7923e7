"""The plot of a sweep: accuracy, cost and modes against what was swept, and accuracy against cost."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rw.evaluation import style
from rw.evaluation.aggregate import WORDS
from rw.evaluation.label_places import place_labels
from rw.evaluation.sweep_results import Setting, point_metric
from rw.evaluation.table import cost_unit


@rc_context({"text.parse_math": False})  # the words are a user's: what stands between two $ is no formula
def write_plot(grouped: Sequence[Setting], path: pathlib.Path, title: str) -> pathlib.Path | None:
    """Draws the sweep; None, and an older file goes, where no setting is measured yet."""
    numbered = {n: setting for n, setting in enumerate(grouped, 1) if setting.over_seeds("accuracy") is not None}
    measured = list(numbered.values())
    if not measured:
        path.unlink(missing_ok=True)
        return None
    factor, unit = cost_unit(found[0] for setting in measured if (found := setting.over_seeds("cost_usd")))
    made, [[accuracy, pareto], [cost, modes]] = style.figure(f"Sweep {title}", 2, 2, size=(11, 7.5))
    swept = _swept(numbered)
    for axes, words, metric, scale in (
        (accuracy, "% of questions answered right", "accuracy", 100.0),
        (cost, f"Workers' cost a question, {unit}", "cost_usd", factor),
    ):
        style.plain(axes, x=swept.name, y=words)
        _over_places(axes, swept, measured, metric, scale)
        _ticks(axes, swept)
    cost.set_ylim(bottom=0)
    style.plain(modes, x=swept.name, y="% of questions in each mode")
    _stacked_modes(modes, swept.places, measured)
    _ticks(modes, swept)
    style.mode_legend(made, WORDS)
    _pareto(made, pareto, measured, swept.labels, factor, unit)
    style.save(made, path)
    return path


class Swept(NamedTuple):
    """The x axis: where each setting stands and what it is called."""

    places: Sequence[float]
    labels: Sequence[str]
    name: str
    is_number: bool  # whether a place is the value itself


def _swept(measured: Mapping[int, Setting]) -> Swept:
    """Values themselves where one number was swept, words where one key was, else the settings' numbers."""
    keys = list(dict.fromkeys(key for setting in measured.values() for key in setting.values))
    any_places = [float(place) for place in range(len(measured))]
    if len(keys) != 1:
        return Swept(any_places, [str(number) for number in measured], "setting, by its number in the table", False)
    found = [setting.values.get(keys[0]) for setting in measured.values()]
    name = keys[0].rpartition(".")[2].replace("_", " ")
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in found):
        return Swept([float(value) for value in found], [f"{value:g}" for value in found], name, True)
    return Swept(any_places, [str(value) for value in found], name, False)


def _ticks(axes: Axes, swept: Swept) -> None:
    slanted = {"rotation": 30, "ha": "right"} if max(map(len, swept.labels)) > 6 else {}
    axes.set_xticks(swept.places, swept.labels, fontsize=style.SMALL, **slanted)


def _over_places(axes: Axes, swept: Swept, measured: Sequence[Setting], metric: str, scale: float) -> None:
    """The mean over seeds, their range as bars, every seed as a dot; a line joins what was swept as a number."""
    found = [
        (place, setting, v)
        for place, setting in zip(swept.places, measured, strict=True)
        if (v := setting.over_seeds(metric))
    ]
    for place, setting, _ in found:
        dots = [scale * value for point in setting.points if (value := point_metric(point, metric)) is not None]
        axes.plot([place] * len(dots), dots, ".", color=style.GREY, alpha=0.5, markersize=7)
    order = np.argsort([place for place, _, _ in found])
    x = np.array([found[i][0] for i in order])
    mean, low, high = (scale * np.array([found[i][2][k] for i in order]) for k in range(3))
    axes.errorbar(
        x,
        mean,
        yerr=[mean - low, high - mean],
        fmt="o-" if swept.is_number else "o",
        color=style.RED,
        elinewidth=1.2,
        capsize=3,
    )


def _stacked_modes(axes: Axes, places: Sequence[float], measured: Sequence[Setting]) -> None:
    gaps = np.diff(sorted(places))
    width = 0.8 * float(gaps.min()) if len(gaps) and gaps.min() > 0 else 0.8
    base = np.zeros(len(places))
    for word in WORDS:
        heights = np.array([100 * (setting.over_seeds(word) or (0.0,))[0] for setting in measured])
        axes.bar(places, heights, width, bottom=base, color=style.MODE_COLOURS[word], edgecolor="white", linewidth=0.6)
        base += heights
    axes.set_ylim(0, 100)


def _pareto(made: Figure, axes: Axes, measured: Sequence[Setting], labels: Sequence[str], factor: float, unit: str):
    """Accuracy against cost, a point a setting; the line joins those that no other beats in both."""
    style.plain(axes, x=f"Workers' cost a question, {unit}", y="% of questions answered right")
    points, words = [], []
    for setting, label in zip(measured, labels, strict=True):
        accuracy, cost = setting.over_seeds("accuracy"), setting.over_seeds("cost_usd")
        if accuracy is None or cost is None:
            continue
        x, y = factor * cost[0], 100 * accuracy[0]
        points.append((x, y))
        words.append(label)
        axes.errorbar(
            [x], [y], xerr=[[x - factor * cost[1]], [factor * cost[2] - x]],
            yerr=[[y - 100 * accuracy[1]], [100 * accuracy[2] - y]], fmt="o", color=style.RED, ecolor=style.PALE,
            elinewidth=1, capsize=2,
        )  # fmt: skip
    if not points:
        style.say_inside(axes, "no cost is known")
        return
    front = pareto_front(points)
    axes.plot([x for x, _ in front], [y for _, y in front], "--", color=style.GREY, linewidth=1)
    axes.margins(0.15)
    axes.autoscale_view()
    x, y = np.array(points).T
    path = [points.index(point) for point in front]
    place_labels(made, axes, x, y, words, [style.INK] * len(points), path)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those (cost, accuracy) that none beats with less cost and more accuracy, by cost."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front
