"""Streams through the client and real sockets: when they are asked for, deadlines, caps, Workers that do not stream."""

import asyncio
import contextlib
import json
import logging
import time
import zlib

import pytest
from aiohttp import web

from rw.errors import ConfigError
from rw.types import CallId, CallStatus, Role
from rw.workers.completion import DONE, Completion, CompletionCall, completion_chunks, event
from rw.workers.faulty import Fault
from rw.workers.http import ClientConfig, HttpWorkerClient, WorkerEndpoint
from rw.workers.interface import WorkerRequest
from rw.workers.loopback import serve
from rw.workers.pricing import Price, PriceTable
from rw.workers.retry import RetryPolicy

from .virtual_client import raw_server

PRICES = PriceTable({"worker_1": Price(2.0, 10.0)})
NO_RETRIES = RetryPolicy(0, 0, 0, 0, 0, 0, 0)
CALL = CompletionCall("m", "hi", None, 42, 4096, 0.2, stream=True, include_usage=True)
SAID = Completion("Lima is the capital.", 30, 7)
CHUNKS = [event(chunk) for chunk in completion_chunks(CALL, SAID)]


def request(content: str = "hi", call: int = 0) -> WorkerRequest:
    return WorkerRequest(CallId(3, 1, 4, 2, call), "worker_1", "n1", Role.EXECUTOR, (), "sub", content)


def client_of(base_url: str, config: ClientConfig | None = None, **fields) -> HttpWorkerClient:
    worker = WorkerEndpoint("worker_1", "d", base_url, "m", **fields)
    return HttpWorkerClient([worker], PRICES, None, config or ClientConfig(retry=NO_RETRIES))


@contextlib.asynccontextmanager
async def streaming(send, bodies: list | None = None, content_type: str = "text/event-stream"):
    """A server that answers each request with a 200 whose body `send(write)` writes."""

    async def handle(req: web.Request) -> web.StreamResponse:
        if bodies is not None:
            bodies.append(await req.json())
        response = web.StreamResponse(headers={"Content-Type": content_type})
        await response.prepare(req)
        await send(response.write)
        return response

    async with raw_server(handle) as base_url:
        yield base_url


def sends(*parts: bytes, pause_s: float = 0.0):
    async def send(write):
        for part in parts:
            await write(part)
            await asyncio.sleep(pause_s)

    return send


async def one_call(base_url: str, config: ClientConfig | None = None, **fields):
    client = client_of(base_url, config, **fields)
    try:
        return await client.call(request())
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("fields", "streamed"),
    [
        ({"max_output_tokens": 1024}, False),
        ({"max_output_tokens": 1025}, True),
        ({"max_output_tokens": 16, "stream": "always"}, True),
        ({"max_output_tokens": 4096, "stream": "never"}, False),
    ],
)
async def test_long_answers_are_asked_for_as_streams_with_usage(fields, streamed):
    seen = []
    server = await serve(lambda call: seen.append(call) or SAID)
    call = await one_call(server.base_url, **fields)
    await server.close()
    assert [(c.stream, c.include_usage) for c in seen] == [(streamed, streamed)]
    assert (call.status, call.output, call.finish_reason) == (CallStatus.OK, SAID.text, "stop")
    assert (call.input_tokens, call.output_tokens) == (30, 7)


async def test_cap_on_tokens_goes_by_the_name_that_the_endpoint_knows():
    for key in ("max_tokens", "max_completion_tokens"):
        bodies = []
        async with streaming(sends(*CHUNKS, DONE), bodies) as base_url:
            await one_call(base_url, max_tokens_key=key, max_output_tokens=2000)
        assert {k: v for k, v in bodies[0].items() if k.startswith("max_")} == {key: 2000}
    with pytest.raises(ConfigError, match="max_tokens_key='tokens' is not one of max_tokens, max_completion_tokens"):
        WorkerEndpoint("w", "d", "http://h/v1", "m", max_tokens_key="tokens")
    with pytest.raises(ConfigError, match="stream='yes' is not one of auto, always, never"):
        WorkerEndpoint("w", "d", "http://h/v1", "m", stream="yes")
    for key in ("max_tokens", "max_completion_tokens", "stream_options"):
        with pytest.raises(ConfigError, match=f"extra_body may not set {key}"):
            WorkerEndpoint("w", "d", "http://h/v1", "m", extra_body={key: 1})


async def test_streams_share_their_connections():
    peers = set()

    async def handle(req):
        peers.add(req.transport.get_extra_info("peername"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(req)
        await sends(*CHUNKS, DONE)(response.write)
        return response

    async with raw_server(handle) as base_url:
        client = client_of(base_url)
        for i in range(5):
            await client.call(request(call=i))
        await client.close()
    assert len(peers) == 1


async def test_a_connection_that_was_idle_is_not_used_when_its_server_may_be_closing_it(monkeypatch):
    peers = []

    async def handle(req):
        peers.append(req.transport.get_extra_info("peername"))
        return web.json_response({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]})

    monkeypatch.setattr("rw.workers.http._KEPT_S", 0.1)
    async with raw_server(handle) as base_url:
        client = client_of(base_url, stream="never")
        for idle_s in (0.0, 0.0, 0.5):
            await asyncio.sleep(idle_s)
            await client.call(request())
        await client.close()
    assert peers[0] == peers[1] != peers[2]


@pytest.mark.parametrize("content_type", ["Text/Event-Stream", "text/event-stream;charset=UTF-8"])
async def test_a_stream_is_known_by_its_type_however_that_is_spelled(content_type):
    async with streaming(sends(*CHUNKS, DONE), content_type=content_type) as base_url:
        call = await one_call(base_url)
    assert (call.status, call.output) == (CallStatus.OK, SAID.text)


async def test_server_that_stays_on_after_the_end_keeps_nobody_waiting():
    async def send(write):
        await sends(*CHUNKS, DONE)(write)
        await asyncio.sleep(60)

    async with streaming(send) as base_url:
        began = time.monotonic()
        call = await one_call(base_url)
        assert time.monotonic() - began < 5
    assert (call.status, call.output, call.cost_usd is not None) == (CallStatus.OK, SAID.text, True)


@pytest.mark.parametrize("keep_alive", [b"", b": still here\n\n"], ids=["silence", "keep-alives"])
async def test_stream_that_never_begins_ends_at_the_first_byte_deadline(keep_alive):
    async def send(write):
        while True:
            await write(keep_alive or b"\n")
            await asyncio.sleep(0.02)

    config = ClientConfig(first_byte_timeout_s=0.3, attempt_timeout_s=30, retry=NO_RETRIES)
    async with streaming(send) as base_url:
        began = time.monotonic()
        call = await one_call(base_url, config)
    assert call.failure == "timeout" and 0.25 < time.monotonic() - began < 3


async def test_stream_that_has_begun_has_the_whole_attempt():
    parts = [CHUNKS[0], *CHUNKS[1:], DONE]
    config = ClientConfig(first_byte_timeout_s=0.2, attempt_timeout_s=30, retry=NO_RETRIES)
    async with streaming(sends(*parts, pause_s=0.06)) as base_url:
        call = await one_call(base_url, config)
    assert (call.status, call.output) == (CallStatus.OK, SAID.text) and call.latency_s > 0.3


@pytest.mark.parametrize(("attempt_s", "call_s", "cause"), [(0.4, 30, "timeout"), (30, 0.4, "deadline")])
async def test_trickling_stream_never_extends_a_deadline(attempt_s, call_s, cause):
    async def send(write):
        while True:
            await write(CHUNKS[1])
            await asyncio.sleep(0.01)

    config = ClientConfig(attempt_timeout_s=attempt_s, call_deadline_s=call_s, retry=NO_RETRIES)
    async with streaming(send) as base_url:
        began = time.monotonic()
        call = await one_call(base_url, config)
    assert call.failure == cause and 0.35 < time.monotonic() - began < 3


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("kind", ["text", "overhead", "one_line", "json"])
async def test_bodies_over_the_cap_are_cut_off_however_packed(kind, packed):
    written = 0
    piece = {
        "text": event({"choices": [{"index": 0, "delta": {"content": "x" * 1000}}]}),
        "overhead": event({"choices": [], "padding": "x" * 1000}),
        "one_line": b"data: " + b"x" * 1000,
        "json": b" " * 1000,
    }[kind]

    async def handle(req):
        nonlocal written
        headers = {"Content-Type": "application/json" if kind == "json" else "text/event-stream"}
        response = web.StreamResponse(headers=headers | ({"Content-Encoding": "gzip"} if packed else {}))
        await response.prepare(req)
        packer = zlib.compressobj(wbits=31)
        for _ in range(50_000):
            written += len(piece)
            await response.write(packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) if packed else piece)
            await asyncio.sleep(0)
        return response

    async with raw_server(handle) as base_url:
        call = await one_call(base_url, ClientConfig(max_body_bytes=50_000, retry=NO_RETRIES))
    assert call.failure == "bad_response" and written < 30_000_000


async def test_server_that_ignores_the_wish_works_and_is_not_asked_again(caplog):
    bodies = []

    async def plain(req):
        bodies.append(await req.json())
        usage = {"prompt_tokens": 30, "completion_tokens": 7}
        return web.json_response({"choices": [{"message": {"content": "plain"}}], "usage": usage})

    async with raw_server(plain) as base_url:
        client = client_of(base_url)
        with caplog.at_level(logging.WARNING):
            calls = [await client.call(request(call=i)) for i in range(3)]
        await client.close()
    assert [(call.output, call.cost_usd is not None) for call in calls] == [("plain", True)] * 3
    assert ["stream" in body for body in bodies] == [True, False, False]
    assert [r.getMessage() for r in caplog.records] == [
        "worker_1 answers in one piece when asked for a stream; it is not streamed from now on"
    ]


async def test_server_that_refuses_streams_is_asked_again_without(caplog):
    async def refuse(req):
        if (await req.json()).get("stream"):
            return web.json_response({"error": {"message": "stream_options is not permitted"}}, status=400)
        return web.json_response({"choices": [{"message": {"content": "plain"}}]})

    async with raw_server(refuse) as base_url:
        client = client_of(base_url, ClientConfig(retry=RetryPolicy(backoff_s=0.01)))
        call = await client.call(request())
        strict = client_of(base_url, stream="always")
        refused = await strict.call(request())
        await client.close()
        await strict.close()
    assert (call.output, call.attempts) == ("plain", 2)
    assert (refused.failure, refused.attempts) == ("client_error", 1)  # the user wants streams or nothing


async def test_a_bad_request_is_not_taken_for_a_refusal_to_stream():
    bodies = []

    async def reject(req):
        bodies.append(await req.json())
        return web.json_response({"error": {"message": "the upstream model does not exist"}}, status=404)

    async with raw_server(reject) as base_url:
        client = client_of(base_url)
        calls = [await client.call(request(call=i)) for i in range(2)]
        await client.close()
    assert [(call.failure, call.attempts) for call in calls] == [("client_error", 1)] * 2
    assert all(body["stream"] for body in bodies)


async def test_worker_that_drops_usage_from_its_streams_is_not_streamed_any_more(caplog):
    bodies = []

    async def drop(req):
        bodies.append(await req.json())
        if not bodies[-1].get("stream"):
            usage = {"prompt_tokens": 30, "completion_tokens": 7}
            return web.json_response({"choices": [{"message": {"content": "whole"}}], "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(req)
        await sends(*CHUNKS[:-1], DONE)(response.write)
        return response

    async with raw_server(drop) as base_url:
        client = client_of(base_url)
        with caplog.at_level(logging.WARNING):
            calls = [await client.call(request(call=i)) for i in range(5)]
        await client.close()
    assert [call.status for call in calls] == [CallStatus.OK] * 5
    assert [call.cost_usd is None for call in calls] == [True, True, True, False, False]
    assert ["stream" in body for body in bodies] == [True, True, True, False, False]
    assert client.usage_missing == {"worker_1": 3}
    said = [r.getMessage() for r in caplog.records if "streamed" in r.getMessage()]
    assert said == ["worker_1 leaves usage out of its streams; it is not streamed from now on"]


async def test_connection_lost_in_the_middle_is_a_reset_and_after_the_end_is_none():
    async def handle(req):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(req)
        whole = json.loads(await req.read())["messages"][0]["content"] == "whole"
        for part in CHUNKS if whole else CHUNKS[:2]:
            await response.write(part)
        await asyncio.sleep(0.05)
        req.transport.abort()
        return response

    async with raw_server(handle) as base_url:
        client = client_of(base_url)
        cut, whole = await client.call(request("cut")), await client.call(request("whole"))
        await client.close()
    assert (cut.failure, cut.output) == ("reset", "")
    assert (whole.status, whole.output, whole.output_tokens) == (CallStatus.OK, SAID.text, 7)


STREAM_FAULTS = {
    Fault.CUT_STREAM: "reset",
    Fault.STREAM_ERROR: "server_error",
    Fault.TRUNCATED_JSON: "bad_response",
    Fault.WRONG_SCHEMA: "bad_response",
    Fault.RESET_IN_BODY: "reset",
    Fault.CUT_BODY: "reset",
    Fault.EMPTY_CHOICE: "empty_output",
    Fault.DUPLICATE_CHUNKS: None,
    Fault.NO_USAGE: None,
    Fault.NEGATIVE_USAGE: None,
    Fault.ABSURD_USAGE: None,
}


@pytest.mark.parametrize("fault", STREAM_FAULTS, ids=lambda fault: fault.value)
async def test_faulty_streams_have_their_causes(fault):
    server = await serve(lambda call: SAID, faults=lambda call, attempt: fault)
    client = client_of(server.base_url)
    call = await client.call(request())
    await client.close()
    await server.close()
    cause = STREAM_FAULTS[fault]
    assert (call.failure, call.output) == (cause, "" if cause else SAID.text)
    has_usage = fault is Fault.DUPLICATE_CHUNKS
    assert (call.output_tokens, call.cost_usd is not None) == (7 if has_usage else None, has_usage)
    assert client.usage_unbelieved["worker_1"] == (fault in (Fault.NEGATIVE_USAGE, Fault.ABSURD_USAGE))
