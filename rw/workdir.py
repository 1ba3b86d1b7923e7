"""A run's directory: one job at a time, one config for its whole life.

Layout: config.json, metrics.jsonl, validation.jsonl, ledger.jsonl, journal/, trajectories/, checkpoints/, warmstart/,
reference/, best/, evaluation/, report/, tensorboard/, wandb/; a file STOP, put there by a person, ends the run.
LOCK keeps other runs out, JOB shows the processes of a job that they all have the same directory.

All processes of a job share it. What each writes by itself (ledger.jsonl, journal/, trajectories/) the first has here,
and the others in process_1/, process_2/, …
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import time
import uuid
from collections.abc import Mapping
from typing import Any

from rw.errors import WorkdirError

LEDGER = "ledger.jsonl"
LOCK = "LOCK"  # held by the process that works there
LOOKS, LOOK_S = 3, 0.05
MARK = "JOB"  # of the first process of a job of several
OTHERS = "process_"  # folders of the processes after the first


def own_files(workdir: str | os.PathLike, name: str, beyond: int = 0) -> list[pathlib.Path]:
    """What each process of a run's jobs wrote by itself under that name, in order of index, from `beyond` on."""
    path = pathlib.Path(workdir)
    folders = {0: path}
    for folder in path.glob(f"{OTHERS}*"):
        if folder.name.removeprefix(OTHERS).isdecimal():
            folders[int(folder.name.removeprefix(OTHERS))] = folder
    found = [folders[index] / name for index in sorted(folders) if index >= beyond]
    return [file for file in found if file.exists()]


class Workdir:
    """Holds the lock of a run's directory from construction to `close()`; the kernel frees it when the process dies."""

    def __init__(self, path: str | os.PathLike, process: int = 0):
        """`process`: the index of this one in its job; each locks the part that it writes by itself."""
        self.path = pathlib.Path(path)
        self.own_path = self.path / f"{OTHERS}{process}" if process else self.path
        try:
            self.own_path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.own_path / LOCK, "a+")
        except OSError as error:
            raise WorkdirError(f"cannot use workdir {str(self.path)!r}: {error.strerror}") from error
        try:
            self._take_lock()
        except OSError as error:
            self._lock.seek(0)
            owner = self._lock.read().strip() or "another process"
            self._lock.close()
            raise WorkdirError(
                f"workdir {str(self.path)!r} is in use by {owner}; stop it or take another --workdir"
            ) from error
        self._lock.truncate(0)
        self._lock.write(f"process {os.getpid()}")
        self._lock.flush()

    def _take_lock(self) -> None:
        for _ in range(LOOKS):  # who only looks whether someone works here holds it for an instant
            with contextlib.suppress(BlockingIOError):
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            time.sleep(LOOK_S)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def file(self, name: str) -> pathlib.Path:
        """Path of a file or directory of the run."""
        return self.path / name

    def own_file(self, name: str) -> pathlib.Path:
        """Path of a file or directory that every process writes by itself."""
        return self.own_path / name

    def files_of_others(self, name: str, beyond: int = 0) -> list[pathlib.Path]:
        """The `own_file` of other processes, those of earlier jobs too, that is there; of index `beyond` or higher."""
        return [path for path in own_files(self.path, name, beyond) if path != self.own_file(name)]

    def mark(self) -> str:
        """Writes a new mark, which everyone can read who has this directory; returns it."""
        mark = uuid.uuid4().hex
        self.file(MARK).write_text(mark)
        return mark

    def is_marked(self, mark: str) -> bool:
        """Whether that mark was the last one written here."""
        return self.file(MARK).is_file() and self.file(MARK).read_text() == mark

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Writes config.json aside and renames it, so that a reader never sees half of it."""
        target = self.file("config.json")
        aside = target.with_suffix(".tmp")
        aside.write_text(json.dumps(config, indent=2) + "\n")
        aside.replace(target)

    def close(self) -> None:
        """Gives the directory back."""
        self._lock.close()

    def __enter__(self) -> Workdir:
        return self

    def __exit__(self, *_) -> None:
        self.close()
