"""SIGTERM, SIGINT and a file named STOP as an orderly end.

What waits for Workers is cancelled, what computes is finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rw.errors import StopFileError

T = TypeVar("T")
SIGNALS = (signal.SIGTERM, signal.SIGINT)
PREEMPTED = 128 + signal.SIGTERM  # the exit code after which a scheduler starts a run again
STOP_FILE = "STOP"  # in a run's workdir
_POLL_S = 1.0
_REPEAT_S = 1.0  # whoever stops a group of processes and its leader, too, sends a signal twice at once


class StopRequested(Exception):
    """Someone asked the run to stop; `exit_code` is the shell's convention, 128 + signal number."""

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class StopFileFound(StopRequested):
    """The file that asks a run to stop lies in its workdir."""

    def __init__(self, path: pathlib.Path):
        Exception.__init__(self, f"stopped by {path}, which keeps the run from starting again until it is removed")
        self.exit_code = StopFileError.exit_code


class Interrupts:
    """Turns what asks for the end into StopRequested at the next `check` or during `guard`; a second signal
    that comes more than a moment later kills.

    `run_in_loop` makes it and sends it the signals. `grace_s`: who sends SIGTERM waits so long before it kills, and a
    step on a large model takes longer; a process that is not through by then ends as it stands. None: no such limit.
    """

    def __init__(self):
        self.grace_s: float | None = None
        self._last_call: threading.Timer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # from `listen` on
        self._asked = asyncio.Event()
        self._stop: StopRequested | None = None

    def listen(self) -> None:
        """Belongs to the running loop from now on."""
        self._loop = asyncio.get_running_loop()
        if self._stop is not None:  # asked before anyone listened
            self._asked.set()

    def ask(self, number: int) -> None:
        """Asks for the end, as the signal of that number does; from any thread."""
        self.ask_with(StopRequested(number))

    def ask_with(self, stop: StopRequested) -> None:
        """Asks for the end, for which `stop` gives the reason; from any thread."""
        self._stop = stop
        if self.grace_s is not None and self._last_call is None and stop.exit_code == PREEMPTED:
            self._last_call = threading.Timer(self.grace_s, _end_as_it_stands, (stop, self.grace_s))
            self._last_call.daemon = True
            self._last_call.start()
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._asked.set)

    def close(self) -> None:
        """The process is through, or ends otherwise: from now on it has the time that it takes."""
        self.grace_s = None
        if self._last_call is not None:
            self._last_call.cancel()

    @property
    def asked(self) -> StopRequested | None:
        """Why someone asked for the end; None where nobody has."""
        return self._stop

    def check(self) -> None:
        """Raises StopRequested if someone asked for the end."""
        if self._asked.is_set():
            raise self._stop

    async def watch(self, path: pathlib.Path) -> None:
        """Asks for the end once the file is there. In a thread: a slow file system must not hold up the loop."""
        while not await asyncio.to_thread(os.path.exists, path):
            await asyncio.sleep(_POLL_S)
        self.ask_with(StopFileFound(path))

    async def guard(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Awaits the coroutine; a stop cancels it, waits until it has ended and raises StopRequested."""
        task = asyncio.create_task(coroutine)
        asked = asyncio.create_task(self._asked.wait())
        try:
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self.check()
        return task.result()


def run_in_loop(body: Callable[[Interrupts], Awaitable[T]]) -> T:
    """Runs `body` in an event loop of its own and waits for its end; SIGTERM and SIGINT reach it meanwhile.

    Where this thread runs a loop already, as a notebook's kernel does, `body` gets a thread of its own. The stop button
    of a notebook is a SIGINT.
    """
    interrupts = Interrupts()

    async def listening() -> T:
        interrupts.listen()
        return await body(interrupts)

    with _signals_sent_to(interrupts), contextlib.closing(interrupts):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(listening())
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="rw-run") as thread:
            return thread.submit(asyncio.run, listening()).result()


def _end_as_it_stands(stop: StopRequested, grace_s: float) -> None:
    sys.stderr.write(
        f"rw: {stop}, and still busy {grace_s:.0f} s later: this process ends as it stands; the same command goes on "
        "from the last checkpoint and the journal, and nothing is sampled or paid for twice\n"
    )
    sys.stderr.flush()
    os._exit(stop.exit_code)


@contextlib.contextmanager
def _signals_sent_to(interrupts: Interrupts) -> Iterator[None]:
    """The first signal is sent on, repeats within _REPEAT_S are dropped, and the next finds what was there before. Only
    the main thread handles signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    first: list[float] = []  # when it came

    def send(number: int, _frame: object) -> None:
        if not first:
            first.append(time.monotonic())
            interrupts.ask(number)
        elif time.monotonic() - first[0] > _REPEAT_S:
            restore()
            signal.raise_signal(number)

    for number in SIGNALS:
        signal.signal(number, send)
    try:
        yield
    finally:
        restore()
