"""The plot of where a run's time went: the parts of each step, and how long its episodes took in each mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rw.evaluation import style
from rw.evaluation.history import History
from rw.evaluation.learning_plots import SMOOTH

# Seconds of a step, by what it waited for; together they are the step.
TIME_PARTS = (
    ("decode", style.SKY),
    ("prefill", "#5E4B8B"),
    ("learning while episodes wait", "#F0A57A"),
    ("waiting for Workers alone", style.PALE),
    ("waiting for verdicts", style.YELLOW),
    ("reference log-probs", style.PINK),
    ("update", style.RED),
    ("publishing", "#8C6D46"),
    ("other", "#E8E8E8"),
)


def time(history: History, summary: Mapping[str, Any]) -> Figure | None:
    """Above the parts of each step, stacked; below the slowest and the median episode of each mode."""
    steps, whole = history.series("perf/step_s")
    if not len(steps):
        return None
    words = [word for word in style.MODE_COLOURS if len(history.series(f"perf/episode_s/{word}/max")[0])]
    rows, size = (2, (10, 7.6)) if words else (1, (10, 4.8))
    figure, grid = style.figure("Where a step's time went", rows=rows, size=size)
    _stack(grid[0, 0], history, steps, whole)
    if words:
        _episodes(grid[1, 0], history, words)
    for axes in grid.flat:
        style.step_axis(axes, int(steps[-1]))
    return figure


def time_layers(history: History, steps: np.ndarray, whole: np.ndarray) -> list[np.ndarray]:
    """Seconds of each of TIME_PARTS, one array each [steps]; together they are `whole`.

    Rows without `perf/wait_s` are those of older runs: there, rollouts that did not have the device waited for Workers.
    What the learner did while rollouts went on is taken from the waiting, since that is when it has the device.
    """

    def of(name: str) -> np.ndarray:
        return on_steps(steps, *history.series(name))

    rollout, train, publish = of("perf/rollout_s"), of("perf/train_s"), of("perf/publish_s")
    is_known = np.isin(steps, history.series("perf/wait_s")[0])
    is_split = np.isin(steps, history.series("perf/decode_s")[0])
    decode = np.minimum(np.where(is_split, of("perf/decode_s"), of("sampler/device_s")), rollout)
    prefill = np.minimum(of("perf/prefill_s"), rollout - decode)
    left = rollout - decode - prefill
    learning = np.minimum(of("sampler/idle_work_s") * is_known, left)
    left = left - learning
    score = np.where(is_known, np.minimum(of("perf/score_s"), left), 0.0)
    wait = np.where(is_known, np.minimum(np.maximum(of("perf/wait_s") - learning, 0.0), left - score), left)
    reference = np.minimum(of("perf/reference_s"), train)
    parts = [decode, prefill, learning, wait, score, reference, train - reference, publish]
    return [*parts, np.maximum(whole - np.sum(parts, axis=0), 0.0)]


def _stack(axes: Axes, history: History, steps: np.ndarray, whole: np.ndarray) -> None:
    """Steps that compiled may rise beyond the plot, and are named."""
    style.plain(axes, x=style.STEP_LABEL, y="seconds of a step")
    layers = time_layers(history, steps, whole)
    axes.stackplot(
        np.repeat(steps, 2) + np.tile([-0.5, 0.5], len(steps)),
        [np.repeat(layer, 2) for layer in layers],
        colors=[colour for _, colour in TIME_PARTS],
        linewidth=0,
    )
    top = 1.5 * float(np.percentile(whole, 95))
    axes.set_ylim(0, top if top > 0 else 1)
    _name_outliers(axes, steps, whole, top)
    total = whole.sum()
    handles = [
        style.patch(colour, f"{words}: {100 * layer.sum() / total:.0f} %")
        for (words, colour), layer in zip(TIME_PARTS, layers, strict=True)
        if layer.any()
    ]
    _legend_beside(axes, handles[::-1], f"{total / 60:.1f} min in all, median step {np.median(whole):.2f} s")


def _episodes(axes: Axes, history: History, words: list[str]) -> None:
    """Durations by mode over steps: dashed the median, whole the slowest; a black line for all rollouts of the step."""
    style.plain(axes, "Episodes, from their place to their verdict", style.STEP_LABEL, "seconds")
    steps, makespan = history.series("perf/makespan_s")
    style.line(axes, steps, makespan, style.INK, SMOOTH, label="all of the step")
    tops = [makespan]
    for word in words:
        colour, name = style.MODE_COLOURS[word], "no mode" if word == "none" else word
        for kind, dashes, label in (("max", "-", f"{name}, slowest"), ("p50", ":", f"{name}, median")):
            steps, seconds = history.series(f"perf/episode_s/{word}/{kind}")
            style.line(axes, steps, seconds, colour, SMOOTH, linestyle=dashes, label=label)
            tops.append(seconds)
    axes.set_ylim(0, 1.5 * float(np.percentile(np.concatenate(tops), 97)) or 1)
    _legend_beside(
        axes, axes.get_legend_handles_labels()[0], "lines: running means" if len(makespan) > 2 * SMOOTH else ""
    )


def _legend_beside(axes: Axes, handles: list[Any], title: str) -> None:
    axes.legend(
        handles=handles, title=title, fontsize=style.SMALL, title_fontsize=style.SMALL, frameon=False,
        loc="upper left", bbox_to_anchor=(1.0, 1.0), alignment="left",
    )  # fmt: skip


def _name_outliers(axes: Axes, steps: np.ndarray, whole: np.ndarray, top: float) -> None:
    """Says how long the longest steps took where they leave the plot: three at most."""
    beyond = sorted(np.flatnonzero(whole > top), key=lambda place: -whole[place])
    if beyond:
        named = ", ".join(f"step {steps[place]}: {whole[place]:.0f} s" for place in sorted(beyond[:3]))
        more = f" and {len(beyond) - 3} more" if len(beyond) > 3 else ""
        axes.text(
            0.01, 0.985, f"beyond the plot: {named}{more}", transform=axes.transAxes, va="top",
            fontsize=style.SMALL, color=style.INK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 2, "alpha": 0.9},
        )  # fmt: skip


def on_steps(steps: np.ndarray, part: np.ndarray, values: np.ndarray) -> np.ndarray:
    """f64[steps]: the values at these steps, 0 where there is none."""
    found = dict(zip(part.tolist(), values.tolist(), strict=True))
    return np.array([found.get(step, 0.0) for step in steps.tolist()], np.float64)
