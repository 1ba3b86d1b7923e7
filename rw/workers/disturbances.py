"""Latencies and faults for loopback Workers: pure functions of seed and call, so equal runs are disturbed equally."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Sequence

from rw.workers.faulty import PASSING, Fault
from rw.workers.loopback import CompletionCall, Faults, Latency


def lognormal_latency(mean_s: float, seed: int = 0, spread: float = 0.8) -> Latency | None:
    """Lognormal latencies of this mean in seconds (`spread` is the deviation of their logarithm); None for mean 0."""
    if mean_s <= 0:
        return None
    location = math.log(mean_s) - spread**2 / 2
    normal = statistics.NormalDist(location, spread)
    return lambda call: math.exp(normal.inv_cdf(_fraction(seed, call, f"latency/{call.attempt}")))


def tailed_latency(
    median_s: float = 3.0,
    p95_s: float = 12.0,
    stall_s: float = 60.0,
    stall_rate: float = 0.01,
    seed: int = 0,
    scale: float = 1.0,
) -> Latency:
    """Latencies as long answers have them: lognormal, but now and then a Worker stalls.

    Args:
        median_s, p95_s: of the lognormal part.
        stall_s, stall_rate: this share of the calls takes this long instead.
        scale: seconds of ours for one of theirs, so that a test need not wait as long.
    """
    if not 0 < median_s < p95_s:
        raise ValueError(f"a median of {median_s} s with a 95th percentile of {p95_s} s is no lognormal latency")
    spread = math.log(p95_s / median_s) / statistics.NormalDist().inv_cdf(0.95)
    normal = statistics.NormalDist(math.log(median_s), spread)

    def latency(call: CompletionCall) -> float:
        if _fraction(seed, call, f"stall/{call.attempt}") < stall_rate:
            return scale * stall_s
        return scale * math.exp(normal.inv_cdf(_fraction(seed, call, f"latency/{call.attempt}")))

    return latency


def faults_at_rate(rate: float, seed: int = 0, fault: Fault = Fault.HTTP_500) -> Faults | None:
    """This share of the attempts fails, each attempt on its own; None for rate 0."""
    return mixed_faults(rate, seed, (fault,))


def mixed_faults(rate: float, seed: int = 0, faults: Sequence[Fault] = PASSING) -> Faults | None:
    """This share of the attempts fails, each attempt on its own and by any of these faults alike; None for rate 0."""
    if rate <= 0:
        return None

    def fault(call: CompletionCall, attempt: int) -> Fault | None:
        place = _fraction(seed, call, f"fault/{attempt}") / rate
        return faults[int(place * len(faults))] if place < 1 else None

    return fault


def lasting_faults(rate: float, seed: int = 0, fault: Fault = Fault.HTTP_400) -> Faults | None:
    """This share of the calls fails, in all of its attempts; None for rate 0."""
    if rate <= 0:
        return None
    return lambda call, attempt: fault if _fraction(seed, call, "lasting fault") < rate else None


def first_fault(*sources: Faults | None) -> Faults | None:
    """The fault of the first source that has one for an attempt; None where there is no source at all."""
    given = [source for source in sources if source is not None]
    if not given:
        return None
    return lambda call, attempt: next((fault for source in given if (fault := source(call, attempt)) is not None), None)


def _fraction(seed: int, call: CompletionCall, purpose: str) -> float:
    """In (0, 1)."""
    text = f"{seed}/{purpose}/{call.model}/{call.call_header}/{call.seed}/{call.content}"
    return (int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") + 0.5) / 2**48
