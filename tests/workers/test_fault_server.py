"""What each fault looks like to a client that judges nothing: raw sockets, raw bytes."""

import asyncio
import collections
import contextlib
import email.utils
import json
import resource
import statistics
import time
import zlib

import aiohttp
import pytest

from rw.workers import faulty
from rw.workers.admission import AdmissionLimit
from rw.workers.completion import DONE, Completion, CompletionCall
from rw.workers.disturbances import first_fault, lasting_faults, mixed_faults, tailed_latency
from rw.workers.faulty import PASSING, REFUSALS, REJECTIONS, Fault, said
from rw.workers.loopback import serve

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "seed": 1}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
STATUSES = {
    Fault.HTTP_429: 429,
    Fault.HTTP_429_RETRY_AFTER: 429,
    Fault.HTTP_429_RETRY_DATE: 429,
    Fault.HTTP_500: 500,
    Fault.HTTP_502_HTML: 502,
    Fault.HTTP_503_HTML: 503,
    Fault.HTTP_400: 400,
    Fault.HTTP_404: 404,
    Fault.REFUSED: 401,
    Fault.HTTP_402: 402,
    Fault.HTTP_403: 403,
    Fault.HTML: 200,
}
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def say(call: CompletionCall) -> Completion:
    return Completion("one two three", 30, 7)


def call_of(content="hi", stream=False, header=None, attempt=1) -> CompletionCall:
    return CompletionCall("m", content, header, 1, None, None, {}, stream, include_usage=stream, attempt=attempt)


@contextlib.asynccontextmanager
async def faulty_server(fault: Fault | None, **options):
    server = await serve(say, faults=lambda call, attempt: fault, **options)
    try:
        yield server
    finally:
        await server.close()


async def ask(server, stream: bool = False, limit_s: float = 5.0):
    """Status, headers and body, as far as it came, and the exception that ended it."""
    body, status, headers = bytearray(), None, {}
    timeout = aiohttp.ClientTimeout(total=limit_s)
    async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
        try:
            async with session.post(
                f"{server.base_url}/chat/completions", json=BODY | (STREAM if stream else {})
            ) as response:
                status, headers = response.status, response.headers
                async for chunk in response.content.iter_any():
                    body += chunk
        except (aiohttp.ClientError, TimeoutError) as error:
            return status, headers, bytes(body), error
    return status, headers, bytes(body), None


def chunks_of(parts: list[bytes]) -> list[dict]:
    return [json.loads(part.removeprefix(b"data: ")) for part in parts if part != DONE]


def text_of(chunks: list[dict]) -> str:
    deltas = [choice.get("delta", {}) for chunk in chunks for choice in chunk.get("choices", [])]
    return "".join(delta.get("content", "") for delta in deltas)


@pytest.mark.parametrize("fault", STATUSES, ids=lambda fault: fault.value)
@both
async def test_statuses_come_as_errors_of_the_api_or_as_web_pages(fault, stream):
    async with faulty_server(fault) as server:
        status, headers, body, error = await ask(server, stream)
    assert (status, error) == (STATUSES[fault], None)
    if fault in (Fault.HTML, Fault.HTTP_502_HTML, Fault.HTTP_503_HTML):
        assert headers["Content-Type"].startswith("text/html") and body.startswith(b"<!doctype html>")
    else:
        assert json.loads(body)["error"]["message"] == f"injected fault: {fault.value}"
    if fault is Fault.HTTP_429_RETRY_DATE:
        assert 0 < email.utils.parsedate_to_datetime(headers["Retry-After"]).timestamp() - time.time() <= 2
    else:
        assert headers.get("Retry-After") == ("1" if fault is Fault.HTTP_429_RETRY_AFTER else None)


@both
async def test_resets_and_cuts_reach_the_client_as_broken_connections(stream):
    whole = b"".join(said(call_of(stream=stream), say(None)))
    async with faulty_server(Fault.RESET) as server:
        status, _, body, error = await ask(server, stream)
        assert (status, body) == (None, b"") and isinstance(
            error, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError
        )
        assert server.requests == 1
    for fault in (Fault.RESET_IN_BODY, Fault.CUT_BODY):
        async with faulty_server(fault) as server:
            status, _, body, error = await ask(server, stream)
        assert status == 200 and body == whole[: len(whole) // 2]
        assert isinstance(error, aiohttp.ClientPayloadError | aiohttp.ClientOSError)


@both
async def test_hangs_give_nothing_or_headers_or_half_until_the_client_leaves(stream):
    whole = b"".join(said(call_of(stream=stream), say(None)))
    for fault, expected in {
        Fault.HANG: (None, b""),
        Fault.HANG_AFTER_HEADERS: (200, b""),
        Fault.HANG_IN_BODY: (200, whole[: len(whole) // 2]),
    }.items():
        async with faulty_server(fault) as server:
            status, _, body, error = await ask(server, stream, limit_s=0.2)
            assert (status, body) == expected and isinstance(error, TimeoutError)
            async with asyncio.timeout(3):
                while server.open_connections or not server.abandoned:
                    await asyncio.sleep(0.01)


@both
async def test_trickling_answer_is_the_right_one_a_byte_at_a_time(stream, monkeypatch):
    monkeypatch.setattr(faulty, "TRICKLE_S", 0.0)
    async with faulty_server(Fault.SLOW) as server:
        status, _, body, error = await ask(server, stream)
    assert (status, error) == (200, None) and body == b"".join(said(call_of(stream=stream), say(None)))
    monkeypatch.setattr(faulty, "TRICKLE_S", 0.02)
    async with faulty_server(Fault.SLOW) as server:
        _, _, body, error = await ask(server, stream, limit_s=0.3)
    assert isinstance(error, TimeoutError) and 1 < len(body) < 40


def test_whole_answers_that_are_wrong_are_wrong_in_one_way():
    def answer(fault):
        (body,) = said(call_of(), say(None), fault)
        return body

    right = json.loads(answer(None))
    with pytest.raises(ValueError):
        json.loads(answer(Fault.TRUNCATED_JSON))
    assert answer(None).startswith(answer(Fault.TRUNCATED_JSON)) and answer(Fault.TRUNCATED_JSON)
    assert "choices" not in json.loads(answer(Fault.WRONG_SCHEMA)) and b"one two three" in answer(Fault.WRONG_SCHEMA)
    assert json.loads(answer(Fault.NO_CHOICES)) == right | {"choices": []}
    assert json.loads(answer(Fault.EMPTY_CHOICE))["choices"][0]["message"]["content"] == ""
    assert json.loads(answer(Fault.EMPTY_CHOICE))["usage"] == right["usage"]
    assert json.loads(answer(Fault.NO_USAGE)) == {key: right[key] for key in right if key != "usage"}
    assert json.loads(answer(Fault.NEGATIVE_USAGE))["usage"]["prompt_tokens"] < 0
    assert json.loads(answer(Fault.ABSURD_USAGE))["usage"]["completion_tokens"] == 10**9
    assert json.loads(answer(Fault.STREAM_ERROR))["error"]["code"] == 502
    assert answer(Fault.DUPLICATE_CHUNKS) == answer(None)


def test_streams_that_are_wrong_are_wrong_in_one_way():
    def stream(fault):
        return said(call_of(stream=True), say(None), fault)

    right = stream(None)
    assert right[-1] == DONE and text_of(chunks_of(right)) == "one two three"
    assert stream(Fault.NO_USAGE) == [right[0], *right[1:-2], DONE] and chunks_of(right)[-1]["usage"]
    assert chunks_of(stream(Fault.NEGATIVE_USAGE))[-1]["usage"]["prompt_tokens"] < 0
    assert chunks_of(stream(Fault.ABSURD_USAGE))[-1]["usage"]["prompt_tokens"] == 10**9
    assert not any(chunk["choices"] for chunk in chunks_of(stream(Fault.NO_CHOICES)))
    assert text_of(chunks_of(stream(Fault.EMPTY_CHOICE))) == "" and stream(Fault.EMPTY_CHOICE)[-2:] == right[-2:]
    assert not any("choices" in chunk for chunk in chunks_of(stream(Fault.WRONG_SCHEMA)))

    twice = collections.Counter(stream(Fault.DUPLICATE_CHUNKS))
    assert text_of(chunks_of(stream(Fault.DUPLICATE_CHUNKS))) == "one two three"
    assert [twice[part] for part in right] == [2, 1, 1, 1, 2, 2, 2]  # role, three words, the end, usage, [DONE]

    cut = stream(Fault.CUT_STREAM)
    assert 1 < len(cut) < len(right) - 2 and cut == right[: len(cut)]
    *before, error = chunks_of(stream(Fault.STREAM_ERROR))
    assert text_of(before) and error["error"]["type"] == "server_error"
    broken = stream(Fault.TRUNCATED_JSON)
    assert broken[-1] == DONE and broken[-2].endswith(b"\n\n")
    with pytest.raises(ValueError):
        json.loads(broken[-2].removeprefix(b"data: "))


@pytest.mark.parametrize("fault", [Fault.HUGE_BODY, Fault.GZIP_BOMB], ids=lambda fault: fault.value)
@both
async def test_huge_bodies_are_made_while_they_are_read(fault, stream):
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unpacker = zlib.decompressobj(wbits=31) if fault is Fault.GZIP_BOMB else None
    seen = sent = 0
    async with faulty_server(fault) as server, aiohttp.ClientSession(auto_decompress=False) as session:
        async with session.post(
            f"{server.base_url}/chat/completions", json=BODY | (STREAM if stream else {})
        ) as response:
            assert response.headers.get("Content-Encoding") == ("gzip" if unpacker else None)
            async for chunk in response.content.iter_any():
                sent += len(chunk)
                seen += len(unpacker.decompress(chunk)) if unpacker else len(chunk)
                if seen > 30_000_000:
                    break
            response.close()
        async with asyncio.timeout(3):
            while server.open_connections:
                await asyncio.sleep(0.01)
    assert sent < seen / 100 if unpacker else sent == seen
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 100 * 1024


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.full)], ids=["whole", "stream"])
async def test_a_gzip_bomb_is_a_whole_answer_of_200_mb_to_who_reads_it_all(stream):
    async with faulty_server(Fault.GZIP_BOMB) as server:
        status, _, body, error = await ask(server, stream, limit_s=60)
    assert (status, error) == (200, None) and len(body) < 2_000_000
    unpacker, pending, size, tail = zlib.decompressobj(wbits=31), body, 0, b""
    while pending:
        piece = unpacker.decompress(pending, 1 << 20)
        size, tail, pending = size + len(piece), (tail + piece)[-400:], unpacker.unconsumed_tail
    assert unpacker.eof and faulty.HUGE_BYTES < size < 1.1 * faulty.HUGE_BYTES
    assert tail.endswith(DONE) if stream else json.loads(b'{"choices":[{"message":{"content":"' + tail.lstrip(b"x"))


async def test_a_closed_port_refuses_and_opens_again_with_its_number():
    async with faulty_server(None) as server:
        await server.refuse_connections()
        status, _, _, error = await ask(server)
        assert status is None and isinstance(error, aiohttp.ClientConnectorError)
        await server.accept_connections()
        assert (await ask(server))[0] == 200 and server.requests == 1


async def test_a_stalled_port_takes_connections_that_nobody_answers_until_it_accepts_again():
    async with faulty_server(None) as server:
        await server.stall_connections()
        status, _, _, error = await ask(server, limit_s=0.2)
        assert status is None and isinstance(error, TimeoutError)
        assert not isinstance(error, aiohttp.ConnectionTimeoutError) and server.requests == 0
        waiting = asyncio.create_task(ask(server))
        await asyncio.sleep(0.1)
        assert not waiting.done() and server.requests == 0
        await server.accept_connections()
        assert (await waiting)[0] == 200


async def test_closing_a_stalled_server_ends_who_waits():
    async with faulty_server(None) as server:
        await server.stall_connections()
        waiting = asyncio.create_task(ask(server))
        await asyncio.sleep(0.05)
        await server.close()
        assert isinstance((await waiting)[-1], aiohttp.ClientError)


async def test_requests_beyond_the_limit_are_told_when_to_come_back():
    now_s = 100.0
    limit = AdmissionLimit(requests_per_minute=120, burst=3, clock=lambda: now_s)
    async with faulty_server(None, limit=limit) as server:
        answers = [await ask(server) for _ in range(5)]
        assert [status for status, *_ in answers] == [200, 200, 200, 429, 429]
        assert [headers.get("Retry-After") for _, headers, _, _ in answers[3:]] == ["0.500", "0.500"]
        now_s += 0.5
        assert [(await ask(server))[0] for _ in range(2)] == [200, 429]
    assert (limit.admitted, limit.rejected) == ({"m": 4}, {"m": 3})


def test_limits_let_in_their_rate_for_each_model():
    now_s = 0.0
    limit = AdmissionLimit(requests_per_minute=600, burst=5, clock=lambda: now_s)
    for tick in range(6000):  # a minute
        now_s = tick * 0.01
        for model in ("a", "b"):
            limit.retry_after_s(model)
    assert all(600 <= limit.admitted[model] <= 605 for model in ("a", "b"))
    now_s += 3600.0
    assert [limit.retry_after_s("a") is None for _ in range(6)] == [True] * 5 + [False]  # idle time is not saved up
    with pytest.raises(ValueError, match="above 0"):
        AdmissionLimit(0)


def test_mixed_faults_come_at_their_rate_each_as_often_and_belong_to_seed_call_and_attempt():
    faults = mixed_faults(0.2, seed=5)
    drawn = {(i, attempt): faults(call_of(f"q{i}"), attempt) for i in range(10_000) for attempt in (1, 2)}
    counts = collections.Counter(drawn.values())
    assert sum(counts[fault] for fault in PASSING) == 20_000 - counts[None] and 3800 < 20_000 - counts[None] < 4200
    mean = 4000 / len(PASSING)
    assert all(0.6 * mean < counts[fault] < 1.4 * mean for fault in PASSING) and set(counts) == {None, *PASSING}
    assert drawn[7, 1] == mixed_faults(0.2, seed=5)(call_of("q7"), 1)
    assert [fault for fault in drawn.values()] != [
        mixed_faults(0.2, seed=6)(call_of(f"q{i}"), attempt) for i in range(10_000) for attempt in (1, 2)
    ]
    twice = sum(drawn[i, 1] is not None and drawn[i, 2] is not None for i in range(10_000))
    assert 320 < twice < 480  # attempts are drawn apart
    assert mixed_faults(1.0, faults=[Fault.RESET])(call_of(), 1) is Fault.RESET and mixed_faults(0.0) is None


def test_lasting_faults_hit_every_attempt_of_their_calls_and_come_before_others():
    faults = lasting_faults(0.1, seed=3)
    lost = [i for i in range(5000) if faults(call_of(f"q{i}"), 1)]
    assert 400 < len(lost) < 600
    assert all(faults(call_of(f"q{i}"), attempt) is Fault.HTTP_400 for i in lost for attempt in (2, 9))
    both = first_fault(faults, None, mixed_faults(1.0, faults=[Fault.RESET]))
    assert [both(call_of(f"q{i}"), 1) for i in (lost[0], lost[0] + 1)] == [Fault.HTTP_400, Fault.RESET]
    assert first_fault(lasting_faults(0.0), None) is None


def test_faults_are_sorted_by_what_a_client_can_do():
    assert REFUSALS < REJECTIONS and not REJECTIONS & set(PASSING)
    assert {Fault.HANG, Fault.RESET, Fault.HTTP_429, Fault.CUT_STREAM, Fault.GZIP_BOMB} < set(PASSING)


def test_tailed_latency_has_its_quantiles_and_its_stalls():
    latency = tailed_latency(seed=2, scale=0.1)
    drawn = sorted(latency(call_of(header=f"0/0/0/0/{i}")) for i in range(20_000))
    assert statistics.median(drawn) == pytest.approx(0.3, rel=0.05)
    assert 150 < drawn.count(0.1 * 60.0) < 250
    plain = [seconds for seconds in drawn if seconds != 0.1 * 60.0]
    assert plain[int(0.95 * len(plain))] == pytest.approx(1.2, rel=0.06)
    assert latency(call_of(header="0/0/0/0/3")) == latency(call_of(header="0/0/0/0/3"))
    assert latency(call_of(header="0/0/0/0/3")) != latency(call_of(header="0/0/0/0/3", attempt=2))
    with pytest.raises(ValueError, match="median"):
        tailed_latency(median_s=12.0, p95_s=3.0)


async def test_an_attempt_that_was_abandoned_in_its_latency_counts():
    seen = []
    server = await serve(say, latency=lambda call: seen.append(call.attempt) or (0.5 if call.attempt == 1 else 0.0))
    assert isinstance((await ask(server, limit_s=0.1))[-1], TimeoutError)
    assert (await ask(server))[0] == 200
    await server.close()
    assert seen == [1, 2] and server.abandoned == 1
