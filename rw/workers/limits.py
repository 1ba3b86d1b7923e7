"""How many requests may be in flight to each Worker at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping


class ConcurrencyLimits:
    """One semaphore per Worker. A permit is returned however its holder ends; one that was never granted is not.

    Belongs to the event loop it is first used in.
    """

    def __init__(self, limits: Mapping[str, int], clock: Callable[[], float] = time.monotonic):
        self._semaphores = {worker_id: asyncio.Semaphore(limit) for worker_id, limit in limits.items()}
        self._clock = clock
        self.in_flight = dict.fromkeys(limits, 0)  # permits held now, by Worker
        self.waiting = dict.fromkeys(limits, 0)  # callers queued now, by Worker

    @contextlib.asynccontextmanager
    async def hold(self, worker_id: str) -> AsyncIterator[float]:
        """Waits for a permit of this Worker and yields the seconds waited."""
        began = self._clock()
        self.waiting[worker_id] += 1
        try:
            await self._semaphores[worker_id].acquire()
        finally:
            self.waiting[worker_id] -= 1
        self.in_flight[worker_id] += 1
        try:
            yield self._clock() - began
        finally:
            self.in_flight[worker_id] -= 1
            self._semaphores[worker_id].release()
