"""Reported tokens against a local count: what is normal for a Worker, and when it no longer is."""

import logging
import random

import pytest

from rw.types import CallId, CallStatus, WorkerCall
from rw.workers.interface import WorkerRequest
from rw.workers.usage import EVERY, FIRST_CALLS, LATEST_CALLS, UsageCheck, UsageCheckedClient

CALL = CallId(1, 0, 0, 1, 0)


def local(text):
    return len(text.split())


def words(count):
    return " ".join(["w"] * count)


def call_of(words_in, words_out, tokens_in, tokens_out, status=CallStatus.OK):
    request = WorkerRequest(CALL, "a", "n1", None, (), "?", words(words_in))
    call = WorkerCall("n1", "a", None, (), "?", words(words_out), tokens_in, tokens_out, 0.1, 0.1, 1, status)
    return request, call


def feed(check, count, factor_in=1.4, factor_out=0.8, template=12, draw=None):
    draw = draw or random.Random(0)
    for _ in range(count):
        words_in, words_out = draw.randint(50, 400), draw.randint(10, 300)
        check.note(*call_of(words_in, words_out, int(factor_in * words_in) + template, int(factor_out * words_out)))


def warnings(caplog):
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_another_tokenizer_a_template_and_other_lengths_are_no_reason_to_warn(caplog):
    check, draw = UsageCheck(local), random.Random(1)
    feed(check, 600, draw=draw)
    for _ in range(600):  # short messages, on which the template weighs as much as the text
        words_in = draw.randint(5, 20)
        check.note(*call_of(words_in, 3, int(1.4 * words_in) + 12, 3))
    assert warnings(caplog) == []


@pytest.mark.parametrize("side, factors", [("in", {"factor_in": 2.0}), ("out", {"factor_out": 1.2})])
def test_a_gap_that_grows_is_warned_about_once_and_by_side(caplog, side, factors):
    check = UsageCheck(local)
    feed(check, FIRST_CALLS + 100)
    feed(check, EVERY * LATEST_CALLS, **factors)
    (message,) = warnings(caplog)
    assert f"{side}put tokens" in message and f"usage_ratio_{side}" in message
    feed(check, EVERY * LATEST_CALLS, **factors)
    assert len(warnings(caplog)) == 1


def test_the_ratio_is_of_the_latest_calls():
    check = UsageCheck(local)
    assert check.metrics() == {}
    feed(check, FIRST_CALLS, factor_in=1.0, template=0)
    assert check.metrics()["worker/a/usage_ratio_in"] == 1.0
    feed(check, EVERY * (LATEST_CALLS + 1), factor_in=3.0, template=0)
    assert check.metrics()["worker/a/usage_ratio_in"] == 3.0
    assert check.metrics()["worker/a/usage_ratio_out"] == pytest.approx(0.8, abs=0.01)


def test_only_a_sample_is_counted_and_nothing_of_calls_without_usage():
    counted = []
    check = UsageCheck(lambda text: counted.append(text) or local(text))
    check.note(*call_of(5, 5, None, None))
    check.note(*call_of(5, 5, 5, 5, CallStatus.FAILED))
    assert counted == []
    feed(check, FIRST_CALLS + 10 * EVERY)
    assert len(counted) == 2 * (FIRST_CALLS + 10)


def test_a_worker_that_reports_no_input_has_a_ratio_of_zero_and_no_gap(caplog):
    check = UsageCheck(local)
    feed(check, 600, factor_in=0.0, template=0)
    assert check.metrics()["worker/a/usage_ratio_in"] == 0.0 and warnings(caplog) == []


async def test_the_client_hands_on_what_it_was_answered():
    request, answer = call_of(5, 5, 10, 5)

    class Client:
        closed = False

        async def call(self, asked):
            assert asked is request
            return answer

        async def close(self):
            self.closed = True

    inner, check = Client(), UsageCheck(local)
    client = UsageCheckedClient(inner, check)
    assert await client.call(request) is answer
    await client.close()
    assert inner.closed and check.metrics()["worker/a/usage_ratio_in"] == 2.0
