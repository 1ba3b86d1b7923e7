"""A run's rows on Weights & Biases, beside TensorBoard: `log.wandb` names the project (the extra `wandb`).

What is sent is what metrics.jsonl and validation.jsonl hold, so a run that is continued goes on under the same id with
the rows that were not sent yet. All of it happens in a thread of its own, and whatever goes wrong there is said once
and then costs the run nothing: neither a step nor a result depends on it.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import pathlib
import queue
import threading
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from rw.errors import ConfigError
from rw.evaluation.history import ROW_FILES

log = logging.getLogger(__name__)

STATE = "wandb.json"  # in the workdir: the run's id, and the last step sent of each file
CLOSE_S = 60.0  # for what is still to be sent when a run has come to its end
STOP_S = 4.0  # and when it was told to stop, whose time is short


def check_installed(project: str) -> None:
    """Raises ConfigError where a project is named and the package is not there: before anything is spent."""
    if project and importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            f"log.wandb={project!r} needs the package wandb: pip install 'rw[wandb]', or set log.wandb=''"
        )


class WandbLog:
    """Sends a run's rows. Made when the run has been resumed, so that its files hold the rows up to there alone."""

    def __init__(self, project: str, workdir: pathlib.Path, config: Mapping[str, Any], step: int = 0):
        """Returns at once; the connection is made in the thread.

        Args:
            config: what the run's page shows.
            step: at which the run goes on. Rows beyond it that were sent are made again, and sent again.
        """
        self._project, self._workdir, self._config = project, workdir, config
        self._places = {name: 0 for name in ROW_FILES}  # byte from which a file is read next
        self._state = _read_state(workdir / STATE)
        self._state["sent"] = {name: min(sent, step) for name, sent in self._state["sent"].items()}
        self._work: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: look for rows; False: the run has ended
        self._thread = threading.Thread(target=self._main, name="wandb", daemon=True)
        self._thread.start()

    @property
    def run_id(self) -> str:
        """Of the run there; the same for every process that continues the run of this directory."""
        return self._state["id"]

    def send(self) -> None:
        """Has what the files hold since the last time sent, some time later."""
        self._work.put(True)

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Waits for what is to be sent, but not longer than that; the next process of the run sends what is left."""
        self._work.put(False)
        self._thread.join(wait_s)
        if self._thread.is_alive():
            log.warning("wandb is still sending after %.0f s; the run ends without it", wait_s)

    def _main(self) -> None:
        try:
            _write_state(self._workdir / STATE, self._state)  # before anyone is told the id
            run = self._begin()
            while True:
                goes_on = self._work.get()
                self._send_rows(run)
                if not goes_on:
                    run.finish()
                    return
        except Exception as error:  # a service of others: whatever it raises must not reach the run
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            log.warning("wandb gets no rows of this process (%s); metrics.jsonl has them all", reason)

    def _begin(self) -> Any:
        import wandb

        run = wandb.init(
            project=self._project,
            id=self._state["id"],
            name=self._workdir.resolve().name,
            dir=str(self._workdir),
            config=dict(self._config),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),  # a run's output is its own
        )
        run.define_metric("*", step_metric="step")  # wandb's own count would refuse a step that is made again
        return run

    def _send_rows(self, run: Any) -> None:
        for name in ROW_FILES:
            for row in self._new_rows(name):
                run.log({key: value for key, value in row.items() if _is_number(value)})
                self._state["sent"][name] = row["step"]
        _write_state(self._workdir / STATE, self._state)

    def _new_rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Whole rows that were not sent, by this process or an earlier one."""
        path = self._workdir / name
        if not path.exists():
            return
        with open(path, "rb") as file:
            file.seek(self._places[name])
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._places[name] += len(whole)
        for line in whole.splitlines():
            row = json.loads(line)
            if row["step"] > self._state["sent"].get(name, -1):
                yield row


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _read_state(path: pathlib.Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_bytes())
        if isinstance(state["id"], str) and all(isinstance(step, int) for step in state["sent"].values()):
            return state
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # a run that begins, or a file that is of no use
    return {"id": uuid.uuid4().hex[:16], "sent": {}}


def _write_state(path: pathlib.Path, state: Mapping[str, Any]) -> None:
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(state) + "\n")
    os.replace(aside, path)
