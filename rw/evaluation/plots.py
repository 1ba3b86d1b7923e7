"""The plots of a run's report: which there are, what each is for, and their files."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.figure import Figure

from rw.evaluation import learning_plots, running_plots, style, time_plots
from rw.evaluation.history import History


@dataclasses.dataclass(frozen=True)
class Plot:
    """A plot of one run."""

    name: str  # of its file, without .png
    reading: str  # one sentence on how to read it
    draw: Callable[[History, Mapping[str, Any]], Figure | None]


PLOTS = (
    Plot(
        "accuracy",
        "Black dots are greedy answers to validation questions; the grey line is training, where the router explores "
        "and modes may be assigned, so it lies lower. Lines across are the test, with 95 % bands.",
        learning_plots.accuracy,
    ),
    Plot(
        "arms",
        "Every arm answered the same test questions. Where two intervals overlap, the paired margin above says more.",
        learning_plots.arms,
    ),
    Plot(
        "modes",
        "Each panel is a type of question; the colour that fills it is the mode it gets. If all end in one colour, the "
        "router ignores the question.",
        learning_plots.modes,
    ),
    Plot(
        "support",
        "A mode that sinks to 0 is no longer explored. The support term pushes back below the floor, in the transition "
        "only.",
        learning_plots.support,
    ),
    Plot(
        "rewards",
        "Pale dots are single steps, lines their running mean. A mode's line says how well it fares on the questions "
        "it is used for, which are not the same questions for every mode.",
        learning_plots.rewards,
    ),
    Plot(
        "failures",
        "Left: what broke the grammar, the router's fault. Middle: what ran out of budget or turns. Right: what "
        "infrastructure lost, never its fault; it is left out of learning, and counts as wrong in the test.",
        running_plots.failures,
    ),
    Plot(
        "cost",
        "Money that the Workers' calls would cost at the frozen price table; each logical call counts once.",
        running_plots.cost,
    ),
    Plot(
        "time",
        "Above: grey is time in which neither sampler nor learner had anything to do, since every episode waited for a "
        "Worker. A few long steps, the first above all, are those in which new shapes compile. Below: the rollouts of "
        "a step take as long as its slowest episode.",
        time_plots.time,
    ),
)


def write_plots(history: History, summary: Mapping[str, Any], folder: pathlib.Path) -> tuple[list[Plot], list[Plot]]:
    """Draws what can be drawn into `folder`: (plots drawn, plots without data). An older file of the latter goes."""
    drawn, without = [], []
    for plot in PLOTS:
        path = folder / f"{plot.name}.png"
        figure = plot.draw(history, summary)
        if figure is None:
            path.unlink(missing_ok=True)
            without.append(plot)
        else:
            style.save(figure, path)
            drawn.append(plot)
    return drawn, without
