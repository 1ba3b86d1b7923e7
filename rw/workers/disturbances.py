"""Latencies and faults for loopback Workers: pure functions of seed and call, so equal runs are disturbed equally."""

from __future__ import annotations

import hashlib
import math
import statistics

from rw.workers.loopback import CompletionCall, Fault, Faults, Latency


def lognormal_latency(mean_s: float, seed: int = 0, spread: float = 0.8) -> Latency | None:
    """Lognormal latencies of this mean in seconds (`spread` is the deviation of their logarithm); None for mean 0."""
    if mean_s <= 0:
        return None
    location = math.log(mean_s) - spread**2 / 2
    normal = statistics.NormalDist(location, spread)
    return lambda call: math.exp(normal.inv_cdf(_fraction(seed, call, "latency")))


def faults_at_rate(rate: float, seed: int = 0, fault: Fault = Fault.HTTP_500) -> Faults | None:
    """This share of the attempts fails, each attempt on its own; None for rate 0."""
    if rate <= 0:
        return None
    return lambda call, attempt: fault if _fraction(seed, call, f"fault/{attempt}") < rate else None


def _fraction(seed: int, call: CompletionCall, purpose: str) -> float:
    """In (0, 1)."""
    text = f"{seed}/{purpose}/{call.model}/{call.call_header}/{call.seed}/{call.content}"
    return (int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") + 0.5) / 2**48
