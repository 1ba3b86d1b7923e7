"""What an HTTP answer means: literal bodies and their outcome."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rw.errors import FailureCause
from rw.workers.reply import Failure, Reply, Usage, judge_usage, read_reply, read_usage

JSON = "application/json"


def answer(message, finish_reason="stop", usage=None, **fields) -> bytes:
    choice = {"message": message, "finish_reason": finish_reason}
    return json.dumps({"choices": [choice], "usage": usage} | fields).encode()


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "Lima."}, "Lima."),
        ({"content": [{"type": "text", "text": "Li"}, {"type": "image"}, {"type": "text", "text": "ma"}]}, "Lima"),
        ({"content": None, "refusal": "I cannot help with that."}, "I cannot help with that."),
        ({"content": "  spaces stay  "}, "  spaces stay  "),
        ({"content": "lone \ud800 surrogate, whole \ud83d\ude00 pair"}, "lone � surrogate, whole 😀 pair"),
    ],
)
def test_text_of_a_choice(message, text):
    assert read_reply(200, JSON, answer(message)) == Reply(text, None, "stop")


def test_cut_or_filtered_text_is_an_ordinary_reply():
    assert read_reply(200, JSON, answer({"content": "half a"}, "length")) == Reply("half a", None, "length")
    assert read_reply(200, JSON, answer({"content": "part"}, "content_filter")).finish_reason == "content_filter"
    assert read_reply(200, JSON, answer({"content": "text"}, None)).finish_reason is None


@pytest.mark.parametrize("content", ["", " \n\t", None, [], 7])
def test_choice_without_text_is_empty_output_with_its_usage(content):
    body = answer({"content": content}, usage={"prompt_tokens": 5, "completion_tokens": 0})
    outcome = read_reply(200, JSON, body)
    assert (outcome.cause, outcome.usage) == (FailureCause.EMPTY_OUTPUT, Usage(5, 0))


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 12, "completion_tokens": 3}, Usage(12, 3)),
        ({"prompt_tokens": 12.0, "completion_tokens": 3}, Usage(12, 3)),
        ({"prompt_tokens": 0, "completion_tokens": 3}, Usage(0, 3)),
        ({"prompt_tokens": 12, "completion_tokens": 0}, None),
        ({"prompt_tokens": -1, "completion_tokens": 3}, None),
        ({"prompt_tokens": 12, "completion_tokens": 10**9}, None),
        ({"prompt_tokens": 12, "completion_tokens": 2.5}, None),
        ({"prompt_tokens": 10**400, "completion_tokens": 3}, None),
        ({"prompt_tokens": True, "completion_tokens": 3}, None),
        ({"prompt_tokens": "12", "completion_tokens": 3}, None),
        ({"prompt_tokens": float("nan"), "completion_tokens": 3}, None),
        ({"completion_tokens": 3}, None),
        ({}, None),
        (None, None),
        ([12, 3], None),
    ],
)
def test_usage_is_believed_or_missing_and_never_zero(usage, expected):
    assert read_usage(usage, has_text=True) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"<html><body>Bad gateway</body></html>",
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b'"text"',
        b"{}",
        b'{"choices": []}',
        b'{"choices": [null]}',
        b'{"choices": [{}]}',
        b'{"choices": {"0": 1}}',
        b'{"choices": [{"message": "text"}]}',
        b'{"error": "overloaded"}',
        b"[" * 100_000,
    ],
)
def test_answers_that_are_no_completion_are_bad_responses(body):
    outcome = read_reply(200, "text/html", body)
    assert outcome.cause is FailureCause.BAD_RESPONSE and len(outcome.message) < 400 and "\n" not in outcome.message


@pytest.mark.parametrize(
    ("status", "cause", "refused"),
    [
        (301, FailureCause.CLIENT_ERROR, None),
        (400, FailureCause.CLIENT_ERROR, None),
        (401, FailureCause.CLIENT_ERROR, 401),
        (402, FailureCause.CLIENT_ERROR, 402),
        (403, FailureCause.CLIENT_ERROR, 403),
        (404, FailureCause.CLIENT_ERROR, None),
        (408, FailureCause.TIMEOUT, None),
        (413, FailureCause.CLIENT_ERROR, None),
        (422, FailureCause.CLIENT_ERROR, None),
        (429, FailureCause.RATE_LIMITED, None),
        (500, FailureCause.SERVER_ERROR, None),
        (502, FailureCause.SERVER_ERROR, None),
        (529, FailureCause.SERVER_ERROR, None),
        (204, FailureCause.BAD_RESPONSE, None),
    ],
)
def test_status_decides_the_cause(status, cause, refused):
    wait_s = None if status == 402 else 2.0
    outcome = read_reply(status, JSON, b'{"error": {"message": "because\\nof it"}}', retry_after_s=wait_s)
    assert (outcome.cause, outcome.refused_status) == (cause, refused)
    assert outcome.message == f"status {status}: because of it"
    assert outcome.retry_after_s == (2.0 if status in (408, 429) or status >= 500 else None)
    # The same failure reported inside a 200, as gateways do.
    if status >= 400:
        inside = json.dumps({"error": {"code": status, "message": "because of it"}}).encode()
        assert read_reply(200, JSON, inside).cause is cause
        assert read_reply(200, JSON, inside).refused_status == refused


def refusal(status, error, retry_after_s=None):
    outcome = read_reply(status, JSON, json.dumps({"error": error}).encode(), retry_after_s)
    return outcome.cause, outcome.refused_status


def test_refusals_are_told_from_what_only_looks_like_one():
    flagged = {"message": "flagged", "metadata": {"reasons": ["violence"], "provider_name": "p"}}
    assert refusal(403, flagged) == (FailureCause.CLIENT_ERROR, None)
    assert refusal(403, {"metadata": {"flagged_input": "…"}}) == (FailureCause.CLIENT_ERROR, None)
    assert refusal(403, {"metadata": {"limit_source": "key_limit"}}) == (FailureCause.CLIENT_ERROR, 403)
    assert refusal(403, "forbidden") == (FailureCause.CLIENT_ERROR, 403)
    assert refusal(401, flagged) == (FailureCause.CLIENT_ERROR, 401)
    # Credit that is bound by calls in flight comes back; credit that is used up does not, whatever the status.
    assert refusal(402, {"message": "in flight"}, retry_after_s=3.0) == (FailureCause.RATE_LIMITED, None)
    assert refusal(429, {"code": "insufficient_quota"}) == (FailureCause.CLIENT_ERROR, 429)
    assert refusal(429, {"code": "rate_limit_exceeded"}) == (FailureCause.RATE_LIMITED, None)


def test_what_was_turned_down_is_not_billed_and_what_broke_may_be():
    assert all(read_reply(status, JSON, b"{}").unbilled for status in (301, 400, 401, 404, 408, 429, 500, 503))
    assert not any(read_reply(200, JSON, body).unbilled for body in (b"", b"<html>", b"{}", b'{"error": "died"}'))
    # The model may go on, and be paid for, behind a gateway that has stopped waiting.
    assert not any(read_reply(status, JSON, b"{}").unbilled for status in (504, 524))
    assert not read_reply(200, JSON, b'{"error": {"code": 504}}').unbilled


@pytest.mark.parametrize(("status", "code"), [(200, 502), (200, "died"), (500, 500), (400, None), (429, 429)])
def test_usage_beside_an_error_is_what_the_failure_cost(status, code):
    def failure(usage):
        body = {"error": {"code": code, "message": "died"}, "usage": usage}
        return read_reply(status, JSON, json.dumps(body).encode())

    charged = failure({"prompt_tokens": 30, "completion_tokens": 7})
    assert (charged.usage, charged.unbelieved) == (Usage(30, 7), "")
    assert read_reply(500, JSON, b'{"usage": {"prompt_tokens": 3, "completion_tokens": 0}}').usage == Usage(3, 0)
    absurd = failure({"prompt_tokens": -30, "completion_tokens": 7})
    assert absurd.usage is None and absurd.unbelieved and not absurd.unbilled


def test_usage_that_is_no_number_is_not_repeated():
    _, said = judge_usage({"prompt_tokens": "sk-0123456789", "completion_tokens": 10**30}, has_text=True)
    assert said == "prompt_tokens=a str, completion_tokens=10000000000000000000"


def test_error_behind_text_may_be_billed():
    body = answer({"content": "partial"}, error={"code": 502, "message": "died"})
    assert not read_reply(200, JSON, body).unbilled
    assert read_reply(200, JSON, answer({"content": ""}, error={"code": 502, "message": "died"})).unbilled


def test_error_beside_a_partial_choice_is_not_an_answer():
    body = answer({"content": "partial"}, "error", {"prompt_tokens": 5, "completion_tokens": 2})
    record = json.loads(body)
    record["choices"][0]["error"] = {"code": 502, "message": "upstream died"}
    assert read_reply(200, JSON, json.dumps(record).encode()).cause is FailureCause.SERVER_ERROR


@given(st.integers(100, 599), st.binary(max_size=200) | st.recursive(st.none() | st.text(), st.lists).map(json.dumps))
def test_any_answer_gets_an_outcome(status, body):
    body = body if isinstance(body, bytes) else body.encode()
    assert isinstance(read_reply(status, "", body), Failure)
