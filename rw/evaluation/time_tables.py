"""Where a run's time went, in words and a table: what kept sampler and learner idle, and the slowest episodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rw.evaluation.history import History
from rw.evaluation.table import ABSENT, Table
from rw.types import Mode

WAITED_FOR = (
    "Slow episodes are waited for; none is dropped so that a step may end sooner. Most are of the modes with more "
    "calls, and without them the router would learn that such modes do not pay. Only one that goes beyond "
    "`rollout.deadline_s` is given up, and counted among those that infrastructure lost."
)
PARTS = {"queue_s": "queue", "sample_s": "sampling", "wait_s": "Workers", "score_s": "judging", "own_s": "own"}


def time_sections(history: History) -> list[str]:
    """The paragraphs and tables of the report; [] where no row knows of episodes."""
    if not len(history.series("perf/makespan_s")[0]):
        return []
    sections = ["## Where the time went", time_words(history), WAITED_FOR]
    table = slowest_table(history)
    return [*sections, f"### {table.title}", table.markdown()] if table.rows else sections


def time_words(history: History) -> str:
    """Medians over steps, in a sentence each; what was not measured is left out."""
    step, rollout, late = (_median(history, f"perf/{name}_s") for name in ("step", "makespan", "straggler"))
    critical, waited = _median(history, "perf/critical_path_s"), _median(history, "perf/critical_path/wait_s")
    idle, learner = (_median(history, f"perf/{name}_idle_share") for name in ("decode", "learner"))
    replayed = history.series("perf/replayed_turns")[1].sum()
    words = [
        f"Medians over steps: {step:.2f} s a step, {rollout:.2f} s from its first episode to the last one's verdict.",
        f"The episode that ended last took {critical:.2f} s, {waited:.2f} s of them waiting for Workers.",
        f"The last 5 % of a step's episodes ended up to {late:.2f} s after all others.",
        f"The sampler had nothing to do for {100 * idle:.0f} % of the rollouts' time, the learner for "
        f"{100 * learner:.0f} % of a step.",
    ]
    if replayed:
        words.append(
            f"{replayed:.0f} turns were taken from a journal, with the replies to them: nobody waited for these again."
        )
    return " ".join(sentence for sentence in words if "nan" not in sentence)


def slowest_table(history: History) -> Table:
    """The slowest episode of each mode, over all steps. Those that a journal had in part count only where all are such,
    then those of steps in which something was compiled."""
    slowest: dict[str, tuple[int, Mapping[str, Any]]] = {}
    ranks: dict[str, tuple[bool, bool, float]] = {}
    for row in history.rows:
        for episode in row.get("perf/slowest") or ():
            word, rank = episode["mode"], (not episode["replayed_turns"], not _compiles(row), episode["duration_s"])
            if word not in ranks or rank > ranks[word]:
                ranks[word], slowest[word] = rank, (row["step"], episode)
    rows = [
        (
            "no mode" if word == "none" else word,
            str(slowest[word][0]),
            f"{slowest[word][1]['query_id']} / {slowest[word][1]['rollout']}",
            f"{slowest[word][1]['duration_s']:.2f}",
            *(f"{slowest[word][1][part]:.2f}" for part in PARTS),
            str(slowest[word][1]["replayed_turns"] or ABSENT),
        )
        for word in (*(mode.word for mode in Mode), "none")
        if word in slowest
    ]
    columns = ("mode", "step", "question / rollout", "seconds", *PARTS.values(), "turns replayed")
    return Table("The slowest episode of each mode, in seconds by part", columns, tuple(rows))


def _compiles(row: Mapping[str, Any]) -> bool:
    return bool(row.get("perf/compiled", row.get("sampler/compiled")))


def _median(history: History, name: str) -> float:
    values = history.series(name)[1]
    return float(np.median(values)) if len(values) else math.nan
