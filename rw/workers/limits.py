"""How many requests may be in flight to each Worker at once.

A user's limit is an upper bound. Below it, the limit of a Worker that answers 429 is felt for: each rejection takes a
permit away, each success at the limit gives a fraction back, so that few calls are rejected and few permits idle.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping

FIRST_LIMIT = 16  # before anything is known of a Worker; doubles with every round of successes
PROBING = 0.02  # of a permit is given back by a success after a cut: about this share of calls is then rejected
PROBING_GROWTH = 1.5  # by which this share grows with every round that nothing is rejected in
SMALLEST_ROUND = 16  # successes that make a round where the limit is smaller
CALM_WAITS = 20.0  # times the Retry-After of a rejection, for which the limit then does not grow
LONGEST_CALM_S = 60.0


class AdaptiveLimit:
    """How many requests a Worker takes at once, as far as its answers tell; between 1 and `most`. Pure: time is given.

    After a rejection the limit grows slowly at first and then faster; far below what had worked before the rejections
    began, by one with every success, so that a passing disturbance does not throttle a Worker for long.
    """

    def __init__(self, most: int, first: int = FIRST_LIMIT):
        self._most = most
        self._limit = float(min(first, most))
        self._fast_below = float(most)  # grows by one with every success up to here
        self._has_grown = True  # since the last rejection
        self._rounds = 0.0  # of successes since the last rejection
        self._calm_until_s = float("-inf")

    @property
    def value(self) -> int:
        """The limit now."""
        return int(self._limit)

    def succeeded(self, now_s: float) -> None:
        """A request was answered while the limit was reached."""
        if now_s < self._calm_until_s or self._limit >= self._most:
            return
        if self._limit < self._fast_below:
            growth = 1.0
        else:
            growth = PROBING * PROBING_GROWTH**self._rounds
            self._rounds += 1 / max(self._limit, SMALLEST_ROUND)
        self._limit = min(float(self._most), self._limit + min(growth, 1.0))
        self._has_grown = True

    def rejected(self, now_s: float, retry_after_s: float) -> None:
        """A request was answered with 429."""
        if self._has_grown:  # the first rejection of several says most about the limit
            self._fast_below = self._limit / 2
        self._has_grown = False
        self._rounds = 0.0
        self._limit = max(1.0, self._limit - 1)
        # A Worker that stops all calls for a while makes each rejection dear.
        self._calm_until_s = max(self._calm_until_s, now_s + min(CALM_WAITS * retry_after_s, LONGEST_CALM_S))


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
