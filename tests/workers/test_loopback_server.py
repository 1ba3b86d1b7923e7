"""The loopback server as a stranger's client sees it, and the disturbances it can be given."""

import asyncio
import json
import statistics

import aiohttp
import pytest

from rw.workers.disturbances import faults_at_rate, lognormal_latency
from rw.workers.loopback import Completion, CompletionCall, CompletionError, Fault, serve

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "seed": 1, "temperature": 0.5}


def call_of(content: str = "hi", header: str | None = None) -> CompletionCall:
    return CompletionCall("m", content, header, 42, 4096, 0.2)


async def post(base_url: str, body=BODY, header: str | None = None):
    headers = {"x-rw-call": header} if header else {}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{base_url}/chat/completions", json=body, headers=headers) as response:
            return response.status, await response.json()


async def test_answer_has_the_shape_of_the_api_and_depends_on_the_call_alone():
    server = await serve(lambda call: Completion(call.content.upper(), 3, 1, "length"), models=("m", "n"))
    status, first = await post(server.base_url)
    _, second = await post(server.base_url)
    async with aiohttp.ClientSession() as session, session.get(f"{server.base_url}/models") as response:
        models = await response.json()
    await server.close()
    assert status == 200 and first == second
    assert first["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "HI"}, "finish_reason": "length"}
    ]
    assert first["usage"] == {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    assert first["object"] == "chat.completion" and first["model"] == "m" and first["id"].startswith("chatcmpl-")
    assert [model["id"] for model in models["data"]] == ["m", "n"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"model": "m", "messages": []},
        {"model": "m", "messages": [{"role": "user"}]},
        BODY | {"stream": 1},
        BODY | {"stream_options": {"include_usage": True}},
        BODY | {"stream": True, "stream_options": 1},
    ],
)
async def test_malformed_requests_are_answered_400_in_the_apis_error_shape(body):
    server = await serve(lambda call: Completion("ok", 1, 1))
    status, answer = await post(server.base_url, body)
    await server.close()
    assert status == 400 and set(answer["error"]) == {"message", "type", "param", "code"}


async def test_handlers_errors_are_answered_with_their_status_and_its_bugs_with_500(caplog):
    def handler(call):
        if call.content == "hi":
            raise CompletionError(404, "no such question")
        raise KeyError("oops")

    server = await serve(handler)
    status, answer = await post(server.base_url)
    assert (status, answer["error"]["message"]) == (404, "no such question")
    status, answer = await post(server.base_url, BODY | {"messages": [{"role": "user", "content": "bug"}]})
    await server.close()
    assert (status, answer["error"]["type"]) == (500, "server_error") and "oops" in caplog.text


async def test_faults_see_the_attempt_number_of_their_own_call():
    seen = []

    def faults(call, attempt):
        seen.append((call.call_header, call.content, attempt))
        return None

    server = await serve(lambda call: Completion("ok", 1, 1), faults=faults)
    for header in ("0/0/0/1/0", "0/0/0/1/1", "0/0/0/1/0", None, None):
        await post(server.base_url, header=header)
    await server.close()
    assert [(header, attempt) for header, _, attempt in seen] == [
        ("0/0/0/1/0", 1),
        ("0/0/0/1/1", 1),
        ("0/0/0/1/0", 2),
        (None, 1),
        (None, 2),
    ]


async def test_256_connections_at_once_share_one_loop_with_their_clients():
    server = await serve(lambda call: Completion("ok", 1, 1), latency=lambda call: 0.2)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one():
            async with session.post(f"{server.base_url}/chat/completions", json=BODY) as response:
                await response.read()
                return response.status

        async with asyncio.timeout(5):
            assert await asyncio.gather(*(one() for _ in range(256))) == [200] * 256
    await server.close()
    assert server.requests == 256


async def test_closing_does_not_wait_for_hung_requests():
    server = await serve(lambda call: Completion("ok", 1, 1), faults=lambda call, attempt: Fault.HANG)
    task = asyncio.create_task(post(server.base_url))
    while not server.requests:
        await asyncio.sleep(0.005)
    async with asyncio.timeout(3):
        await server.close()
        await server.close()
        with pytest.raises(aiohttp.ClientError):
            await task


def test_latency_has_its_mean_and_belongs_to_the_call():
    latency = lognormal_latency(0.5, seed=3)
    drawn = [latency(call_of(header=f"0/0/0/0/{i}")) for i in range(4000)]
    assert statistics.fmean(drawn) == pytest.approx(0.5, rel=0.06) and min(drawn) > 0
    assert latency(call_of(header="0/0/0/0/7")) == drawn[7]
    assert lognormal_latency(0.5, seed=4)(call_of(header="0/0/0/0/7")) != drawn[7]
    assert lognormal_latency(0.0) is None


def test_faults_come_at_their_rate_and_retries_draw_anew():
    faults = faults_at_rate(0.05, seed=1, fault=Fault.RESET)
    hit = [i for i in range(4000) if faults(call_of(f"q{i}"), 1) is Fault.RESET]
    assert 150 <= len(hit) <= 250
    again = [i for i in hit if faults(call_of(f"q{i}"), 2) is not None]
    assert len(again) < 30
    assert faults_at_rate(0.0) is None


async def test_hung_request_ends_with_the_client_that_left():
    server = await serve(lambda call: Completion("ok", 1, 1), faults=lambda call, attempt: Fault.HANG)
    before = len(asyncio.all_tasks())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await post(server.base_url)
    async with asyncio.timeout(3):
        while len(asyncio.all_tasks()) > before:
            await asyncio.sleep(0.01)
    await server.close()


async def post_stream(base_url: str, **fields):
    """The data of a streamed answer's events, in order, as text."""
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{base_url}/chat/completions", json=BODY | {"stream": True} | fields) as response:
            assert response.status == 200 and response.content_type == "text/event-stream"
            text = (await response.read()).decode()
    assert text.endswith("\n\n")
    lines = text.removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [line.removeprefix("data: ") for line in lines]


@pytest.mark.parametrize("text", ["", "HI", "one  two\nextraordinarily\n", "  漢字 \U0001f600 é "])
async def test_stream_says_the_same_as_the_whole_answer_in_the_apis_chunks(text):
    server = await serve(lambda call: Completion(text, 3, 2, "length"))
    _, whole = await post(server.base_url)
    first = await post_stream(server.base_url, stream_options={"include_usage": True})
    again = await post_stream(server.base_url, stream_options={"include_usage": True})
    await server.close()
    assert first == again and first[-1] == "[DONE]"
    *chunks, usage = [json.loads(data) for data in first[:-1]]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert {(chunk["id"], chunk["object"], chunk["usage"]) for chunk in chunks} == {
        (whole["id"], "chat.completion.chunk", None)
    }
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(choice["delta"].get("content", "") for choice in choices) == text
    assert choices[-1] == {"index": 0, "delta": {}, "finish_reason": "length"}
    assert {choice["finish_reason"] for choice in choices[:-1]} == {None}
    assert usage["choices"] == [] and usage["usage"] == whole["usage"]


async def test_stream_keeps_usage_to_itself_unless_it_is_asked_for():
    server = await serve(lambda call: Completion("one two", 3, 2))
    for options in ({}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}):
        data = await post_stream(server.base_url, **options)
        assert len(data) == 5 and "usage" not in "".join(data)  # role, two words, the end, [DONE]
    await server.close()
