"""SIGTERM and SIGINT as an orderly end: what waits for Workers is cancelled, what computes is finished."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequested(Exception):
    """Someone asked the run to stop; `exit_code` is the shell's convention, 128 + signal number."""

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class Interrupts:
    """Turns the first signal into StopRequested at the next `check` or during `guard`; a second one kills as usual."""

    def __init__(self):
        self._loop = asyncio.get_running_loop()
        self._asked = asyncio.Event()
        self._number = 0
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self._ask, number)

    def _ask(self, number: int) -> None:
        self._number = number
        self._asked.set()
        self.close()

    def check(self) -> None:
        """Raises StopRequested if a signal came."""
        if self._asked.is_set():
            raise StopRequested(self._number)

    async def guard(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Awaits the coroutine; a signal cancels it, waits until it has ended and raises StopRequested."""
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

    def close(self) -> None:
        """Gives the signals back to their default."""
        for number in SIGNALS:
            self._loop.remove_signal_handler(number)
