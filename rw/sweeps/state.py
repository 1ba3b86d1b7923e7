"""How the run of a point stands: from what the run left, and from the note that whoever started it keeps beside.

Reads and takes no lock, so a sweep that is going on can be looked at. Starts nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import signal
from typing import Any

from rw.errors import ConfigError, RwError
from rw.evaluation.sweep_results import FAILED, FINISHED, RUNNING, STOPPED, WAITING, PointResult, measured_run
from rw.learner.checkpoint import config_changes
from rw.learner.exported import checkpoint_steps
from rw.run_config import MAY_CHANGE
from rw.sweeps.plan import SweepPoint, recorded
from rw.workdir import LOCK

LOG = "sweep.log"  # in a point's directory: what its run printed, of all its tries
OUTCOME = "sweep_outcome.json"  # beside it: how the last try ended
STOPPED_CODES = (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM, 7, 8)  # 7: STOP, 8: lost
LAST_WORDS = 300  # characters
TAIL = 20_000  # bytes of a log that are looked into


def result_of(point: SweepPoint) -> PointResult:
    """What is known of a point now."""
    total = point.config.steps
    try:
        measured, steps, whole = measured_run(point.workdir)
    except RwError as error:
        return PointResult(point.name, point.values, FAILED, 0, total, None, None, str(error))
    code, words = read_outcome(point.workdir)
    if is_locked(point.workdir):
        status, code, words = RUNNING, None, ""
    elif whole and is_as_planned(point):
        status, code, words = FINISHED, None, ""
    elif code is None:
        status = STOPPED if steps else WAITING
    elif code in STOPPED_CODES:
        status = STOPPED
    else:
        status = FAILED
        words = words if code else "it ended well, but its results are not there"
    return PointResult(point.name, point.values, status, steps, total, measured, code, words)


def is_as_planned(point: SweepPoint) -> bool:
    """Whether the run's config.json says what the sweep wants: a run with fewer steps is not the one that is asked."""
    stored = _stored_config(point)
    return stored is not None and not config_changes(stored, recorded(point))


def check_continues(point: SweepPoint) -> None:
    """Raises ConfigError where the point's run has checkpoints of a config that this one could not continue."""
    stored = _stored_config(point)
    if stored is None or not checkpoint_steps(point.workdir / "checkpoints"):
        return
    if changes := config_changes(stored, recorded(point), MAY_CHANGE):
        raise ConfigError(
            f"point {point.name}: {point.workdir} holds a run of another config: {'; '.join(changes)}; take the change "
            "back, or another --workdir"
        )


def _stored_config(point: SweepPoint) -> dict[str, Any] | None:
    try:
        return dict(json.loads((point.workdir / "config.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def is_locked(workdir: pathlib.Path) -> bool:
    """Whether a process works in that directory."""
    try:
        with open(workdir / LOCK, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False
    except OSError:
        return False


def write_outcome(workdir: pathlib.Path, code: int, words: str) -> None:
    """Notes how a try ended."""
    aside = workdir / f"{OUTCOME}.tmp"
    aside.write_text(json.dumps({"exit_code": code, "last_words": words}) + "\n")
    os.replace(aside, workdir / OUTCOME)


def forget_outcome(workdir: pathlib.Path) -> None:
    """A new try begins."""
    (workdir / OUTCOME).unlink(missing_ok=True)


def read_outcome(workdir: pathlib.Path) -> tuple[int | None, str]:
    """(exit code, last words) of the last try; (None, "") where none has ended."""
    try:
        found = json.loads((workdir / OUTCOME).read_bytes())
        return int(found["exit_code"]), str(found["last_words"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, ""


def last_words(log: pathlib.Path, since: int = 0) -> str:
    """The last line that a run printed from byte `since` of its log on."""
    with open(log, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(since, size - TAIL))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:LAST_WORDS] if lines else ""


def end_words(code: int, words: str) -> str:
    """How a try ended, for people."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name if -code in set(signal.Signals) else f'signal {-code}'}"
    return f"exit code {code}: {words}" if words else f"exit code {code}"
