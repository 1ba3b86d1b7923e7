"""The record of money: an append-only JSONL file, written before a reply is used and never rewritten.

Four kinds of lines, all with run, step, group, rollout, turn, call, worker, mode and query:
    sent      one before every attempt that may cost something, with its worst case: what a kill leaves without an
              ending may have been billed, and is booked as unknown when the ledger is opened again;
    attempt   one for every attempt that reported usage, accepted or not, or that may have been billed unseen: then
              `unknown_usd` is its worst case; `cost_usd` and `unknown_usd` of all sum to what was spent;
    call      one for every logical call that sent anything: the accepted ones sum to what trajectories count as C. A
              step that is run again after a kill books its calls again; the last line of a call is the one that counts;
    replayed  one for every call that a journal or a cassette answered: what it cost when it was paid, and not again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from rw.errors import WorkdirError
from rw.types import CallId, CallStatus, Mode
from rw.workers.lines import append_line
from rw.workers.spending import Record, Spent, attempt_usd, identity, is_sound


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
        self.spent = Spent()  # of the whole file, earlier processes too
        records, _ = read_ledger(self.path)
        for record in records:
            self.spent.add(record)
        for sent in unended(records):
            self._write(_killed(sent))

    def sent(
        self,
        call: CallId,
        worker_id: str,
        attempt: int,
        worst_case_usd: float,
        mode: Mode | None = None,
        query_id: str = "",
    ) -> None:
        """Notes an attempt that is about to be sent; `attempt` counts from 1."""
        fields = {"attempt": attempt, "worst_case_usd": worst_case_usd}
        self._append("sent", call, worker_id, mode, query_id, fields)

    def attempt(
        self,
        call: CallId,
        worker_id: str,
        attempt: int,
        input_tokens: int | None,
        output_tokens: int | None,
        cost_usd: float | None,
        accepted: bool,
        unknown_usd: float = 0.0,
        failure: str | None = None,
        mode: Mode | None = None,
        query_id: str = "",
    ) -> None:
        """Books an attempt that reported usage, or that may have been billed: its worst case is then `unknown_usd`."""
        usage = {"input_tokens": input_tokens, "output_tokens": output_tokens, "cost_usd": cost_usd}
        fields = {"attempt": attempt, **usage, "unknown_usd": unknown_usd, "accepted": accepted}
        self._append("attempt", call, worker_id, mode, query_id, {**fields, **_why(failure)})

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
        mode: Mode | None = None,
        query_id: str = "",
    ) -> None:
        """Books a logical call, once; `detail` is the last failure in the server's words."""
        usage = {"input_tokens": input_tokens, "output_tokens": output_tokens, "cost_usd": cost_usd}
        outcome = {"accepted": status is CallStatus.OK, "status": status.value, "attempts": attempts}
        self._append("call", call, worker_id, mode, query_id, {**usage, **outcome, **_why(failure, detail)})

    def replayed(
        self,
        call: CallId,
        worker_id: str,
        cost_usd: float | None,
        source: str,
        mode: Mode | None = None,
        query_id: str = "",
    ) -> None:
        """Notes a call that was paid before and is answered from `source`, "journal" or "cassette"."""
        self._append("replayed", call, worker_id, mode, query_id, {"cost_usd": cost_usd, "source": source})

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(
        self, kind: str, call: CallId, worker_id: str, mode: Mode | None, query_id: str, fields: Mapping[str, Any]
    ) -> None:
        whose = {"worker": worker_id, "mode": None if mode is None else mode.word, "query": query_id}
        self._write({"kind": kind, "run": self.run, **dataclasses.asdict(call), **whose, **fields})

    def _write(self, record: Record) -> None:
        try:
            append_line(self._file, (json.dumps(record) + "\n").encode())
        except OSError as error:
            raise WorkdirError(f"cannot write to the ledger {self.path}: {error.strerror}") from error
        self.spent.add(record)

    def _end_torn_line(self) -> None:
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")


def _why(failure: str | None, detail: str | None = None) -> dict[str, Any]:
    if not failure:
        return {}
    return {"failure": failure} | ({} if detail is None else {"detail": detail[:500]})


def read_ledger(path: str | os.PathLike[str]) -> tuple[list[dict[str, Any]], int]:
    """The ledger's records, and how many lines a kill had torn; the file may be one that a run is writing to.

    Raises:
        WorkdirError: a whole line is none of a ledger, or holds an amount that is none: it may have been edited.
    """
    records: list[dict[str, Any]] = []
    torn = 0
    for number, line in enumerate(pathlib.Path(path).read_bytes().split(b"\n"), start=1):
        if not line:
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # cut short, or no text at all
            torn += 1
            continue
        if not is_sound(record):
            raise WorkdirError(
                f"line {number} of {path} is none of a ledger; restore it, or take it out if its money need not count"
            )
        records.append(record)
    return records, torn


def unended(records: Iterable[Record]) -> list[Record]:
    """The `sent` lines of attempts that no later line of their call ends."""
    open_attempts: dict[tuple, Record] = {}
    for record in records:
        if record["kind"] == "sent":
            open_attempts[identity(record)] = record  # the one before it cost nothing, or a line would have said so
        elif record["kind"] in ("attempt", "call"):
            open_attempts.pop(identity(record), None)
    return list(open_attempts.values())


def _killed(sent: Record) -> dict[str, Any]:
    """The attempt that was in flight when the process was killed, as it is booked afterwards."""
    nothing = {"input_tokens": None, "output_tokens": None, "cost_usd": None}
    outcome = {"unknown_usd": sent["worst_case_usd"], "accepted": False, "failure": "killed"}
    whose = {name: value for name, value in sent.items() if name != "worst_case_usd"}
    return {**whose, "kind": "attempt", **nothing, **outcome}


def spent_usd(records: Iterable[Record]) -> float:
    """Everything that Workers reported, rejected attempts too, and the worst case of what they may have billed."""
    return math.fsum(map(attempt_usd, records))


def booked_usd(records: Iterable[Record]) -> float:
    """The accepted logical calls, each once: by the last of its lines, since a step may have been run again."""
    last = {identity(record): record for record in records if record["kind"] == "call"}
    return math.fsum(record["cost_usd"] or 0.0 for record in last.values() if record["accepted"])
