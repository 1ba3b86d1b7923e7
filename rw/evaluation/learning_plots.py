"""Plots of what a run learnt: accuracy, the arms of its test, modes, their support, rewards.

Each function draws one figure from a run's history and summary, or returns None where nothing was measured. What a
metric means is defined where it is computed (rw/metrics.py, rw/core/diagnostics.py, rw/evaluation/validation.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rw.evaluation import style
from rw.evaluation.aggregate import NO_MODE_WORD, WORDS
from rw.evaluation.history import History
from rw.evaluation.table import accuracy_of, arm_words, best_fixed_arms, ordered_arms, percent

SMOOTH = 9  # steps of a running mean: one step's batch is small
MOST_KINDS = 11  # types of question with a panel of their own
Summary = Mapping[str, Any]


def accuracy(history: History, summary: Summary) -> Figure | None:
    """Sampled accuracy of training and greedy accuracy of validation over steps; the test's arms as lines and bands."""
    sampled, validated = history.series("accuracy"), history.series("eval/accuracy")
    lines = [arm for arm in ("warm_start", "trained", *best_fixed_arms(summary), "oracle") if accuracy_of(summary, arm)]
    if not (len(sampled[0]) or len(validated[0]) or lines):
        return None
    title = "Accuracy while it trained" + (", and on the test questions" if lines else "")
    figure, [[axes]] = style.figure(title, size=(10, 5.2))
    style.plain(axes, x=style.STEP_LABEL, y="questions answered right")
    style.shade_phases(axes, history.phases())
    labels = []
    for arm in lines:
        interval, colour = accuracy_of(summary, arm), arm_colour(arm)
        axes.axhspan(interval["low"], interval["high"], color=colour, alpha=0.09, linewidth=0)
        axes.axhline(interval["mean"], color=colour, linewidth=1.3, linestyle=_dashes(arm))
        labels.append((interval["mean"], f"test: {arm_words(arm)} {percent(interval['mean'])} %", colour))
    if len(sampled[0]):
        style.line(axes, *sampled, style.PALE, SMOOTH, linewidth=2.2)
        labels.append((style.running_mean(sampled[1], SMOOTH)[-1], "training, as sampled", style.GREY))
    if len(validated[0]):
        style.line(axes, *validated, style.INK, marker="o", markersize=4)
        kept = _mark_best(axes, validated, summary["best_step"])
        labels.append((validated[1][-1], f"validation, greedy{kept}", style.INK))
    style.step_axis(axes, history.steps)
    style.percent_axis(axes)
    style.end_labels(axes, labels)
    return figure


def _dashes(arm: str):
    return "-" if arm == "trained" else ":" if arm.startswith("scripted_") else (0, (5, 3))


def _mark_best(axes: Axes, validated: tuple[np.ndarray, np.ndarray], best_step: int | None) -> str:
    """Rings the validation whose router was kept; what the line's label says of it."""
    at = np.flatnonzero(validated[0] == best_step) if best_step is not None else []
    if len(at):
        value = validated[1][at[0]]
        axes.plot([best_step], [value], "o", markersize=11, markerfacecolor="none", markeredgecolor=style.RED, zorder=4)
        return f" (kept: step {best_step})"
    return ""


def arms(history: History, summary: Summary) -> Figure | None:
    """Accuracy of every arm with its interval, and beside it the modes that the arm answered in."""
    names = ordered_arms(summary)[::-1]
    if not names:
        return None
    figure, [[left, right]] = style.figure(
        f"Test: {summary['test_queries']} questions, the same for every arm", columns=2,
        size=(10, max(2.6, 1.3 + 0.36 * len(names))), sharey=True, width_ratios=(1.5, 1),
    )  # fmt: skip
    style.plain(left, "answered right (95 % interval)")
    style.plain(right, "answered in mode")
    for place, name in enumerate(names):
        interval, colour = accuracy_of(summary, name), arm_colour(name)
        if interval is not None:
            left.plot([interval["low"], interval["high"]], [place, place], color=colour, linewidth=2.4)
            left.plot([interval["mean"]], [place], "o", color=colour, markersize=7)
            left.text(
                interval["high"] + 0.015, place, f"{percent(interval['mean'])} %", va="center", fontsize=style.SMALL,
                color=colour, fontweight="bold" if name == "trained" else "normal",
            )  # fmt: skip
        _stacked_bar(right, place, summary["mode_share_by_arm"].get(name) or {})
    left.set_yticks(range(len(names)), [arm_words(name) for name in names])
    left.set_ylim(-0.6, len(names) - 0.4)
    for axes in (left, right):
        axes.set_xlim(0, 1.08 if axes is left else 1)
        axes.set_xticks(np.linspace(0, 1, 6))
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    style.mode_legend(figure, [word for word in MODES if any(summary["mode_share_by_arm"][n].get(word) for n in names)])
    return figure


MODES = (*WORDS, NO_MODE_WORD)


def _stacked_bar(axes: Axes, place: int, shares: Mapping[str, float]) -> None:
    start = 0.0
    for word in MODES:
        share = shares.get(word, 0.0)
        axes.barh([place], [share], left=start, height=0.62, color=style.MODE_COLOURS[word], linewidth=0)
        if share >= 0.08:
            axes.text(
                start + share / 2, place, f"{100 * share:.0f}", ha="center", va="center", fontsize=style.SMALL - 1,
                color="white",
            )  # fmt: skip
        start += share


def modes(history: History, summary: Summary) -> Figure | None:
    """Which mode the router chooses: as it explores, and greedily for each type of question on validation."""
    kinds = sorted({name.split("/")[2] for name in history.names("eval/mode_share/") if name.count("/") == 3})
    kinds, left_out = kinds[:MOST_KINDS], kinds[MOST_KINDS:]
    sampled = {word: history.series(f"mode/sampled_freq/{word}") for word in MODES}
    if not kinds and not any(len(steps) for steps, _ in sampled.values()):
        return None
    count = 1 + len(kinds)
    columns = min(3, count)
    rows = -(-count // columns)
    title = "Which mode the router chooses" + ("; by type: greedy, on validation" if kinds else "")
    title += f" ({len(left_out)} types not shown)" if left_out else ""
    size = (10, 1.1 + 2.3 * rows) if count > 1 else (9, 4.2)
    figure, grid = style.figure(title, rows, columns, size=size, sharex=True, sharey=True)
    style.mode_legend(figure, MODES)
    panels = list(grid.flat)
    _sampled_modes(panels[0], history, sampled)
    for axes, kind in zip(panels[1:], kinds, strict=False):
        _modes_of_kind(axes, history, kind)
    for axes in panels[count:]:
        axes.set_visible(False)
    for axes in panels[:count]:
        style.step_axis(axes, history.steps)
        style.percent_axis(axes)
        if count - panels.index(axes) <= columns:
            axes.set_xlabel(style.STEP_LABEL, fontsize=style.SMALL)
            axes.tick_params(labelbottom=True)
    return figure


def _sampled_modes(axes: Axes, history: History, sampled: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    style.plain(axes, "all, as sampled in training", y="share of free rollouts")
    style.shade_phases(axes, history.phases())
    for word, (steps, shares) in sampled.items():
        if len(steps) and (word != NO_MODE_WORD or shares.any()):
            style.line(axes, steps, shares, style.MODE_COLOURS[word], SMOOTH)
    if not any(len(steps) for steps, _ in sampled.values()):
        style.say_inside(axes, "no rollout chose its mode yet")


def _modes_of_kind(axes: Axes, history: History, kind: str) -> None:
    """Stacked shares: the colour that fills the panel is the mode that this type gets."""
    shares = {word: dict(zip(*history.series(f"eval/mode_share/{kind}/{word}"), strict=True)) for word in MODES}
    steps = np.array(sorted(set().union(*shares.values())))
    layers = [np.array([shares[word].get(step, 0.0) for step in steps]) for word in MODES]
    style.plain(axes, kind)
    colours = [style.MODE_COLOURS[word] for word in MODES]
    if len(steps) == 1:  # one validation is a bar, since an area needs two
        start = 0.0
        for layer, colour in zip(layers, colours, strict=True):
            axes.bar(steps, layer, bottom=start, width=max(history.steps, 1) / 20, color=colour)
            start += layer[0]
    else:
        axes.stackplot(steps, layers, colors=colours, alpha=0.9, linewidth=0)
    for _, start, _ in history.phases()[1:]:
        axes.axvline(start, color="white", linewidth=0.9, linestyle=(0, (4, 3)))
    last = {word: layer[-1] for word, layer in zip(MODES, layers, strict=True)}
    most = max(last, key=last.get)
    words = "no mode" if most == NO_MODE_WORD else most
    axes.text(
        1.0, 1.02, f"last: {words} {100 * last[most]:.0f} %", transform=axes.transAxes, ha="right", va="bottom",
        fontsize=style.SMALL, fontweight="bold", color=style.MODE_COLOURS[most],
    )  # fmt: skip


def support(history: History, summary: Summary) -> Figure | None:
    """p̄_m of each mode, with the share of assigned modes ρ_b and the floor below which the support term acts."""
    shares = {word: history.series(f"mode/p_bar/{word}") for word in WORDS}
    ratio = history.series("rho_b")
    if not len(ratio[0]) and not any(len(steps) for steps, _ in shares.values()):
        return None
    figure, [[axes]] = style.figure("Mean probability of each mode over a batch's questions, p̄ₘ, and assigned share ρ")
    style.plain(axes, x=style.STEP_LABEL, y="probability or share")
    style.shade_phases(axes, history.phases())
    style.step_axis(axes, history.steps)
    style.percent_axis(axes)
    labels = []
    if len(ratio[0]):
        axes.plot(*ratio, color=style.GREY, linewidth=1.4, linestyle=(0, (4, 2)))
        labels.append((ratio[1][-1], "ρ: modes assigned", style.GREY))
    floor = history.setting("support", "floor")
    if floor is not None and history.setting("support", "coefficient", 0):
        axes.axhline(floor, color=style.RED, linewidth=1, linestyle=":")
        labels.append((floor, f"floor δ = {100 * floor:.0f} %", style.RED))
    for word, (steps, values) in shares.items():
        if len(steps):
            style.line(axes, steps, values, style.MODE_COLOURS[word])
            labels.append((values[-1], f"{word} {100 * values[-1]:.0f} %", style.MODE_COLOURS[word]))
    style.end_labels(axes, labels)
    return figure


def rewards(history: History, summary: Summary) -> Figure | None:
    """Task and efficiency reward of the retained rollouts, over all and by mode; their mix where α is above 0."""
    weight = history.setting("reward", "efficiency_weight", 0.0)
    panels = [("task", "task reward: right 1, wrong 0, invalid -1"), ("eff", "efficiency reward: less where dearer")]
    if not any(len(history.series(f"reward/{name}/mean")[0]) for name, _ in panels):
        return None
    if weight:
        panels.append(("both", f"as mixed, (1 - α) task + α efficiency, α = {weight:g}"))
    title = "Reward components by mode" + ("" if weight else " (α = 0: only the task reward trains)")
    figure, [axes_row] = style.figure(title, columns=len(panels), size=(10, 4.4), sharey=True)
    shown = []
    for axes, (name, words) in zip(axes_row, panels, strict=True):
        style.plain(axes, words, style.STEP_LABEL, "mean reward of a rollout" if axes is axes_row[0] else "")
        style.shade_phases(axes, history.phases())
        axes.axhline(0, color=style.PALE, linewidth=1)
        for word in (*WORDS, ""):
            steps, values = _reward(history, name, word, weight)
            if len(steps):
                style.line(axes, steps, values, style.MODE_COLOURS.get(word, style.INK), SMOOTH)
                shown.extend(style.running_mean(values, SMOOTH))
        style.step_axis(axes, history.steps)
    axes_row[0].set_ylim(max(-1.05, min([*shown, 0.0]) - 0.12), min(1.05, max([*shown, 0.0]) + 0.15))
    labels = [(word, style.MODE_COLOURS[word]) for word in WORDS] + [("all", style.INK)]
    ends = [_reward(history, panels[-1][0], word.replace("all", ""), weight)[1] for word, _ in labels]
    style.end_labels(
        axes_row[-1],
        [
            (style.running_mean(values, SMOOTH)[-1], *label)
            for label, values in zip(labels, ends, strict=True)
            if len(values)
        ],
    )
    return figure


def _reward(history: History, name: str, mode: str, weight: float) -> tuple[np.ndarray, np.ndarray]:
    suffix = f"/mode/{mode}" if mode else ""
    if name != "both":
        return history.series(f"reward/{name}/mean{suffix}")
    task, efficiency = (dict(zip(*_reward(history, part, mode, weight), strict=True)) for part in ("task", "eff"))
    steps = sorted(task.keys() & efficiency.keys())
    return np.array(steps), np.array([(1 - weight) * task[step] + weight * efficiency[step] for step in steps])


def arm_colour(arm: str) -> str:
    """One colour an arm; arms of one mode have the mode's."""
    fixed = {
        "trained": style.RED,
        "warm_start": style.GREY,
        "oracle": style.SKY,
        "random": style.PINK,
        "knn": style.YELLOW,
    }
    return fixed.get(arm) or style.MODE_COLOURS.get(arm.rpartition("_")[2], style.INK)
