"""The summary of a sweep, `sweep.md`, `.json`, `.csv` and `.png`, made from its points' results alone."""

from __future__ import annotations

import csv
import io
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rw.evaluation.report import write_whole
from rw.evaluation.sweep_results import SEED, PointResult, Setting, point_metric, settings
from rw.evaluation.table import ABSENT, Table, cost_unit, cost_words, interval_words, percent, share_words

NAME = "sweep"
READING = (
    "Accuracy is that of the trained router, greedy, one rollout a question, with Wilson's 95 % interval over the "
    "questions of its run; s/m/a is the share of them in mode single, multi, agentic; cost is the Workers' mean a "
    "question at the frozen prices. A question lost to infrastructure counts as wrong."
)
OVER_SEEDS = (
    "Means over the finished runs that differ in their seed alone, with the lowest and the highest of several: how far "
    "apart seeds lie, not an interval."
)
CSV_COLUMNS = (
    "status", "steps", "total_steps", "split", "accuracy", "accuracy_low", "accuracy_high", "questions", "average",
    "cost_usd", "cost_usd_low", "cost_usd_high", "single", "multi", "agentic", "invalid", "lost", "exit_code",
    "last_words",
)  # fmt: skip


def write_sweep(
    folder: pathlib.Path, title: str, results: Sequence[PointResult], command: Sequence[str] = ()
) -> pathlib.Path:
    """Writes the four files; returns the path of the text. A plot that cannot be drawn any more goes."""
    from rw.evaluation.sweep_plots import write_plot  # here, since matplotlib takes longer to load than rw

    folder.mkdir(parents=True, exist_ok=True)
    grouped = settings(results)
    plot = write_plot(grouped, folder / f"{NAME}.png", title)
    data = {
        "sweep": title,
        "command": list(command),
        "points": [result.as_dict() for result in results],
        "settings": [_setting_values(setting) for setting in grouped],
    }
    write_whole(folder / f"{NAME}.json", json.dumps(data, indent=2, default=str) + "\n")
    write_whole(folder / f"{NAME}.csv", csv_text(results))
    path = folder / f"{NAME}.md"
    write_whole(path, text(title, results, grouped, plot))
    return path


def text(title: str, results: Sequence[PointResult], grouped: Sequence[Setting], plot: pathlib.Path | None) -> str:
    """The summary in Markdown."""
    parts = [f"# Sweep {title}", state_words(results), point_table(results).markdown(), READING]
    if has_settings(grouped):
        parts += ["## Settings", setting_table(grouped).markdown(), OVER_SEEDS]
    if plot is not None:
        parts.append(f"![accuracy and cost of the sweep]({plot.name})")
    if troubled := [result for result in results if result.last_words]:
        parts.append("## What did not end well")
        parts += [f"- `{r.name}`: {r.status}, exit code {r.exit_code}: {r.last_words}" for r in troubled]
    return "\n\n".join(parts) + "\n"


def state_words(results: Sequence[PointResult]) -> str:
    """How many points are in which state, in one line."""
    states = list(dict.fromkeys(result.status for result in results))
    counts = ", ".join(f"{sum(r.status == state for r in results)} {state}" for state in states)
    return f"{len(results)} points: {counts}"


def point_table(results: Sequence[PointResult]) -> Table:
    """One line a point."""
    factor, unit = _unit(results)
    rows = []
    for result in results:
        found = result.measured
        rows.append(
            (
                result.name,
                result.status if result.exit_code in (None, 0) else f"{result.status} ({result.exit_code})",
                f"{result.steps}/{result.total_steps}",
                ABSENT if found is None else interval_words(_plain(found.accuracy)),
                ABSENT if found is None else share_words(found.mode_shares),
                ABSENT if found is None else cost_words(_plain(found.cost_usd), factor),
                ABSENT if found is None else percent(found.invalid),
            )
        )
    return Table(
        "Points", ("point", "status", "steps", "% right (95 %)", "s/m/a, %", f"cost, {unit}", "% inv."), tuple(rows)
    )


def has_settings(grouped: Sequence[Setting]) -> bool:
    """Whether a table of settings says more than that of points: of seeds, or what a number in the plot stands for."""
    keys = {key for setting in grouped for key in setting.values}
    return len(keys) > 1 or any(len(setting.points) + setting.missing > 1 for setting in grouped)


def setting_table(grouped: Sequence[Setting]) -> Table:
    """One line a setting: means over seeds, with their range."""
    factor, unit = _unit([point for setting in grouped for point in setting.points])
    rows = []
    for number, setting in enumerate(grouped, 1):
        rows.append(
            (
                f"{number}: {setting_words(setting.values) or 'all'}",
                f"{len(setting.points)}/{len(setting.points) + setting.missing}",
                _range(setting.over_seeds("accuracy"), 100, ".1f"),
                _range(setting.over_seeds("cost_usd"), factor, ".3g"),
                "/".join(_mean(setting.over_seeds(word)) for word in ("single", "multi", "agentic")),
            )
        )
    return Table("Settings", ("setting", "finished", "% right", f"cost, {unit}", "s/m/a, %"), tuple(rows))


def setting_words(values: Mapping[str, Any]) -> str:
    """What a setting sets, such as "efficiency_weight 0.1"."""
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in values.items())


def csv_text(results: Sequence[PointResult]) -> str:
    """One line a point, numbers as they are, nothing where they are not known."""
    keys = list(dict.fromkeys(key for result in results for key in result.values))
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow(["point", *keys, *CSV_COLUMNS])
    for result in results:
        writer.writerow([result.name, *(result.values.get(key, "") for key in keys), *_csv_cells(result)])
    return made.getvalue()


def _csv_cells(result: PointResult) -> list[Any]:
    found = result.measured
    accuracy, cost = (None, None) if found is None else (found.accuracy, found.cost_usd)
    cells = {
        "status": result.status,
        "steps": result.steps,
        "total_steps": result.total_steps,
        "exit_code": result.exit_code,
        "last_words": result.last_words,
        **{
            name: point_metric(result, name)
            for name in ("accuracy", "average", "cost_usd", "single", "multi", "agentic")
        },
    }
    if found is not None:
        cells |= {"split": found.split, "invalid": found.invalid, "lost": found.lost}
    if accuracy is not None:
        cells |= {"accuracy_low": accuracy.low, "accuracy_high": accuracy.high, "questions": accuracy.n}
    if cost is not None:
        cells |= {"cost_usd_low": cost.low, "cost_usd_high": cost.high}
    return ["" if (value := cells.get(column)) is None else value for column in CSV_COLUMNS]


def _setting_values(setting: Setting) -> dict[str, Any]:
    metrics = ("accuracy", "average", "cost_usd", "single", "multi", "agentic")
    found = {metric: setting.over_seeds(metric) for metric in metrics}
    return {
        "values": dict(setting.values),
        "seeds": [point.values.get(SEED) for point in setting.points],
        "missing": setting.missing,
        **{
            name: None if v is None else dict(zip(("mean", "low", "high"), v, strict=True)) for name, v in found.items()
        },
    }


def _unit(results: Sequence[PointResult]) -> tuple[float, str]:
    return cost_unit(cost for result in results if (cost := point_metric(result, "cost_usd")) is not None)


def _plain(interval) -> dict[str, Any] | None:
    return None if interval is None else interval.as_dict()


def _range(found: tuple[float, float, float] | None, factor: float, form: str) -> str:
    if found is None:
        return ABSENT
    mean, low, high = (format(factor * value, form) for value in found)
    return mean if low == high else f"{mean} ({low} to {high})"


def _mean(found: tuple[float, float, float] | None) -> str:
    return ABSENT if found is None else f"{100 * found[0]:.0f}"
