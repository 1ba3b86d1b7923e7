"""Words beside the points of a plot, placed so that they cover neither points nor one another."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from rw.evaluation import style

DISTANCES = (9, 20, 34, 52, 74, 100)  # points away, tried in turn
DIRECTIONS = ((1, 0), (1, 0.8), (1, -0.8), (0, 1), (0, -1), (-1, 0), (-1, 0.8), (-1, -0.8))
GAP = 2.0  # pixels around a label that stay free
POINT = 6.0  # pixels around a point that stay free


def place_labels(
    made: Figure,
    axes: Axes,
    x: np.ndarray,
    y: np.ndarray,
    words: Sequence[str],
    colours: Sequence[str],
    path: Sequence[int] = (),
) -> None:
    """Writes each point's words at the nearest free place, with a line to the point where that is far.

    Args:
        path: numbers of points that a line joins, which words keep clear of too.

    The limits and scales of the axes must be final. Where no place is free the words stand to the right of the point.
    """
    made.draw_without_rendering()
    renderer = FigureCanvasAgg(made).get_renderer()
    points = axes.transData.transform(np.column_stack([x, y]))
    taken = [Bbox.from_bounds(px - POINT, py - POINT, 2 * POINT, 2 * POINT) for px, py in points]
    for start, end in itertools.pairwise(points[list(path)]):
        steps = np.linspace(start, end, 2 + int(np.hypot(*(end - start)) / POINT))
        taken += [Bbox.from_bounds(px - GAP, py - GAP, 2 * GAP, 2 * GAP) for px, py in steps]
    inside = axes.get_window_extent(renderer)
    for place in np.argsort(-points[:, 1]):
        for distance, direction in itertools.product(DISTANCES, DIRECTIONS):
            label = _label(axes, (x[place], y[place]), words[place], colours[place], distance, direction)
            label.update_positions(renderer)
            box = Text.get_window_extent(label, renderer).padded(GAP)  # the words without the line
            is_inside = inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
            if is_inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            label.remove()
        else:
            _label(axes, (x[place], y[place]), words[place], colours[place], DISTANCES[0], DIRECTIONS[0])


def _label(
    axes: Axes, point: tuple[float, float], words: str, colour: str, distance: float, direction: tuple[float, float]
) -> Annotation:
    right, up = direction
    line = {"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 4}
    label = axes.annotate(
        words, point, xytext=(right * distance, up * distance), textcoords="offset points", fontsize=style.SMALL,
        color=style.INK, zorder=6, ha={1: "left", 0: "center", -1: "right"}[right],
        va="center" if right else "bottom" if up > 0 else "top", arrowprops=line if distance > DISTANCES[0] else None,
    )  # fmt: skip
    label.set_in_layout(False)
    label.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
    return label
