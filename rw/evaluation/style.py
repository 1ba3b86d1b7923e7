"""How plots look: one colour a mode everywhere, told apart by colour-blind readers too; phases, labels, grid, files.

Figures are made without pyplot, so nothing here is global. Knows no metric.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's palette: modes have the first three for themselves.
MODE_COLOURS = {"single": "#0072B2", "multi": "#E69F00", "agentic": "#009E73", "none": "#8C8C8C"}
INK, GREY, PALE = "#222222", "#7A7A7A", "#BDBDBD"
RED, PINK, SKY, YELLOW = "#D55E00", "#CC79A7", "#56B4E9", "#D9C62F"
SERIES = (RED, SKY, PINK, YELLOW, "#5E4B8B", "#8C6D46", GREY)  # where no mode is meant
PHASE_SHADES = {"cold": "#E1E7EF", "transition": "#F1F4F8", "free": "#FFFFFF"}
DPI = 130
SMALL, NORMAL, LARGE = 8.5, 9.5, 11.5  # points
FEW = 15  # points up to which a line shows each of them
STEP_LABEL = "step (updates of the router)"


def figure(title: str, rows: int = 1, columns: int = 1, size: tuple[float, float] = (9, 5), **layout):
    """(figure, axes [rows, columns]) with a title that says what is seen."""
    made = Figure(figsize=size, dpi=DPI, layout="constrained")
    made.get_layout_engine().set(w_pad=0.08, h_pad=0.08, wspace=0.04, hspace=0.06)
    made.suptitle(title, fontsize=LARGE, fontweight="bold", x=0.01, ha="left", color=INK)
    axes = made.subplots(rows, columns, squeeze=False, **layout)
    for panel in axes.flat:
        plain(panel)
    return made, axes


def plain(axes: Axes, title: str = "", x: str = "", y: str = "") -> None:
    """A light grid, no frame above and to the right, small words."""
    axes.grid(True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(PALE)
    axes.tick_params(labelsize=SMALL, color=PALE, labelcolor=INK)
    axes.set_title(title, fontsize=NORMAL, loc="left", color=INK)
    axes.set_xlabel(x, fontsize=SMALL, color=INK)
    axes.set_ylabel(y, fontsize=SMALL, color=INK)


def percent_axis(axes: Axes, top: float = 1.0) -> None:
    """Shares on the y axis, as percent from 0."""
    axes.set_ylim(0, top)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))  # no quarters, which rounding would hide
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %" if top > 0.04 else f"{100 * value:.1f} %")


def step_axis(axes: Axes, steps: int) -> None:
    """The x axis from before the first update to the last step, with whole numbers."""
    axes.set_xlim(0, max(steps, 1) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, steps=[1, 2, 5, 10], integer=True))


def shade_phases(axes: Axes, phases: Sequence[tuple[str, float, float]], words: bool = True) -> None:
    """The phases of exploration behind a plot over steps, named along its upper edge."""
    for name, start, end in phases:
        axes.axvspan(start, end, color=PHASE_SHADES[name], zorder=0, linewidth=0)
        if words:
            axes.text(
                (start + end) / 2, 0.985, name, transform=axes.get_xaxis_transform(), ha="center", va="top",
                fontsize=SMALL - 1, color=GREY, zorder=5, clip_on=True,
            )  # fmt: skip


def line(axes: Axes, steps: np.ndarray, values: np.ndarray, colour: str, smooth: int = 1, **kind) -> None:
    """A line over steps; with `smooth`, a running mean of so many points over the points themselves, drawn pale."""
    if smooth > 1 and len(values) > 2 * smooth:
        axes.plot(steps, values, ".", color=colour, alpha=0.22, markersize=3.5, markeredgewidth=0)
        values = running_mean(values, smooth)
    if len(values) <= FEW:
        kind = {"marker": "o", "markersize": 3.5, **kind}
    axes.plot(steps, values, color=colour, **{"linewidth": 1.8, **kind})


def running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """f64[N]: the mean of the `width` points around each point, of fewer at the ends."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    first, last = np.maximum(places - width // 2, 0), np.minimum(places + width // 2 + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)


def end_labels(axes: Axes, labels: Sequence[tuple[float, str, str]], gap: float = 0.06) -> None:
    """Words to the right of a plot at the height of what they name, pushed apart by `gap` of its height.

    Args:
        labels: (y in data coordinates, words, colour); drawn once the limits of the axes are final.
    """
    low, high = axes.get_ylim()
    placed = sorted(((y - low) / (high - low), words, colour) for y, words, colour in labels)
    heights = spread([min(max(height, 0.0), 1.0) for height, _, _ in placed], gap)
    for height, (true, words, colour) in zip(heights, placed, strict=True):
        axes.text(1.025, height, words, transform=axes.transAxes, va="center", ha="left", fontsize=SMALL, color=colour)
        axes.plot(
            [1.0, 1.02], [min(max(true, 0.0), 1.0), height], transform=axes.transAxes, color=colour, linewidth=0.8,
            clip_on=False, scalex=False, scaley=False,
        )  # fmt: skip


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending heights, moved as little as a simple rule can so that neighbours are `gap` apart."""
    moved = list(heights)
    for _ in range(60):
        for i in range(len(moved) - 1):
            lacking = gap - (moved[i + 1] - moved[i])
            if lacking > 1e-9:
                moved[i], moved[i + 1] = moved[i] - lacking / 2, moved[i + 1] + lacking / 2
    return moved


def patch(colour: str, words: str) -> Patch:
    """An entry of a legend."""
    return Patch(facecolor=colour, label=words)


def mode_legend(made: Figure, words: Sequence[str]) -> None:
    """The modes' colours, at the height of the title."""
    handles = [patch(MODE_COLOURS[word], "no mode" if word == "none" else word) for word in words]
    made.legend(
        handles=handles, ncols=len(handles), loc="upper right", bbox_to_anchor=(0.995, 1.0), frameon=False,
        fontsize=NORMAL, handlelength=1.0, columnspacing=1.4, handletextpad=0.5,
    )  # fmt: skip


def say_inside(axes: Axes, words: str) -> None:
    """A sentence in the middle of an empty plot."""
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", fontsize=NORMAL, color=GREY)


def save(made: Figure, path: str | os.PathLike[str]) -> pathlib.Path:
    """Writes the figure as PNG, whole or not at all."""
    path = pathlib.Path(path)
    aside = path.with_suffix(".png.part")
    made.savefig(aside, format="png", dpi=DPI)
    os.replace(aside, path)
    return path
