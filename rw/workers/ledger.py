"""The record of money: an append-only JSONL file, written before a reply is used and never rewritten.

Two kinds of lines, both with run, step, group, rollout, turn, call and worker:
    attempt  one for every reply that reported usage, accepted or not: their sum is what was spent;
    call     one for every logical call that sent anything: the accepted ones sum to what trajectories count as C. A
             step that is run again after a kill books its calls again; the last line of a call is the one that counts.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from rw.errors import WorkdirError
from rw.types import CallId, CallStatus

_IDENTITY = ("run", *(field.name for field in dataclasses.fields(CallId)))


class Ledger:
    """Appends to `path`; one line is one write, so that a killed process loses at most the line it was writing."""

    def __init__(self, path: str | os.PathLike[str], run: str = ""):
        self.path = pathlib.Path(path)
        self.run = run
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            self._end_torn_line()
        except OSError as error:
            raise WorkdirError(f"cannot open the ledger {self.path}: {error.strerror}") from error

    def attempt(
        self,
        call: CallId,
        worker_id: str,
        attempt: int,
        input_tokens: int | None,
        output_tokens: int | None,
        cost_usd: float | None,
        accepted: bool,
    ) -> None:
        """Books an attempt whose reply reported usage; `attempt` counts from 1."""
        usage = {"attempt": attempt, "input_tokens": input_tokens, "output_tokens": output_tokens, "cost_usd": cost_usd}
        self._append("attempt", call, worker_id, {**usage, "accepted": accepted})

    def call(
        self,
        call: CallId,
        worker_id: str,
        status: CallStatus,
        attempts: int,
        input_tokens: int | None,
        output_tokens: int | None,
        cost_usd: float | None,
        failure: str | None = None,
        detail: str = "",
    ) -> None:
        """Books a logical call, once; `detail` is the last failure in the server's words."""
        usage = {"input_tokens": input_tokens, "output_tokens": output_tokens, "cost_usd": cost_usd}
        outcome = {"accepted": status is CallStatus.OK, "status": status.value, "attempts": attempts}
        why = {"failure": failure, "detail": detail[:500]} if failure else {}
        self._append("call", call, worker_id, {**usage, **outcome, **why})

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, kind: str, call: CallId, worker_id: str, fields: Mapping[str, Any]) -> None:
        record = {"kind": kind, "run": self.run, **dataclasses.asdict(call), "worker": worker_id, **fields}
        line = (json.dumps(record) + "\n").encode()
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise WorkdirError(f"cannot write to the ledger {self.path}: {error.strerror}") from error
        if written != len(line):
            raise WorkdirError(
                f"cannot write to the ledger {self.path}: only {written} of {len(line)} bytes were taken"
            )

    def _end_torn_line(self) -> None:
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")


def read_ledger(path: str | os.PathLike[str]) -> tuple[list[dict[str, Any]], int]:
    """The ledger's records, and how many lines a kill had torn."""
    records: list[dict[str, Any]] = []
    torn = 0
    for line in pathlib.Path(path).read_text(encoding="utf-8").split("\n"):
        try:
            record = json.loads(line) if line else None
        except ValueError:
            torn += 1
            continue
        if record is not None:
            records.append(record)
    return records, torn


def spent_usd(records: Iterable[Mapping[str, Any]]) -> float:
    """Everything that Workers reported, rejected attempts too."""
    return sum(record["cost_usd"] or 0.0 for record in records if record["kind"] == "attempt")


def booked_usd(records: Iterable[Mapping[str, Any]]) -> float:
    """The accepted logical calls, each once: by the last of its lines, since a step may have been run again."""
    last = {tuple(record[name] for name in _IDENTITY): record for record in records if record["kind"] == "call"}
    return sum(record["cost_usd"] or 0.0 for record in last.values() if record["accepted"])
