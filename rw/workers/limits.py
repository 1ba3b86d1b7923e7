"""How many requests may be in flight to each Worker at once: the user's limit, and below it what the Worker takes."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping

from rw.workers.adaptive import AdaptiveLimit


class Permits:
    """Permits of one Worker, granted in the order in which they were asked for. A granted permit is never lost."""

    def __init__(self, most: int, limit: AdaptiveLimit | None = None):
        """`limit`: how many of the `most` permits are in use; None for all."""
        self._most, self._limit = most, limit
        self._waiters: collections.deque[asyncio.Future[None]] = collections.deque()
        self.in_flight = 0
        self.peak = 0  # the most in flight since `take_peak`

    @property
    def limit(self) -> int:
        """Permits that may be held now."""
        return self._most if self._limit is None else self._limit.value

    @property
    def waiting(self) -> int:
        """Callers queued now."""
        return sum(not waiter.done() for waiter in self._waiters)

    async def acquire(self) -> None:
        """Waits for a permit; `release` must follow."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._grant()
        if waiter.done():
            return
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()  # granted, and cancelled before it could run
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def release(self) -> None:
        """Returns a permit."""
        self.in_flight -= 1
        self._grant()

    def take_peak(self) -> int:
        """The most permits held at once since this was last asked."""
        peak, self.peak = self.peak, self.in_flight
        return peak

    def succeeded(self, now_s: float) -> None:
        """A request under one of these permits was answered."""
        if self._limit is not None and self.in_flight >= self.limit:
            self._limit.succeeded(now_s)
            self._grant()

    def rejected(self, now_s: float, retry_after_s: float) -> None:
        """A request under one of these permits was answered with 429."""
        if self._limit is not None:
            self._limit.rejected(now_s, retry_after_s)

    def _grant(self) -> None:
        while self._waiters and self.in_flight < self.limit:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self.in_flight += 1
                self.peak = max(self.peak, self.in_flight)
                waiter.set_result(None)


class ConcurrencyLimits:
    """The permits of every Worker. A permit is returned however its holder ends; one that was never granted is not."""

    def __init__(self, limits: Mapping[str, int], clock: Callable[[], float] = time.monotonic, adaptive: bool = False):
        self._permits = {
            worker_id: Permits(most, AdaptiveLimit(most) if adaptive else None) for worker_id, most in limits.items()
        }
        self._clock = clock

    @property
    def in_flight(self) -> dict[str, int]:
        """Permits held now, by Worker."""
        return {worker_id: permits.in_flight for worker_id, permits in self._permits.items()}

    @property
    def waiting(self) -> dict[str, int]:
        """Callers queued now, by Worker."""
        return {worker_id: permits.waiting for worker_id, permits in self._permits.items()}

    @property
    def now(self) -> dict[str, int]:
        """How many permits may be held now, by Worker."""
        return {worker_id: permits.limit for worker_id, permits in self._permits.items()}

    def take_peaks(self) -> dict[str, int]:
        """The most permits held at once since this was last asked, by Worker."""
        return {worker_id: permits.take_peak() for worker_id, permits in self._permits.items()}

    def succeeded(self, worker_id: str) -> None:
        """A holder's request was answered."""
        self._permits[worker_id].succeeded(self._clock())

    def rejected(self, worker_id: str, retry_after_s: float | None) -> None:
        """A holder's request was answered with 429."""
        self._permits[worker_id].rejected(self._clock(), retry_after_s or 0.0)

    @contextlib.asynccontextmanager
    async def hold(self, worker_id: str) -> AsyncIterator[float]:
        """Waits for a permit of this Worker and yields the seconds waited."""
        began = self._clock()
        await self._permits[worker_id].acquire()
        try:
            yield self._clock() - began
        finally:
            self._permits[worker_id].release()
