"""What the processes of a job tell each other on the host: shares, results, stops, signs of life.

Whatever changes what a process does next is agreed on in rounds: each posts a value, or that it has to stop, and reads
what all others posted. So all go on or all stop, and none waits in a device program for one that has left. Messages go
through the coordinator's key-value store; no device takes part, and an event loop may wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import io
import json
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import jax
from jax._src import distributed  # whose key-value store has no public name

from rw.cli import NO_ROOM
from rw.cluster import START_TIMEOUT_S, Membership, join, leave
from rw.compile_cache import keep_programs
from rw.errors import OutageError, RwError, TrainingDivergedError
from rw.interrupts import StopRequested

T = TypeVar("T")
LOST_EXIT_CODE = 8
HEARTBEAT_S = 1.0
LOST_AFTER_S = 30.0
_POLL_S = 2.0
# Errors that every process raises at the same place, since they follow from what all of them know.
_RAISED_BY_ALL = (OutageError, TrainingDivergedError)
# What may be read back from a message. Pickle alone would run whatever a message names.
_TYPES_OF = ("rw.types", "rw.workers.spending", "rw.workers.budget")
_NUMPY = {
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


class Board(Protocol):
    """A store of bytes by key that all processes of a job see."""

    def put(self, key: str, value: bytes) -> None:
        """Writes a value, over one that is there."""

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """The value, or None where there is none within that time."""

    def look(self, prefix: str) -> dict[str, bytes]:
        """All keys that begin so, with their values."""

    def remove(self, key: str) -> None:
        """Removes a key that is there."""


class CoordinatorBoard:
    """The key-value store of jax's coordination service."""

    def __init__(self, client: Any):
        self._client = client

    def put(self, key: str, value: bytes) -> None:
        """Writes a value, over one that is there."""
        self._client.key_value_set_bytes(key, value, allow_overwrite=True)

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """The value, or None where there is none within that time."""
        try:
            return self._client.blocking_key_value_get_bytes(key, int(1000 * timeout_s))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise

    def look(self, prefix: str) -> dict[str, bytes]:
        """All keys that begin so, with their values."""
        return dict(self._client.key_value_dir_get_bytes(prefix))

    def remove(self, key: str) -> None:
        """Removes a key that is there."""
        self._client.key_value_delete(key)


class StoppedElsewhere(StopRequested):
    """Another process of the job has to stop, and so do all."""

    def __init__(self, text: str, exit_code: int):
        Exception.__init__(self, text)
        self.exit_code = exit_code


class Processes:
    """This process among those of its job. Without a board it is alone, and every round is over at once."""

    def __init__(
        self, index: int = 0, count: int = 1, board: Board | None = None, *, lost_after_s: float = LOST_AFTER_S
    ):
        self.index, self.count = index, count
        self._board, self._lost_after_s = board, lost_after_s
        self._round = 0
        self._agreed: BaseException | None = None
        self.exit_code = LOST_EXIT_CODE  # with which this process ends should the coordinator go from under it
        self._closed = threading.Event()
        self._watch: threading.Thread | None = None

    @property
    def is_alone(self) -> bool:
        """Whether there is no other process."""
        return self.count == 1

    @property
    def is_first(self) -> bool:
        """Whether it is this one that writes what a run leaves once."""
        return self.index == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part: consecutive items, as many for each process as can be."""
        part, extra = divmod(len(items), self.count)
        start = self.index * part + min(self.index, extra)
        return items[start : start + part + (self.index < extra)]

    def others(self, values: Sequence[T]) -> list[T]:
        """Those of one value a process that are not this one's."""
        return [value for index, value in enumerate(values) if index != self.index]

    async def exchange(self, value: Any) -> list[Any]:
        """The values of all processes in order of index. Each calls it the same number of times.

        Raises StoppedElsewhere where a process called `stop_together` instead.
        """
        if self.is_alone:
            return [value]
        return await self._round_of(("value", value))

    async def of_first(self, function: Callable[[], T]) -> T:
        """What the function returns on the first process, for all; it is called nowhere else."""
        return (await self.exchange(function() if self.is_first else None))[0]

    async def stop_together(self, error: StopRequested | RwError) -> None:
        """Takes part in the next round by saying that this process has to stop; raises `error`.

        The others are told at once, so that they do not finish what they are waiting for.
        """
        if not self.is_alone:
            text = str(error) if isinstance(error, StoppedElsewhere) else f"process {self.index}: {error}"
            self.tell(text, error.exit_code)
            try:
                await self._round_of(("stop", (text, error.exit_code)))
            except StoppedElsewhere:
                self._agreed = error
        raise error

    async def _round_of(self, message: tuple[str, Any]) -> list[Any]:
        self._round += 1
        key = f"rw/round/{self._round}/"
        await asyncio.to_thread(self._board.put, f"{key}{self.index}", pickle.dumps(message, protocol=5))
        messages = [await self._read(f"{key}{index}") for index in range(self.count)]
        if self._round > 1:  # who posted in this round has read all of the one before
            await asyncio.to_thread(self._board.remove, f"rw/round/{self._round - 1}/{self.index}")
        for kind, content in messages:
            if kind == "stop":
                self._agreed = StoppedElsewhere(*content)
                raise self._agreed
        return [content for _, content in messages]

    async def _read(self, key: str) -> tuple[str, Any]:
        while True:
            found = await asyncio.to_thread(self._board.get, key, _POLL_S)
            if found is not None:
                return _unpickled(found)

    def tell(self, text: str, exit_code: int) -> None:
        """Tells the others that all have to stop, and why."""
        self.exit_code = exit_code
        self._board.put("rw/word/stop", json.dumps([text, exit_code]).encode())

    def is_agreed(self, error: BaseException | None) -> bool:
        """Whether all processes end for this reason, so that they can still do something together."""
        return self.is_alone or error is None or error is self._agreed or isinstance(error, _RAISED_BY_ALL)

    def watch(
        self, on_stop: Callable[[StopRequested], None], asked: Callable[[], StopRequested | None] = lambda: None
    ) -> None:
        """From now on, shows that this process lives, looks whether the others do, and passes stops on: those of others
        to `on_stop`, and to the others, within a second, what this process was `asked`.

        Where one is lost this process ends at once with LOST_EXIT_CODE: what it waits for on a device may never come,
        and what it has sampled and paid for is in its journal.
        """
        if not self.is_alone:
            _catch_abort(self._end_by_abort)
            self._watch = threading.Thread(target=self._watching, args=(on_stop, asked), name="processes", daemon=True)
            self._watch.start()

    def _watching(self, on_stop: Callable[[StopRequested], None], asked: Callable[[], StopRequested | None]) -> None:
        seen: dict[str, tuple[bytes, float]] = {}
        count, told = 0, False
        while not self._closed.wait(HEARTBEAT_S):
            count += 1
            try:
                if not told and (own := asked()) is not None:  # what it does now may outlast its grace
                    told = True
                    self.tell(f"process {self.index}: {own}", own.exit_code)
                self._board.put(f"rw/alive/{self.index}", str(count).encode())
                signs = {key.rpartition("/")[2]: sign for key, sign in self._board.look("rw/alive/").items()}
                words = {key.rpartition("/")[2]: word for key, word in self._board.look("rw/word/").items()}
            except jax.errors.JaxRuntimeError as error:
                _end(
                    "the coordinator, process 0, cannot be reached: " + " ".join(str(error).split())[:120],
                    self.exit_code,
                )
            now = time.monotonic()
            if "gone" in words:
                text, exit_code = json.loads(words["gone"])
                _end(f"{text}", exit_code)
            if "stop" in words and not told:
                told = True
                stop = StoppedElsewhere(*json.loads(words["stop"]))
                self.exit_code = stop.exit_code
                on_stop(stop)
            for index, sign in signs.items():  # of one that has not begun yet jax itself takes care
                if index not in seen or seen[index][0] != sign:
                    seen[index] = (sign, now)
                elif sign != b"left" and now - seen[index][1] > self._lost_after_s:
                    self._end_all(index, now - seen[index][1])

    def _end_by_abort(self) -> None:
        """Where XLA aborts this process, because process 0 has gone or another one was started again while its
        predecessor was still a member: says so, and ends as one that lost another."""
        host, _, port = distributed.global_state.coordinator_address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
        except OSError:
            _end("the coordinator, process 0, was lost", self.exit_code)
        _end("aborted, most likely since another process was lost, or started a second time", self.exit_code)

    def _end_all(self, lost: str, silent_s: float) -> None:
        text = f"process {lost} of {self.count} was lost: no sign of life for {silent_s:.0f} s"
        self._board.put("rw/word/gone", json.dumps([text, LOST_EXIT_CODE]).encode())
        if self.is_first:  # its end takes the store away from which the others learn why
            time.sleep(4 * HEARTBEAT_S)
        _end(text)

    def wait_for_cause(self) -> None:
        """After an error of a device program: where it broke off because another process has gone, this one ends too,
        once that is certain. Returns where none has."""
        if self._watch is not None:
            if self.exit_code != LOST_EXIT_CODE:
                _end("another process stopped before a program of all was through", self.exit_code)
            self._watch.join(self._lost_after_s + 4 * HEARTBEAT_S)

    def close(self, error: BaseException | None = None) -> None:
        """Ends the watch. `error` is what ends this process: the others end too, unless they agreed on it."""
        if not self.is_agreed(error):  # also before the watch began: the others wait for this one
            text = f"process {self.index} failed: {type(error).__name__}: {error}"
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # where the board has gone, so have they
                self._board.put("rw/word/gone", json.dumps([text, _line_and_code(error)[1]]).encode())
                time.sleep(4 * HEARTBEAT_S if self.is_first else 0)
        if self._watch is None:
            return
        self._closed.set()
        self._watch.join()
        self._board.put(f"rw/alive/{self.index}", b"left")
        self._watch = None


@contextlib.contextmanager
def joined(place: Membership) -> Iterator[Processes]:
    """The processes of the job that `place` belongs to, until the body ends.

    Raises ConfigError where they do not find one another.
    """
    if place.count != 1:
        text = f"{place}: the others did not come within {START_TIMEOUT_S} s, or have gone"
        _catch_abort(functools.partial(_end, text))
    with _ended_by_ctrl_c():
        is_joined = join(place)
    keep_programs()
    if not is_joined:
        yield Processes()
        return
    processes = Processes(jax.process_index(), jax.process_count(), CoordinatorBoard(distributed.global_state.client))
    try:
        yield processes
    except BaseException as error:
        if isinstance(error, jax.errors.JaxRuntimeError):
            processes.wait_for_cause()
        processes.close(error)
        if not processes.is_agreed(error):  # the others do not wait for this one, and it need not for them
            _end_with(error)
        leave()
        raise
    processes.close()
    leave()


@contextlib.contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """Lets a SIGINT end this process at once, which Python would only hear of once jax has done waiting for others."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_with(error: BaseException) -> None:
    """Ends this process as `error` would: to part from the others in order would wait for those that have gone."""
    line, code = _line_and_code(error)
    if line is None:
        traceback.print_exception(error)
    else:
        sys.stderr.write(f"rw: error: {line}\n")
    sys.stderr.flush()
    os._exit(code)


def _line_and_code(error: BaseException) -> tuple[str | None, int]:
    """What the entry says of an error, None where that is a traceback, and its exit code."""
    if isinstance(error, RwError):
        return str(error), error.exit_code
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return f"{error}; make room, and give the same command again", RwError.exit_code
    return None, 1


def _catch_abort(function: Callable[[], None]) -> None:
    """Calls the function, in whatever thread it is, when this process aborts, which it does if the function returns.

    Python's own handlers run in the main thread and some time later; there is none after an abort.
    """

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def handler(_number: int) -> None:
        function()

    _HANDLERS.append(handler)  # it must outlive this call
    ctypes.CDLL(None).signal(signal.SIGABRT, handler)


_HANDLERS: list[Any] = []


def _end(text: str, exit_code: int = LOST_EXIT_CODE) -> None:
    again = "; the same command, with this number of processes or another, continues the run"
    sys.stderr.write(f"rw: {text}: this process ends as well{again if exit_code == LOST_EXIT_CODE else ''}\n")
    sys.stderr.flush()
    os._exit(exit_code)


def _unpickled(data: bytes) -> Any:
    return _Unpickler(io.BytesIO(data)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in _TYPES_OF or (module, name) in _NUMPY:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"a message of another process names {module}.{name}, which none of ours does")
