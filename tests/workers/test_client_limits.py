"""Limits through the client: rates per minute, asked-for waits, and what waiting is charged to."""

import asyncio
import time

import pytest
from aiohttp import web

from rw.errors import FailureCause
from rw.types import CallId, CallStatus, Role
from rw.workers.completion import Completion
from rw.workers.config import ClientConfig, WorkerEndpoint
from rw.workers.faulty import error_response
from rw.workers.http import HttpWorkerClient
from rw.workers.interface import WorkerRequest
from rw.workers.loopback import serve
from rw.workers.pricing import Price, PriceTable
from rw.workers.retry import RetryPolicy

PRICES = PriceTable({"a": Price(1.0, 1.0), "b": Price(1.0, 1.0)})


def request(worker_id: str, call: int) -> WorkerRequest:
    return WorkerRequest(CallId(0, 0, 0, 0, call), worker_id, "n1", Role.EXECUTOR, (), "sub", "hi")


def endpoint(base_url: str, worker_id: str = "a", **fields) -> WorkerEndpoint:
    return WorkerEndpoint(worker_id, "d", base_url, "m", **fields)


async def test_limited_worker_is_paced_others_are_not_and_waiting_is_no_latency():
    times = {"a": [], "b": []}
    server = await serve(lambda call: times[call.model].append(time.monotonic()) or Completion("ok", 3, 1))
    workers = [
        WorkerEndpoint("a", "d", server.base_url, "a", requests_per_minute=1200.0),
        WorkerEndpoint("b", "d", server.base_url, "b"),
    ]
    # The last of 20 calls waits for 0.95 s; a deadline that counted it would end the call.
    client = HttpWorkerClient(workers, PRICES, None, ClientConfig(call_deadline_s=0.5))
    began = time.monotonic()
    calls = await asyncio.gather(*(client.call(request(w, i)) for i in range(20) for w in "ab"))
    await client.close()
    await server.close()
    assert {call.status for call in calls} == {CallStatus.OK}
    gaps = [later - earlier for earlier, later in zip(times["a"], times["a"][1:], strict=False)]
    assert sum(gaps) >= 0.7 and max(times["b"]) - began < 0.5
    limited = [call for call in calls if call.worker_id == "a"]
    assert max(call.queue_wait_s for call in limited) > 0.8 and max(call.latency_s for call in limited) < 0.5
    assert client.take_peak_in_flight()["a"] == 20 and client.take_peak_in_flight() == {"a": 0, "b": 0}


async def test_after_a_429_with_a_time_no_other_call_is_sent_before_it():
    times = []

    async def handle(req):
        times.append(time.monotonic())
        if len(times) == 1:
            return error_response(429, "slow down", {"Retry-After": "0.5"})
        return web.json_response({"choices": [{"message": {"content": "ok"}}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    config = ClientConfig(retry=RetryPolicy(backoff_s=0.01))
    client = HttpWorkerClient([endpoint(base_url)], PRICES, None, config)
    first = asyncio.create_task(client.call(request("a", 0)))
    while not client.retries:
        await asyncio.sleep(0.005)
    others = await asyncio.gather(*(client.call(request("a", 1 + i)) for i in range(10)))
    calls = [await first, *others]
    await client.close()
    await runner.cleanup()
    assert {call.status for call in calls} == {CallStatus.OK} and client.retries == {FailureCause.RATE_LIMITED: 1}
    assert min(times[1:]) - times[0] >= 0.5 and max(times) - times[0] < 2
    assert max(call.latency_s for call in others) < 0.4 < min(call.queue_wait_s for call in others)


async def test_wait_beyond_the_deadline_fails_one_call_and_later_ones_ask_again():
    hits = 0

    async def handle(req):
        nonlocal hits
        hits += 1
        if hits == 1:
            return error_response(429, "come back in an hour", {"Retry-After": "3600"})
        return web.json_response({"choices": [{"message": {"content": "ok"}}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    client = HttpWorkerClient([endpoint(base_url)], PRICES, None, ClientConfig(call_deadline_s=0.4))
    first = await client.call(request("a", 0))
    second = await client.call(request("a", 1))
    await client.close()
    await runner.cleanup()
    assert (first.failure, first.attempts) == ("rate_limited", 1)
    assert second.status is CallStatus.OK and 0.2 < second.queue_wait_s < 2


@pytest.mark.parametrize("adaptive", [False, True])
async def test_slow_worker_holds_up_no_other(adaptive):
    server = await serve(lambda call: Completion("ok", 3, 1), latency=lambda call: 5.0 if call.model == "a" else 0.0)
    workers = [
        WorkerEndpoint("a", "d", server.base_url, "a", max_concurrent=2, tokens_per_minute=20_000.0),
        WorkerEndpoint("b", "d", server.base_url, "b"),
    ]
    client = HttpWorkerClient(workers, PRICES, None, ClientConfig(adaptive_concurrency=adaptive))
    slow = [asyncio.create_task(client.call(request("a", i))) for i in range(50)]
    began = time.monotonic()
    quick = await asyncio.gather(*(client.call(request("b", i)) for i in range(50)))
    assert time.monotonic() - began < 4.5 and {call.status for call in quick} == {CallStatus.OK}
    assert max(call.queue_wait_s for call in quick) < 4.5 and client.in_flight == {"a": 2, "b": 0}
    assert client.concurrency_limits == {"a": 2, "b": client.concurrency_limits["b"]}
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    assert client.in_flight == {"a": 0, "b": 0}
    await client.close()
    await server.close()
