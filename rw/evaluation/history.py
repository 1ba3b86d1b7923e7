"""A run as its directory tells it: its config, its rows by step and the arms of its evaluation.

Reads what is there, of a run that is going on too, and takes no lock. Knows no plot and no text.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rw.errors import WorkdirError
from rw.evaluation.aggregate import Identity
from rw.evaluation.outcomes import ArmResult, read_arms

ROW_FILES = ("metrics.jsonl", "validation.jsonl")  # of one step, both may hold a row: of its update, of its router
SECTIONS = ("data", "evaluation", "init", "model", "reward", "schedule", "support", "workers")  # those looked into
PHASES = ("cold", "transition", "free")


@dataclasses.dataclass(frozen=True)
class History:
    """What a run's directory holds."""

    path: pathlib.Path
    config: Mapping[str, Any]  # as config.json holds it
    rows: tuple[Mapping[str, Any], ...]  # one a step, in order of step
    unreadable: int  # lines of the row files that are no rows, such as one that a kill cut short
    arms: Mapping[str, ArmResult]

    @property
    def name(self) -> str:
        """Of the run: that of its directory."""
        return self.path.resolve().name

    @property
    def steps(self) -> int:
        """The last step with a row; 0 for none."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    @property
    def identity(self) -> Identity:
        """What the run is called and was asked to do."""
        return Identity(
            run=self.name,
            seed=self.config.get("seed"),
            source=self.setting("data", "source"),
            steps=self.config.get("steps"),
            test_queries=self.setting("evaluation", "test_queries", 0),
            arms=tuple(self.setting("evaluation", "arms", ("trained",))),
            config_fingerprint=hashlib.sha256(json.dumps(self.config, sort_keys=True).encode()).hexdigest(),
        )

    def setting(self, section: str, key: str, default: Any = None) -> Any:
        """A value of the config; `default` where an older config lacks it."""
        return self.config.get(section, {}).get(key, default)

    def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(steps i64[N], values f64[N]) of a metric, at the steps where it is a finite number."""
        found = [(int(row["step"]), _number(row.get(name))) for row in self.rows]
        found = [(step, value) for step, value in found if math.isfinite(value)]
        return np.array([step for step, _ in found], np.int64), np.array([value for _, value in found], np.float64)

    def names(self, prefix: str) -> list[str]:
        """Names of all metrics that begin so, in the order in which they first occur."""
        return list(dict.fromkeys(name for row in self.rows for name in row if name.startswith(prefix)))

    def phases(self) -> list[tuple[str, float, float]]:
        """(phase, from, to) along the steps: modes all assigned, some assigned, none. Nothing where one is all."""
        steps, ratio = self.series("rho_b")
        cold = dict(zip(*self.series("cold_start"), strict=True))
        spans: list[tuple[str, float, float]] = []
        for step, share in zip(steps, ratio, strict=True):
            phase = PHASES[0] if cold.get(step) else PHASES[2] if share == 0 else PHASES[1]
            if spans and spans[-1][0] == phase:
                spans[-1] = (phase, spans[-1][1], step + 0.5)
            else:
                spans.append((phase, step - 0.5, step + 0.5))
        return spans if len(spans) > 1 else []


def read_history(workdir: str | os.PathLike[str]) -> History:
    """Reads a run's directory.

    Raises:
        WorkdirError: there is no run, since config.json is missing or holds none, or a file cannot be read.
        DataError: a file of the evaluation that does not hold one.
    """
    path = pathlib.Path(workdir)
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise WorkdirError(f"no run in {str(path)!r}: it has no config.json (it comes with the first step)") from error
    except (OSError, ValueError) as error:
        raise WorkdirError(f"cannot read {path / 'config.json'}: {error}") from error
    if not isinstance(config, dict) or not all(isinstance(config.get(name, {}), dict) for name in SECTIONS):
        raise WorkdirError(f"{path / 'config.json'} holds no config")
    rows, unreadable = read_rows([path / name for name in ROW_FILES])
    return History(path, config, rows, unreadable, read_arms(path))


def read_rows(paths: Sequence[pathlib.Path]) -> tuple[tuple[dict[str, Any], ...], int]:
    """(rows in order of step, number of lines that are no rows); what several files say of a step becomes one row."""
    rows: dict[int, dict[str, Any]] = {}
    unreadable = 0
    for path in paths:
        try:
            lines = path.read_bytes().split(b"\n") if path.exists() else []
        except OSError as error:
            raise WorkdirError(f"cannot read {path}: {error.strerror}") from error
        for line in filter(None, lines):
            row = _row(line)
            if row is None:
                unreadable += 1
            else:
                rows[row["step"]] = rows.get(row["step"], {}) | row
    return tuple(rows[step] for step in sorted(rows)), unreadable


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _number(value: Any) -> float:
    """A number of a row, NaN where there is none; what is not finite stands there as a string."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
