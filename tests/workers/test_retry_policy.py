"""The retry policy as a pure function, and the reading of Retry-After."""

import collections

import pytest

from rw.errors import ConfigError, FailureCause
from rw.types import CallId
from rw.workers.retry import RetryPolicy, call_fraction, next_wait_s, parse_retry_after

POLICY = RetryPolicy(server_error=4, rate_limited=8, backoff_s=1.0, backoff_cap_s=5.0)


def wait(cause, earlier=0, retry_after_s=None, remaining_s=None, jitter=1.0, policy=POLICY, **others):
    failures = collections.Counter({cause: earlier + 1}) + collections.Counter(
        {FailureCause(name): count for name, count in others.items()}
    )
    return next_wait_s(policy, failures, cause, retry_after_s, remaining_s, jitter)


def test_back_off_doubles_to_its_cap_and_jitter_cuts_at_most_half():
    assert [wait(FailureCause.SERVER_ERROR, n) for n in range(5)] == [1.0, 2.0, 4.0, 5.0, None]
    assert [wait(FailureCause.SERVER_ERROR, n, jitter=0.0) for n in range(4)] == [0.5, 1.0, 2.0, 2.5]


def test_retry_after_is_a_lower_bound_even_above_the_cap():
    assert wait(FailureCause.RATE_LIMITED, retry_after_s=90.0) == 90.0
    assert wait(FailureCause.RATE_LIMITED, earlier=2, retry_after_s=0.5) == 4.0


def test_a_wait_that_would_outlast_the_deadline_is_not_begun():
    assert wait(FailureCause.RATE_LIMITED, retry_after_s=9.0, remaining_s=9.5) == 9.0
    assert wait(FailureCause.RATE_LIMITED, retry_after_s=9.0, remaining_s=9.0) is None


def test_types_have_their_own_allowances_within_one_total():
    assert wait(FailureCause.EMPTY_OUTPUT, earlier=1, server_error=4, connect=3) is not None
    assert wait(FailureCause.EMPTY_OUTPUT, earlier=2) is None
    assert wait(FailureCause.RATE_LIMITED, earlier=7, server_error=3) is not None  # 11 attempts, a twelfth is allowed
    assert wait(FailureCause.RATE_LIMITED, earlier=7, server_error=4) is None


@pytest.mark.parametrize("cause", ["client_error", "deadline", "internal", "scorer_fault", "sampler_fault"])
def test_what_repetition_cannot_heal_is_never_retried(cause):
    assert wait(FailureCause(cause)) is None


def test_policy_refuses_senseless_numbers():
    with pytest.raises(ConfigError, match="client.retry.timeout=-1"):
        RetryPolicy(timeout=-1)
    with pytest.raises(ConfigError, match="max_attempts=0"):
        RetryPolicy(max_attempts=0)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("12", 12.0),
        ("1.5", 1.5),
        ("-3", 0.0),
        ("soon", None),
        ("inf", None),
        ("nan", None),
        ("Thu, 01 Jan 1970 00:16:45 GMT", 5.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Thu, 99 Jan 1970 00:00:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value, seconds):
    assert parse_retry_after(value, now_s=1000.0) == seconds


def test_jitter_is_a_function_of_call_and_purpose():
    calls = [CallId(0, 0, 0, 1, call) for call in range(200)]
    fractions = [call_fraction(call, "jitter/1") for call in calls]
    assert fractions == [call_fraction(call, "jitter/1") for call in calls]
    assert fractions != [call_fraction(call, "jitter/2") for call in calls]
    assert 0 <= min(fractions) < 0.1 and 0.9 < max(fractions) < 1
