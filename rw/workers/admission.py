"""A server's side of a rate limit: how many requests a minute it lets in, and when to come back otherwise.

Not the client's own limits, which keep it from asking too often.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable


class AdmissionLimit:
    """So many requests a minute for each model, `burst` of them at once; `admitted` and `rejected` count by model.

    Every request takes up its share of a minute from when it comes, or from when the share before it ends; it is let
    in unless that is more than a burst ahead of the clock.
    """

    def __init__(self, requests_per_minute: float, burst: int = 1, clock: Callable[[], float] = time.monotonic):
        if not requests_per_minute > 0 or burst < 1:
            raise ValueError(f"{requests_per_minute} requests a minute in bursts of {burst}: both must be above 0")
        self.requests_per_minute = requests_per_minute
        self._interval_s = 60.0 / requests_per_minute
        self._burst_s = burst * self._interval_s
        self._clock = clock
        self._taken_until_s: dict[str, float] = {}
        self.admitted: collections.Counter[str] = collections.Counter()
        self.rejected: collections.Counter[str] = collections.Counter()

    def retry_after_s(self, model: str) -> float | None:
        """Seconds after which this request might be let in; None where it is."""
        now_s = self._clock()
        taken_until_s = max(self._taken_until_s.get(model, now_s), now_s) + self._interval_s
        ahead_s = taken_until_s - now_s - self._burst_s
        if ahead_s > 1e-9 * self._burst_s:  # sums of intervals are not exact
            self.rejected[model] += 1
            return ahead_s
        self._taken_until_s[model] = taken_until_s
        self.admitted[model] += 1
        return None
