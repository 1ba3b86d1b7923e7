"""What a Worker's answers tell of its limits: how many requests it takes at once, and how many a second. Pure.

Both laws take a step down with each 429 and small steps up with successes, in such a proportion that about one call in
fifty is rejected in the long run. They suit Workers whose limits are fixed and unknown; one that rejects calls at
random they slow down for nothing.
"""

from __future__ import annotations

import collections
import math

FIRST_LIMIT = 8  # requests at once, before anything is known of a Worker; doubles with every round of successes
PROBING = 0.02  # of a step down is taken back by a success after it: about this share of calls is then rejected
PROBING_GROWTH = 1.5  # by which this share grows with every round that nothing is rejected in
ROUND = 16  # successes, at least
STEP_DOWN = 0.95  # of the rate after a rejection that slow growth ran into
FAST_STEP_DOWN = 0.8  # ... that fast growth ran into
SEARCH_STEP_DOWN = 0.7  # ... that follows another one
FAST_GROWTH = 1.1  # of the rate with every success while it is far below what had worked
SLOWEST_RATE = 0.1  # requests a second: a Worker that rejects all for a while must be found well again
TOLERATED_REJECTIONS = 2.5  # in the last hundred requests or so, before a rate is thought of at all
MEMORY = 0.99  # of the count of rejections, with every request
SUSTAINED_S = 120.0  # over which accepted requests are averaged: bursts that a minute's allowance lets in are none
FORGOTTEN_S = 600.0  # in which the memory of what was accepted fades
TRUCE_S = 300.0  # without a rate, after one that did not help
CALM_WAITS = 20.0  # times the Retry-After of a rejection, for which nothing grows: such a rejection stops all calls
LONGEST_CALM_S = 60.0
LEVELS = 32  # accepted requests that are remembered


class AdaptiveLimit:
    """How many requests a Worker takes at once, between 1 and `most`."""

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
        growth = 1.0
        if self._limit >= self._fast_below:
            growth = min(1.0, PROBING * PROBING_GROWTH**self._rounds)
            self._rounds += 1 / max(self._limit, ROUND)
        self._limit = min(float(self._most), self._limit + growth)
        self._has_grown = True

    def rejected(self, now_s: float, retry_after_s: float) -> None:
        """A request was answered with 429."""
        if self._has_grown:  # the first rejection of several says most about the limit
            self._fast_below = self._limit / 2
        self._has_grown, self._rounds = False, 0.0
        self._limit = max(1.0, self._limit - 1)
        self._calm_until_s = max(self._calm_until_s, now_s + _calm_s(retry_after_s))


class AdaptiveRate:
    """How many requests a second a Worker takes; no limit until it rejects more than a few.

    A Worker that rejects its share of calls at any rate gains nothing from a lower one. So a rate that has come down to
    half of what the Worker has accepted over minutes is given up for a while: no limit on the rate would do that.
    """

    def __init__(self) -> None:
        self._rate: float | None = None
        self._fast_below = float("inf")
        self._has_grown = False  # since the last rejection
        self._rounds = 0.0  # of successes since the last rejection
        self._stepped_at_s = float("-inf")  # what was sent before says nothing of the rate since
        self._calm_until_s = float("-inf")
        self._last_second: collections.deque[float] = collections.deque()
        self._rejected = 0.0  # lately
        self._accepted, self._accepted_at_s = 0.0, 0.0  # a second, on average over minutes; when last
        self._sustained = 0.0  # the most of it

    @property
    def interval_s(self) -> float:
        """Seconds from one request to the next; 0 where there is no limit."""
        return 0.0 if self._rate is None else 1 / self._rate

    def sent(self, now_s: float) -> None:
        """A request is sent."""
        self._last_second.append(now_s)
        while self._last_second[0] <= now_s - 1:
            self._last_second.popleft()
        self._rejected *= MEMORY
        if self._rate is not None and 2 * self._rate < self._sustained:
            self._rate, self._rejected = None, 0.0
            self._calm_until_s = now_s + TRUCE_S

    def succeeded(self, now_s: float, sent_at_s: float, has_waited: bool) -> None:
        """A request was answered; `has_waited` where the rate had held it up."""
        self._note_accepted(now_s)
        if self._rate is None or not has_waited or sent_at_s < self._stepped_at_s or now_s < self._calm_until_s:
            return
        if self._rate < self._fast_below:
            self._rate *= FAST_GROWTH
        else:
            growth = (1 - STEP_DOWN) * PROBING * PROBING_GROWTH**self._rounds
            self._rate *= min(FAST_GROWTH, 1 + growth)
            self._rounds += 1 / (2 * ROUND)
        self._has_grown = True

    def rejected(self, now_s: float, sent_at_s: float, retry_after_s: float) -> None:
        """A request was answered with 429."""
        self._rejected += 1
        if sent_at_s < self._stepped_at_s or self._rejected < TOLERATED_REJECTIONS:
            return
        if self._rate is not None:
            self._step_down(self._rate)
        elif now_s >= self._calm_until_s:
            self._rate = max(len(self._last_second) / 2, self._sustained, SLOWEST_RATE)
            self._fast_below = float("inf")
        self._has_grown, self._rounds = False, 0.0
        self._stepped_at_s = now_s
        if self._rate is not None:
            self._calm_until_s = max(self._calm_until_s, now_s + _calm_s(retry_after_s))

    def _step_down(self, rate: float) -> None:
        if not self._has_grown:
            rate *= SEARCH_STEP_DOWN
        elif rate < self._fast_below:
            rate *= FAST_STEP_DOWN
            self._fast_below = rate * FAST_STEP_DOWN
        else:
            rate *= STEP_DOWN
            self._fast_below = rate * SEARCH_STEP_DOWN
        self._rate = max(rate, SLOWEST_RATE)

    def _note_accepted(self, now_s: float) -> None:
        passed_s, self._accepted_at_s = now_s - self._accepted_at_s, now_s
        self._accepted = self._accepted * math.exp(-passed_s / SUSTAINED_S) + 1 / SUSTAINED_S
        self._sustained = max(self._sustained * math.exp(-passed_s / FORGOTTEN_S), self._accepted)


class Levels:
    """Tells which of the two a rejection is about.

    A Worker that takes so many requests at once rejects none but those that come when more are under way than with any
    that it took; one that takes so many a second rejects some at every level.
    """

    def __init__(self) -> None:
        self._accepted: collections.deque[int] = collections.deque(maxlen=LEVELS)

    def accepted(self, level: int) -> None:
        """A request was taken that made it `level` under way at once."""
        self._accepted.append(level)

    def is_about_concurrency(self, level: int) -> bool:
        """Whether the rejection of a request at this level is about how many are under way."""
        return 2 * len(self._accepted) >= LEVELS and level > max(self._accepted)


def _calm_s(retry_after_s: float) -> float:
    return min(CALM_WAITS * retry_after_s, LONGEST_CALM_S)
