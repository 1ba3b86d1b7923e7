"""How long the event loop answers nobody: deadlines of healthy Workers run on while something else blocks it."""

from __future__ import annotations

import asyncio
import logging

from rw.rollout.tasks import cancel_all

log = logging.getLogger(__name__)


class LoopLag:
    """Measures within `async with` how late the loop wakes a task that sleeps; `longest_s` is the worst case.

    A lag over `alarm_s` is logged as a warning when the block ends: timeouts and latencies of that time mean little.
    """

    def __init__(self, interval_s: float = 0.05, alarm_s: float = 1.0):
        self.longest_s = 0.0
        self._interval_s, self._alarm_s = interval_s, alarm_s
        self._due_s = 0.0  # loop time at which the task is to wake
        self._task: asyncio.Task | None = None

    async def __aenter__(self) -> LoopLag:
        self._due_s = asyncio.get_running_loop().time() + self._interval_s
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_) -> None:
        self._note()
        await cancel_all([self._task])
        if self.longest_s > self._alarm_s:
            log.warning("the event loop was blocked for %.1f s; Worker deadlines ran on meanwhile", self.longest_s)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(max(0.0, self._due_s - asyncio.get_running_loop().time()))
            self._note()
            self._due_s = asyncio.get_running_loop().time() + self._interval_s

    def _note(self) -> None:
        self.longest_s = max(self.longest_s, asyncio.get_running_loop().time() - self._due_s)
