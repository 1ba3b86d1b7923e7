"""When a failed attempt is tried again, and after how long. Pure: no clock, no sleep, no request.

Each type of failure has its own allowance, because they mean different things: an overloaded Worker asks for patience,
a broken reply is worth two more tries, and a rejected request never becomes acceptable by repetition.
"""

from __future__ import annotations

import dataclasses
import email.utils
import hashlib
from collections.abc import Mapping

from rw.errors import ConfigError, FailureCause
from rw.types import CallId


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """Retries allowed to one logical call per type of failure, and the back-off between attempts."""

    connect: int = 3
    reset: int = 3
    timeout: int = 1
    rate_limited: int = 8
    server_error: int = 4
    bad_response: int = 2
    empty_output: int = 2
    max_attempts: int = 12  # of all types together, the first attempt included
    backoff_s: float = 1.0  # before the first retry of a type; doubles with each further one
    backoff_cap_s: float = 60.0

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value < (1 if field.name == "max_attempts" else 0):
                raise ConfigError(f"client.retry.{field.name}={value} is too small")

    def allowed(self, cause: FailureCause) -> int:
        """Retries of this type of failure; 0 for the types that repetition cannot heal."""
        return {
            FailureCause.CONNECT: self.connect,
            FailureCause.RESET: self.reset,
            FailureCause.TIMEOUT: self.timeout,
            FailureCause.RATE_LIMITED: self.rate_limited,
            FailureCause.SERVER_ERROR: self.server_error,
            FailureCause.BAD_RESPONSE: self.bad_response,
            FailureCause.EMPTY_OUTPUT: self.empty_output,
        }.get(cause, 0)


def next_wait_s(
    policy: RetryPolicy,
    failures: Mapping[FailureCause, int],
    cause: FailureCause,
    retry_after_s: float | None,
    remaining_s: float | None,
    jitter: float,
) -> float | None:
    """Seconds to wait before the next attempt, or None to give up.

    Args:
        failures: failed attempts of this call by cause, the latest included.
        cause: of the latest attempt.
        retry_after_s: what the server asked for, honoured as a lower bound even above the cap.
        remaining_s: until the call's deadline; None where it has none. A wait that would outlast it is not begun.
        jitter: in [0, 1); the back-off is scaled into [half, whole] with it, so that siblings do not return together.
    """
    if failures[cause] > policy.allowed(cause) or sum(failures.values()) >= policy.max_attempts:
        return None
    doublings = min(failures[cause] - 1, 30)
    backoff_s = min(policy.backoff_s * 2.0**doublings, policy.backoff_cap_s) * (0.5 + 0.5 * jitter)
    wait_s = max(backoff_s, retry_after_s or 0.0)
    if remaining_s is not None and wait_s >= remaining_s:
        return None
    return wait_s


def parse_retry_after(value: str | None, now_s: float) -> float | None:
    """Seconds from a Retry-After header, which holds seconds or an HTTP date; None where it says nothing usable.

    Args:
        now_s: wall clock, seconds since the epoch.
    """
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - now_s
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if seconds == seconds and seconds != float("inf") else None


def call_fraction(call: CallId, purpose: str) -> float:
    """A number in [0, 1) that depends on the call and the purpose alone, so that equal runs wait equally."""
    text = f"{purpose}/{call.step}/{call.group}/{call.rollout}/{call.turn}/{call.call}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
