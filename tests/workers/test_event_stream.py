"""Server-sent events cut anywhere, and the answer that a stream's chunks fold into."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rw.errors import FailureCause
from rw.workers.completion import Completion, CompletionCall, completion_chunks, events
from rw.workers.reply import NO_BOUNDS, NO_MASK, Failure, Reply, TokenBounds, Usage
from rw.workers.sse import Event, EventParser
from rw.workers.stream import StreamedAnswer

CALL = CompletionCall("m", "q", None, 42, 4096, 0.2, stream=True, include_usage=True)
WIRE = (
    b"\xef\xbb\xbf: keep-alive\n\n"
    b"data: first\r\n\r\n"
    b"event: message\rid: 7\rdata: second\rdata:  line\r\r"
    b":\n\nretry: 10\n\nid: none of its own data\n\n"
    b"data\ndata:\n\n" + "data: Zürich – 😀\n\n".encode() + b"data: no empty line behind"
)
EVENTS = [
    Event("first"),
    Event("second\n line", "7"),
    Event("\n"),
    Event("Zürich – 😀"),
]


def parse(parts) -> list[Event]:
    parser = EventParser()
    return [event for part in parts for event in parser.feed(part)] + parser.finish()


@given(st.lists(st.integers(0, len(WIRE)), max_size=12))
def test_cuts_change_nothing(cuts):
    borders = [0, *sorted(cuts), len(WIRE)]
    parts = [WIRE[begin:end] for begin, end in zip(borders, borders[1:], strict=False)]
    assert parse(parts) == [*EVENTS, Event("no empty line behind")]


def test_byte_by_byte_is_the_same():
    assert parse(WIRE[i : i + 1] for i in range(len(WIRE))) == [*EVENTS, Event("no empty line behind")]


@given(st.binary(max_size=300))
def test_any_bytes_give_the_same_events_however_they_are_cut(data):
    assert parse([data]) == parse(data[i : i + 1] for i in range(len(data)))


def test_long_line_in_small_parts_takes_linear_time():
    parser = EventParser()
    for _ in range(200_000):  # a quadratic parser would copy 200 GB
        parser.feed(b"0123456789")
    assert parser.feed(b"\n\n") == []


def chunk(content=None, finish_reason=None, **fields) -> dict:
    delta = {} if content is None else {"content": content}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]} | fields


USAGE = {"prompt_tokens": 30, "completion_tokens": 7}
USAGE_CHUNK = {"choices": [], "usage": USAGE}


def outcome(*said, bounds=NO_BOUNDS) -> Reply | Failure:
    """Of a stream of chunks, or of whatever else events may say."""
    answer = StreamedAnswer()
    for one in said:
        event = one if isinstance(one, Event) else Event(one if isinstance(one, str) else json.dumps(one))
        answer.take(event)
    return answer.outcome(None, bounds, NO_MASK)


def test_chunks_fold_into_the_reply_that_one_body_would_be():
    expected = Reply("Lima, Peru.", Usage(30, 7), "stop")
    head = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    assert outcome(head, chunk("Lima,"), chunk(" Peru."), chunk(None, "stop"), USAGE_CHUNK, "[DONE]") == expected
    # The last piece of text, the reason and the usage may share a chunk; [DONE] may be missing.
    assert outcome(chunk("Lima, Peru."), chunk("", "stop", usage=USAGE)) == expected
    assert outcome(chunk("Lima, Peru.", "stop", usage=USAGE), "[DONE]") == expected


def test_loopback_streams_are_read():
    parser, answer = EventParser(), StreamedAnswer()
    wire = b"".join(events(completion_chunks(CALL, Completion("Lima is it.", 30, 7, "length"))))
    for event in parser.feed(wire):
        answer.take(event)
    assert answer.outcome(None, NO_BOUNDS, NO_MASK) == Reply("Lima is it.", Usage(30, 7), "length")


def test_repeated_end_and_usage_count_once():
    end = chunk(" Peru.", "stop")
    assert outcome(chunk("Lima,"), end, end, USAGE_CHUNK, USAGE_CHUNK, "[DONE]", USAGE_CHUNK) == Reply(
        "Lima, Peru.", Usage(30, 7), "stop"
    )


def test_repeated_event_with_an_id_counts_once_and_a_stutter_without_one_is_text():
    ha = json.dumps(chunk("ha"))
    numbered = [Event(ha, "1"), Event(ha, "1"), Event(ha, "2")]
    assert outcome(*numbered, chunk(None, "stop")).text == "haha"
    assert outcome(ha, ha, ha, chunk(None, "stop")).text == "hahaha"


@pytest.mark.parametrize("number", ["", "0", "chatcmpl-1"])
def test_an_id_that_all_events_bear_numbers_none_of_them(number):
    said = [chunk(""), chunk("ha"), chunk("ha"), chunk(None, "stop"), USAGE_CHUNK]
    assert outcome(*(Event(json.dumps(one), number) for one in said)) == Reply("haha", Usage(30, 7), "stop")


def test_content_parts_and_a_choice_without_an_index_are_read():
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Li"}, {"type": "text", "text": "ma"}]
    assert outcome({"choices": [{"index": None, "delta": {"content": parts}}]}, chunk(None, "stop")).text == "Lima"


def test_usage_that_grows_counts_as_last_reported():
    growing = [chunk("a", usage={"prompt_tokens": 30, "completion_tokens": n}) for n in (1, 2)]
    assert outcome(*growing, chunk(None, "stop", usage=None), "[DONE]").usage == Usage(30, 2)


@pytest.mark.parametrize("said", [(), (chunk("Lima"),), (chunk("Lima"), USAGE_CHUNK), (chunk("Li"), {"choices": []})])
def test_stream_without_an_end_is_broken_off_and_never_a_short_reply(said):
    cut = outcome(*said)
    assert cut.cause is FailureCause.RESET and not cut.unbilled
    assert cut.usage == (Usage(30, 7) if USAGE_CHUNK in said else None)


def test_end_without_text_is_empty_output_with_its_usage():
    empty = outcome(chunk(""), chunk(None, "stop"), USAGE_CHUNK, "[DONE]")
    assert (empty.cause, empty.usage) == (FailureCause.EMPTY_OUTPUT, Usage(30, 7))


@pytest.mark.parametrize(
    "said",
    [
        ("no json",),
        ("[1]",),
        (chunk("a"), '{"choices": [{"del', "[DONE]"),
        ({"choices": []}, "[DONE]"),
        ({"token": {"text": "Li"}}, "[DONE]"),
        (chunk("half", "error"), "[DONE]"),
        ("[DONE]",),
    ],
)
def test_streams_that_hold_no_answer_are_bad_responses(said):
    assert outcome(*said).cause is FailureCause.BAD_RESPONSE


def test_error_inside_a_stream_has_its_own_cause_and_may_be_billed_once_text_has_come():
    error = {"error": {"code": 429, "message": "slow\ndown"}}
    early = outcome(error)
    assert (early.cause, early.unbilled) == (FailureCause.RATE_LIMITED, True)
    assert early.message == "status 429: error inside a 200: slow down"
    late = outcome(chunk("Li"), error | {"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]}, chunk("ma"))
    assert (late.cause, late.unbilled) == (FailureCause.RATE_LIMITED, False)
    refused = outcome({"error": {"code": 402, "message": "no credits"}})
    assert refused.refused_status == 402
    assert outcome({"object": "error", "message": "overloaded", "code": 503}).cause is FailureCause.SERVER_ERROR


def test_a_choice_of_another_index_and_thoughts_are_no_text():
    other = {"choices": [{"index": 1, "delta": {"content": "other"}}]}
    thought = {"choices": [{"index": 0, "delta": {"reasoning_content": "hm", "content": None}}]}
    assert outcome(other, thought, chunk("Lima"), chunk(None, "stop")).text == "Lima"
    refusal = {"choices": [{"index": 0, "delta": {"refusal": "I cannot."}, "finish_reason": "stop"}]}
    assert outcome(refusal).text == "I cannot."


def test_surrogates_cut_in_two_are_joined():
    assert outcome(chunk("\ud83d"), chunk("\ude00", "stop")).text == "😀"


def test_usage_above_its_bounds_is_not_believed():
    said = chunk("Lima", "stop"), USAGE_CHUNK
    reply = outcome(*said, bounds=TokenBounds(29, 100))
    assert reply.usage is None and reply.unbelieved == "prompt_tokens=30, completion_tokens=7"
    assert outcome(*said, bounds=TokenBounds(30, 7)).usage == Usage(30, 7)
    assert outcome(*said, bounds=TokenBounds(30, 6)).usage is None


@given(
    st.lists(st.one_of(st.text(max_size=20), st.recursive(st.none() | st.text(max_size=5), st.lists).map(json.dumps)))
)
def test_any_events_get_an_outcome(said):
    assert isinstance(outcome(*said), Failure)
