"""When the next request may be sent to a Worker: its rates per minute, those that it turns out to have, and the waits
that it has asked for.

Each Worker has a pace of its own, so that one that is slow or limited never delays the others.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rw.workers.adaptive import AdaptiveRate, Levels
from rw.workers.limits import Permits

MINUTE_S = 60.0
LOOK_AGAIN_S = 0.25  # tokens come free before their minute is over when a reply turns out short
LATENESS_S = 0.2  # of a timer, on a busy machine, that the next requests may make up for


@dataclasses.dataclass(eq=False)
class Sending:
    """A request that was let through."""

    at_s: float
    tokens: int  # at their upper bound until it is settled
    level: int  # requests under way when it was sent, itself included
    has_waited: bool  # for its turn in the rate


class Pace:
    """Lets requests through in the order in which they come.

    Requests are evenly spaced: a server that counts by the second would reject a minute's allowance sent at once.
    Tokens are counted over the minute before each request: at their upper bound until the reply tells how many it were.
    """

    def __init__(
        self,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        adaptive: bool = False,
    ):
        # Longer by what a late timer may make up for, so that no minute holds one request too many.
        self._interval_s = (MINUTE_S + LATENESS_S) / requests_per_minute if requests_per_minute else 0.0
        self._tokens_per_minute = tokens_per_minute
        self._clock, self._sleep = clock, sleep
        self._turn = Permits(1)  # the first in the queue waits for time, the others for their turn
        self._next_at_s = float("-inf")
        self._held_until_s = float("-inf")
        self._sent: collections.deque[Sending] = collections.deque()
        self._tokens = 0  # of all in `_sent`
        self._under_way = 0
        self._rate, self._levels = AdaptiveRate() if adaptive else None, Levels()

    async def admit(self, tokens: int) -> Sending:
        """Waits until a request may be sent.

        Args:
            tokens: the most that it can use, input and output. One that is above the limit by itself is let through
                when nothing else counts, or it never would be.
        """
        if self._tokens_per_minute is not None:
            tokens = min(tokens, int(self._tokens_per_minute))
        await self._turn.acquire()
        try:
            due_s, has_waited = self._clock(), False
            while (wait_s := self._wait_s(tokens)) > 0:
                now_s = self._clock()
                has_waited = has_waited or self._next_at_s > now_s
                due_s = now_s + wait_s
                await self._sleep(min(wait_s, LOOK_AGAIN_S) if self._wait_for_tokens_s(tokens) else wait_s)
            return self._send(tokens, due_s, has_waited)
        finally:
            self._turn.release()

    def settle(self, sending: Sending, tokens: int | None) -> None:
        """The request is over; it used this many tokens, 0 where it was not sent after all, None where nobody knows."""
        self._under_way -= 1
        if tokens is None:
            return
        if self._sent and sending.at_s >= self._sent[0].at_s:
            self._tokens += tokens - sending.tokens
        sending.tokens = tokens

    def hold_back(self, seconds: float) -> None:
        """Nothing is sent for so long: the Worker has asked for it."""
        self._held_until_s = max(self._held_until_s, self._clock() + seconds)

    def succeeded(self, sending: Sending) -> None:
        """The request was answered."""
        self._levels.accepted(sending.level)
        if self._rate is not None:
            self._rate.succeeded(self._clock(), sending.at_s, sending.has_waited)

    def rejected(self, sending: Sending, retry_after_s: float) -> bool:
        """The request was answered with 429; returns whether that says something about the rate."""
        if self._levels.is_about_concurrency(sending.level):
            return False
        if self._rate is not None:
            self._rate.rejected(self._clock(), sending.at_s, retry_after_s)
        return True

    def _send(self, tokens: int, due_s: float, has_waited: bool) -> Sending:
        now_s = self._clock()
        interval_s = self._interval_s
        if self._rate is not None:
            interval_s = max(interval_s, self._rate.interval_s)
            self._rate.sent(now_s)
        self._next_at_s = max(due_s, now_s - LATENESS_S) + interval_s
        self._under_way += 1
        sending = Sending(now_s, tokens, self._under_way, has_waited)
        if self._tokens_per_minute is not None:
            self._sent.append(sending)
            self._tokens += tokens
        return sending

    def _wait_s(self, tokens: int) -> float:
        now_s = self._clock()
        return max(self._next_at_s - now_s, self._held_until_s - now_s, self._wait_for_tokens_s(tokens))

    def _wait_for_tokens_s(self, tokens: int) -> float:
        """0 where they fit into the minute before now, else until enough of it has passed."""
        if self._tokens_per_minute is None:
            return 0.0
        now_s = self._clock()
        while self._sent and self._sent[0].at_s + MINUTE_S <= now_s:
            self._tokens -= self._sent.popleft().tokens
        excess = self._tokens + tokens - self._tokens_per_minute
        if excess <= 0:
            return 0.0
        for sending in self._sent:
            excess -= sending.tokens
            if excess <= 0:
                return sending.at_s + MINUTE_S - now_s
        return 0.0
