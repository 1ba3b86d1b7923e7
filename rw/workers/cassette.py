"""Cassettes: a file of recorded calls, from which whole runs are replayed without a Worker, a key or a cent.

A recording is found by who asked and what: first the same call (label, step, group, rollout, turn, call) with the same
request, else any recording of that request which this run has not used yet. Each serves once: rollouts of one query
that ask the same get the several answers that were paid for, never one of them twice. What failed is replayed as
failed. Knows nothing of HTTP, keys or prices: its clients stand in front of another one, or of none.

The file holds checksummed lines, a header and then one for each call that ended; the last line of a call counts.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import functools
import logging
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rw.errors import CassetteError, FailureCause
from rw.types import CallId, CallStatus, WorkerCall
from rw.workers.call_record import describe_call, load_call
from rw.workers.config import WorkerEndpoint
from rw.workers.interface import WorkerClient, WorkerRequest, as_asked, call_and_keep, stopped_call
from rw.workers.lines import DamagedLineError, append_line, read_lines, write_line

_LOG = logging.getLogger(__name__)
FORMAT_VERSION = 1
_STOPPED_WAIT_S = 2.0  # a call that was stopped waits so long for what stopped it to happen again

MadeOf = Mapping[str, Mapping[str, Any]]  # Worker id -> what a recorded reply and its cost depend on
OnReplay = Callable[[WorkerRequest, WorkerCall], None]


def made_of(endpoints: Iterable[WorkerEndpoint]) -> MadeOf:
    """What a cassette says of its Workers; the request itself is in the digest of every recording."""
    names = ("model", "input_price", "output_price")
    return {endpoint.id: {name: getattr(endpoint, name) for name in names} for endpoint in endpoints}


@dataclasses.dataclass
class Recording:
    """How one call ended."""

    label: str
    id: CallId
    digest: str
    call: WorkerCall
    is_used: bool = False


class Cassette:
    """The recordings of one file. Opened for recording it belongs to one process, which appends to it."""

    def __init__(self, path: str | os.PathLike[str], workers: MadeOf, *, records: bool = False, begins: bool = False):
        """Reads what is there.

        Args:
            workers: those of the run: each must be the one that was recorded.
            records: whether calls will be added; otherwise the file stays as it is.
            begins: whether a file that is not there is begun, or a mistake.

        Raises:
            CassetteError: not there, in use, edited or damaged, or made of other Workers or prices.
        """
        self.path = pathlib.Path(path)
        self._exact: dict[tuple[str, CallId], Recording] = {}
        self._by_digest: dict[str, list[Recording]] = {}
        self._file = -1
        try:
            self._open(workers, records, begins)
        except OSError as error:
            self.close()
            raise CassetteError(f"cannot use the cassette {self.path}: {error.strerror}") from error
        except CassetteError:
            self.close()
            raise

    def __len__(self) -> int:
        """Calls that it holds."""
        return len(self._exact)

    def take(self, label: str, call: CallId, digest: str) -> WorkerCall | None:
        """How this very call ended when it was recorded; None where it was not, or has been used."""
        return _use(self._find(label, call, digest))

    def take_like(self, digest: str) -> WorkerCall | None:
        """The first unused recording of the same request by any other call that ended by itself."""
        ended = (r for r in self._by_digest.get(digest, ()) if r.call.status is not CallStatus.CANCELLED)
        return _use(next((recording for recording in ended if not recording.is_used), None))

    def status(self, label: str, call: CallId, digest: str) -> CallStatus | None:
        """How this very call ended, without using it; None where it was not recorded, or has been used."""
        recording = self._find(label, call, digest)
        return None if recording is None else recording.call.status

    def holds_other_request(self, label: str, call: CallId, digest: str) -> bool:
        """Whether a call of that name is there that asked something else."""
        recording = self._exact.get((label, call))
        return recording is not None and recording.digest != digest

    def write(self, label: str, call: CallId, digest: str, ended: WorkerCall) -> None:
        """Appends a call, before anyone reads its reply."""
        identity = {"label": label, "id": list(dataclasses.astuple(call)), "digest": digest}
        self._append({"kind": "call", **identity, "call": describe_call(ended)})

    def close(self) -> None:
        """Gives the file back; closing twice is harmless."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self, workers: MadeOf, records: bool, begins: bool) -> None:
        if not begins and not self.path.exists():
            raise CassetteError(
                f"no cassette at {str(self.path)!r} (seen from {pathlib.Path.cwd()}); record one first with "
                "workers.cassette_mode=record"
            )
        if records:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            self._lock()
        data = self.path.read_bytes()
        lines, whole = self._read(data)
        if whole < len(data):
            _LOG.info("%s: the last line was cut off by a kill", self.path)
            if records:
                os.ftruncate(self._file, whole)
        if lines:
            self._check_header(lines[0], workers)
        elif begins:
            self._append({"kind": "header", "format": FORMAT_VERSION, "workers": workers})
        else:
            raise CassetteError(f"the cassette {self.path} is empty; record it again")
        for number, line in enumerate(lines[1:], start=2):
            self._take_line(number, line)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CassetteError(f"another process records on the cassette {self.path}; name another file") from error

    def _read(self, data: bytes) -> tuple[list[dict[str, Any]], int]:
        try:
            return read_lines(data)
        except DamagedLineError as error:
            raise CassetteError(
                f"the cassette {self.path} is damaged or was edited: {error}; restore it or record it again"
            ) from error

    def _check_header(self, header: Mapping[str, Any], workers: MadeOf) -> None:
        if header.get("kind") != "header" or header.get("format") != FORMAT_VERSION:
            raise CassetteError(f"{self.path} is no cassette that this code reads; record it again")
        stored = header.get("workers")
        if not isinstance(stored, dict):
            raise CassetteError(f"{self.path} is no cassette but another file of checksummed lines; name another one")
        for worker_id, wanted in workers.items():
            if worker_id not in stored:
                raise CassetteError(f"the cassette {self.path} was recorded without {worker_id}; record another one")
            for name, value in wanted.items():
                if stored[worker_id].get(name) != value:
                    raise CassetteError(
                        f"the cassette {self.path} was recorded with another {name} of {worker_id}: "
                        f"{stored[worker_id].get(name)} → {value}; take the change back or record another one"
                    )

    def _take_line(self, number: int, line: Mapping[str, Any]) -> None:
        try:
            recording = Recording(line["label"], CallId(*line["id"]), line["digest"], load_call(line["call"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CassetteError(f"the cassette {self.path}, line {number}, cannot be read: {error!r}") from error
        superseded = self._exact.get((recording.label, recording.id))
        if superseded is not None:
            self._by_digest[superseded.digest].remove(superseded)
        self._exact[recording.label, recording.id] = recording
        self._by_digest.setdefault(recording.digest, []).append(recording)

    def _find(self, label: str, call: CallId, digest: str) -> Recording | None:
        recording = self._exact.get((label, call))
        matches = recording is not None and recording.digest == digest and not recording.is_used
        return recording if matches else None

    def _append(self, record: Mapping[str, Any]) -> None:
        try:
            append_line(self._file, write_line(record))
        except OSError as error:
            raise CassetteError(f"cannot write to the cassette {self.path}: {error.strerror}") from error


class CassetteRecorder:
    """Records the calls of another client.

    A call that the file holds with a reply, because an earlier process of this run was killed after it, is answered
    from there: it was paid for. One that failed or was stopped is asked again.

    Args:
        digest: of a request: of all that its answer depends on.
        label: what the calls are made for now: training, validation, an arm of the test.
        on_replay: told of every call that was answered from the cassette.
    """

    def __init__(
        self,
        client: WorkerClient,
        cassette: Cassette,
        digest: Callable[[WorkerRequest], str],
        label: Callable[[], str],
        on_replay: OnReplay = lambda request, call: None,
    ):
        self._client, self._cassette = client, cassette
        self._digest, self._label, self._on_replay = digest, label, on_replay

    async def call(self, request: WorkerRequest) -> WorkerCall:
        """One logical call; its line is written before it is returned."""
        identity = self._label(), request.id, self._digest(request)
        if self._cassette.status(*identity) is CallStatus.OK:
            kept = as_asked(self._cassette.take(*identity), request)
            self._on_replay(request, kept)
            return kept
        try:
            return await call_and_keep(self._client, request, functools.partial(self._cassette.write, *identity))
        except asyncio.CancelledError:
            self._cassette.write(*identity, stopped_call(request))
            raise

    async def close(self) -> None:
        """Closes the client behind it; the cassette belongs to its opener."""
        await self._client.close()


class CassettePlayer:
    """Answers calls from a cassette.

    Args:
        digest, label, on_replay: as for `CassetteRecorder`.
        live: asked for what the cassette lacks; None makes that an error.
    """

    def __init__(
        self,
        cassette: Cassette,
        digest: Callable[[WorkerRequest], str],
        label: Callable[[], str],
        on_replay: OnReplay = lambda request, call: None,
        live: WorkerClient | None = None,
    ):
        self._cassette, self._live = cassette, live
        self._digest, self._label, self._on_replay = digest, label, on_replay

    async def call(self, request: WorkerRequest) -> WorkerCall:
        """One logical call; CassetteError where it was never recorded and nobody may be asked."""
        label, digest = self._label(), self._digest(request)
        if self._cassette.status(label, request.id, digest) is CallStatus.CANCELLED:
            if self._live is not None:
                return await self._live.call(request)
            return await _stop_again(request)
        found = self._cassette.take(label, request.id, digest) or self._cassette.take_like(digest)
        if found is not None:
            kept = as_asked(found, request)
            self._on_replay(request, kept)
            return kept
        if self._live is None:
            raise self._miss(label, request, digest)
        return await self._live.call(request)

    async def close(self) -> None:
        """Closes the live client, if there is one."""
        if self._live is not None:
            await self._live.close()

    def _miss(self, label: str, request: WorkerRequest, digest: str) -> CassetteError:
        place = "/".join(str(number) for number in dataclasses.astuple(request.id))
        asked = " ".join(request.subquery.split())[:60]
        other = self._cassette.holds_other_request(label, request.id, digest)
        why = "what it holds under that name was asked something else" if other else "the recording has no such call"
        return CassetteError(
            f"the cassette {self._cassette.path} has no reply of {request.worker_id} to {label} call {place} "
            f"({asked!r}): {why}; record it again, or let --allow-live ask and pay for what is missing"
        )


def _use(recording: Recording | None) -> WorkerCall | None:
    if recording is None:
        return None
    recording.is_used = True
    return recording.call


async def _stop_again(request: WorkerRequest) -> WorkerCall:
    """A call that was stopped when it was recorded: by the failure of a sibling, which is replayed meanwhile and stops
    it again; or by its rollout's deadline, which is not waited for."""
    await asyncio.sleep(_STOPPED_WAIT_S)
    return dataclasses.replace(stopped_call(request), status=CallStatus.FAILED, failure=FailureCause.DEADLINE.value)
