"""The journal of what was sampled and what was paid for, so that a killed run neither samples nor pays again.

One journal covers one scope: the rollouts of a step, of a validation, of an arm of the final evaluation. Its events, in
the order in which they happen to a rollout:

    turn      a router turn as sampled, with the digest of the context it was sampled on;
    intent    a call about to be sent, with the digest of its request;
    response  how the call ended; the reply is used only after this line is written;
    feedback  what the router was told of the program in a reply, which another run of it might not repeat;
    final     how the rollout ended, with its verdict.

A restart reads them back: a journaled turn is not sampled again, an answered call is not sent again, and neither serves
anything but the context or request that it belongs to. Knows neither samplers nor HTTP nor money nor the learner.

Files: `<scope>/segment_000001.jsonl`, … of checksummed lines, each beginning with a header. A segment is closed a few
seconds after its first event, since some file systems (buckets) hold only closed files: what was written is safe from a
kill at once, and from the loss of the machine when its segment is closed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import hashlib
import logging
import os
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from rw.errors import JournalError
from rw.types import CallId, CallStatus, WorkerCall
from rw.workers.call_record import describe_call, load_call
from rw.workers.lines import DamagedLineError, append_line, read_lines, write_line

_LOG = logging.getLogger(__name__)
FORMAT_VERSION = 1
PREFIX, SUFFIX = "segment_", ".jsonl"


@dataclasses.dataclass(frozen=True)
class JournaledTurn:
    """A router turn as it was sampled: ids i32[n], log-probs f32[n], why it stopped."""

    tokens: np.ndarray
    logprobs: np.ndarray
    stop: str


def context_digest(tokens: np.ndarray) -> str:
    """sha256 (hex) of a context, i32[T]."""
    return hashlib.sha256(np.ascontiguousarray(tokens, np.int32).tobytes()).hexdigest()


class Journal:
    """The events of one scope, those of earlier processes read back. Belongs to one process and one thread."""

    def __init__(
        self,
        directory: str | os.PathLike,
        header: Mapping[str, str],
        *,
        segment_s: float = 5.0,
        also: Sequence[str | os.PathLike] = (),
    ):
        """Reads what is there.

        Args:
            header: fingerprints of all that its events depend on, by name.
            segment_s: seconds after its first event at which a segment is closed.
            also: directories of the same scope that other processes wrote, which are read first: what one of them
                rolled out may now be this one's.

        Raises:
            JournalError: damaged, or written under another header; names the file and the remedy.
        """
        self.directory = pathlib.Path(directory)
        self._header = {"kind": "header", "format": FORMAT_VERSION, **header}
        self._segment_s = segment_s
        self._turns: dict[tuple[str, int, int], tuple[str, JournaledTurn]] = {}
        self._responses: dict[CallId, tuple[str, WorkerCall]] = {}
        self._feedback: dict[CallId, tuple[str, str]] = {}
        self._finals: dict[tuple[str, int], dict[str, Any]] = {}
        self._verdicts: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._file: int | None = None  # descriptor of the open segment
        self._closing: list[Future] = []
        self._timer: asyncio.TimerHandle | None = None
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rw-journal")
        self._next_segment = 1
        for folder in (*map(pathlib.Path, also), self.directory):
            self._next_segment = self._read_segments(folder) + 1

    def turn(self, query_id: str, rollout: int, turn: int, context: str) -> JournaledTurn | None:
        """The turn sampled on the context of that digest, if there is one."""
        sampled_on, found = self._turns.get((query_id, rollout, turn), (None, None))
        return found if sampled_on == context else None

    def write_turn(self, query_id: str, rollout: int, turn: int, context: str, sampled: JournaledTurn) -> None:
        """Keeps a turn, before it is used."""
        arrays = {
            "tokens": _pack(np.asarray(sampled.tokens, "<i4")),
            "logprobs": _pack(np.asarray(sampled.logprobs, "<f4")),
        }
        place = {"query": query_id, "rollout": rollout, "turn": turn}
        self._write({"kind": "turn", **place, "context": context, **arrays, "stop": str(sampled.stop)})

    def response(self, call: CallId, digest: str) -> WorkerCall | None:
        """How the call of that request ended; None where it has not, or where another request was made under its id."""
        asked, found = self._responses.get(call, (None, None))
        return found if asked == digest else None

    def write_intent(self, call: CallId, worker_id: str, digest: str) -> None:
        """Keeps that a call is about to be sent, before it is."""
        self._write({"kind": "intent", **_place(call), "worker": worker_id, "digest": digest})

    def write_response(self, call: CallId, digest: str, response: WorkerCall) -> None:
        """Keeps how a call ended, before anyone reads its reply."""
        self._write({"kind": "response", **_place(call), "digest": digest, "response": describe_call(response)})

    def feedback(self, call: CallId, reply: str) -> str | None:
        """What the router was told of that reply to that call; None where it was told nothing yet."""
        told_of, found = self._feedback.get(call, (None, None))
        return found if told_of == _digest(reply) else None

    def write_feedback(self, call: CallId, reply: str, told: str) -> None:
        """Keeps what the router will be told, before it is."""
        self._write({"kind": "feedback", **_place(call), "reply": _digest(reply), "told": told})

    def verdict(self, query_id: str, answer: str, question: str = "") -> dict[str, Any] | None:
        """The verdict on an answer to a query, if it was journaled; `question` is the digest of all that it is judged
        by."""
        return self._verdicts.get((query_id, question, _digest(answer)))

    def write_final(
        self,
        query_id: str,
        rollout: int,
        status: str,
        answer: str | None,
        verdict: Mapping[str, Any] | None,
        question: str = "",
    ) -> None:
        """Keeps how a rollout ended; `verdict` as plain JSON types, None where nothing was judged, of that question."""
        ended = {"status": status, "answer": None if answer is None else _digest(answer), "verdict": verdict}
        record = {"kind": "final", "query": query_id, "question": question, "rollout": rollout, **ended}
        if self._finals.get((query_id, rollout)) != record:  # as it is when the rollout was rebuilt from the journal
            self._write(record)

    def forget_failures(self) -> None:
        """From now on, also for later processes, calls that failed so far count as never made."""
        self._write({"kind": "forget_failures"})

    def close(self) -> None:
        """Closes the open segment and waits until all of them are on the disk."""
        self._end_segment()
        self._threads.shutdown()
        self._check_closing()

    def _write(self, record: Mapping[str, Any]) -> None:
        self._take(record)
        line = write_line(record)
        try:
            if self._file is None:
                self._begin_segment()
            append_line(self._file, line)
        except OSError as error:
            raise JournalError(f"cannot write to the journal {self.directory}: {error.strerror}") from error

    def _begin_segment(self) -> None:
        self._check_closing()
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{PREFIX}{self._next_segment:06d}{SUFFIX}"
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        self._next_segment += 1
        try:
            append_line(file, write_line(self._header))
        except OSError:
            os.close(file)
            raise
        self._file = file
        with contextlib.suppress(RuntimeError):  # without a loop it is closed in the end
            self._timer = asyncio.get_running_loop().call_later(self._segment_s, self._end_segment)

    def _end_segment(self) -> None:
        """Closes the open segment in a thread: a slow disk must not hold up the event loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._file is not None:
            self._closing.append(self._threads.submit(_sync_and_close, self._file))
            self._file = None

    def _check_closing(self) -> None:
        done = [future for future in self._closing if future.done()]
        self._closing = [future for future in self._closing if future not in done]
        for future in done:
            if (error := future.exception()) is not None:
                raise JournalError(f"cannot write to the journal {self.directory}: {error}") from error

    def _read_segments(self, folder: pathlib.Path) -> int:
        """Reads all segments of a directory; the number of the last one."""
        last = 0
        for path in sorted(folder.glob(f"{PREFIX}*{SUFFIX}")):
            number = path.stem.removeprefix(PREFIX)
            if not number.isdecimal():
                raise JournalError(f"{path} is no segment of this journal; remove it")
            self._read_segment(path)
            last = int(number)
        return last

    def _read_segment(self, path: pathlib.Path) -> None:
        try:
            data = path.read_bytes()
            records, whole = read_lines(data)
        except OSError as error:
            raise JournalError(f"cannot read the journal {path}: {error.strerror}") from error
        except DamagedLineError as error:
            raise JournalError(
                f"the journal {path} is damaged: {error}; restore it, or remove {self.directory} to sample and pay for "
                "this part of the run again"
            ) from error
        if whole < len(data):
            _LOG.info("%s: the last line was cut off by a kill", path)
        if records:
            self._check_header(path, records[0])
        for number, record in enumerate(records[1:], start=2):
            try:
                self._take(record)
            except (KeyError, TypeError, ValueError) as error:
                raise JournalError(f"the journal {path}, line {number}, cannot be read: {error!r}") from error

    def _check_header(self, path: pathlib.Path, stored: Mapping[str, Any]) -> None:
        names = [name for name in {**stored, **self._header} if stored.get(name) != self._header.get(name)]
        if names:
            raise JournalError(
                f"the journal {path} was written with another {', '.join(names)}; take the change back, or remove "
                f"{self.directory} to sample and pay for this part of the run again"
            )

    def _take(self, record: Mapping[str, Any]) -> None:
        """What an event changes: the same whether it happens now or is read back."""
        kind = record["kind"]
        if kind == "turn":
            turn = JournaledTurn(
                _unpack(record["tokens"], "<i4").astype(np.int32),
                _unpack(record["logprobs"], "<f4").astype(np.float32),
                record["stop"],
            )
            self._turns[record["query"], record["rollout"], record["turn"]] = (record["context"], turn)
        elif kind == "intent":
            pass  # it may have been sent or not; the ledger says what it may have cost
        elif kind == "response":
            self._responses[_call(record)] = (record["digest"], load_call(record["response"]))
        elif kind == "feedback":
            self._feedback[_call(record)] = (record["reply"], record["told"])
        elif kind == "final":
            self._finals[record["query"], record["rollout"]] = dict(record)
            if record["verdict"] is not None and record["answer"] is not None:
                place = (record["query"], record.get("question", ""), record["answer"])
                self._verdicts[place] = record["verdict"]
        elif kind == "forget_failures":
            self._responses = {k: v for k, v in self._responses.items() if v[1].status is CallStatus.OK}
        else:
            raise ValueError(f"unknown event {kind!r}")


class Journals:
    """The journals of a run, one directory a scope, below `<workdir>/journal`."""

    def __init__(
        self,
        directory: str | os.PathLike,
        header: Mapping[str, str],
        *,
        segment_s: float = 5.0,
        also: Sequence[pathlib.Path] = (),
        retired: Sequence[pathlib.Path] = (),
    ):
        """`also`: directories of other processes, whose journals are read; `retired`: those of them that no process of
        this job has and this one clears up after."""
        self.directory = pathlib.Path(directory)
        self._header, self._segment_s = dict(header), segment_s
        self._also, self._retired = tuple(also), tuple(retired)

    def identify(self, **fingerprints: str) -> None:
        """Adds to what every journal opened from now on depends on."""
        self._header.update(fingerprints)

    def open(self, scope: str) -> Journal:
        """The journal of that scope, begun or continued."""
        header, also = {**self._header, "scope": scope}, [folder / scope for folder in self._also]
        return Journal(self.directory / scope, header, segment_s=self._segment_s, also=also)

    def discard(self, scope: str) -> None:
        """Removes a scope whose results are kept elsewhere; one that is not there is ignored."""
        for folder in (self.directory, *self._retired):
            shutil.rmtree(folder / scope, ignore_errors=True)

    def scopes(self) -> list[str]:
        """Names of the scopes that are there."""
        folders = (self.directory, *self._retired)
        return sorted({path.name for folder in folders for path in folder.glob("*") if path.is_dir()})


def _sync_and_close(file: int) -> None:
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _place(call: CallId) -> dict[str, Any]:
    return {"call": [call.step, call.group, call.rollout, call.turn, call.call]}


def _call(record: Mapping[str, Any]) -> CallId:
    return CallId(*record["call"])


def _pack(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _unpack(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype)
