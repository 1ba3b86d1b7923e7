"""The HTTP client among many calls: permits, pools, cancellations, keys, and the books in a storm."""

import asyncio
import gc
import json
import random

import pytest
from aiohttp import web

from rw.errors import WorkerRefusedError
from rw.types import CallId, CallStatus
from rw.workers.faulty import REFUSALS
from rw.workers.http import ClientConfig, HttpWorkerClient, WorkerEndpoint
from rw.workers.interface import WorkerRequest
from rw.workers.ledger import Ledger, booked_usd, read_ledger, spent_usd
from rw.workers.loopback import Completion, Fault, serve
from rw.workers.pricing import Price, PriceTable
from rw.workers.retry import RetryPolicy

from .virtual_client import COST_USD, PRICES, echo, endpoint, free_port, raw_server, request, virtual_client


async def test_more_calls_than_permits_all_succeed_and_the_queue_is_not_charged():
    server = await serve(echo, latency=lambda call: 0.7)
    # Four waves of 0.7 s: a deadline that counted the queue would end the last one.
    config = ClientConfig(attempt_timeout_s=2.7, call_deadline_s=2.7, retry=RetryPolicy(timeout=0))
    client = HttpWorkerClient([endpoint(server.base_url, max_concurrent=64)], PRICES, None, config)
    calls = await asyncio.gather(*(client.call(request(f"q{i}", call=i)) for i in range(256)))
    assert client.in_flight == {"worker_1": 0}
    await client.close()
    await server.close()
    assert [call.output for call in calls] == [f"echo q{i}" for i in range(256)]
    assert server.requests == 256
    assert max(call.queue_wait_s + call.latency_s for call in calls) > 2.7 > max(call.latency_s for call in calls)


async def test_in_flight_requests_never_exceed_the_limit():
    active, peak = 0, 0

    async def count(req):
        nonlocal active, peak
        active += 1
        peak = max(peak, active)
        await asyncio.sleep(0.01)
        active -= 1
        return web.json_response({"choices": [{"message": {"content": "ok"}}]})

    async with raw_server(count) as base_url:
        client = HttpWorkerClient([endpoint(base_url, max_concurrent=5)], PRICES, None)
        await asyncio.gather(*(client.call(request(call=i)) for i in range(40)))
        await client.close()
    assert peak == 5


async def test_after_500_cancelled_calls_64_parallel_calls_still_work(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    hang = True
    server = await serve(echo, faults=lambda call, attempt: Fault.HANG if hang else None)
    client = HttpWorkerClient([endpoint(server.base_url, max_concurrent=64)], PRICES, ledger)
    tasks = [asyncio.create_task(client.call(request(call=i))) for i in range(500)]
    while sum(client.in_flight.values()) < 64 or server.requests < 64:
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert client.in_flight == {"worker_1": 0}
    records, _ = read_ledger(ledger.path)
    calls = [r for r in records if r["kind"] == "call"]
    assert len(calls) == 64  # those that had been sent; the queued ones cost nothing
    assert {(r["status"], r["accepted"]) for r in calls} == {("cancelled", False)}
    assert [r["failure"] for r in records if r["kind"] == "attempt"] == ["cancelled"] * 64

    hang = False
    calls = await asyncio.wait_for(
        asyncio.gather(*(client.call(request(f"again {i}", call=i)) for i in range(64))), timeout=10
    )
    assert {call.status for call in calls} == {CallStatus.OK}
    await client.close()
    await server.close()


async def test_cancelling_during_back_off_returns_the_permit_and_books_once(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    server = await serve(echo, faults=lambda call, attempt: Fault.HTTP_500)
    policy = RetryPolicy(backoff_s=60.0)
    client = HttpWorkerClient([endpoint(server.base_url)], PRICES, ledger, ClientConfig(retry=policy))
    task = asyncio.create_task(client.call(request()))
    while server.requests == 0 or not client.retries:
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.in_flight == {"worker_1": 0}
    await client.close()
    await server.close()
    records, _ = read_ledger(ledger.path)
    assert [(r["kind"], r.get("status")) for r in records] == [("sent", None), ("call", "cancelled")]


def test_client_made_outside_a_loop_works_in_one_loop_after_another(recwarn):
    port = free_port()

    async def one_call(client: HttpWorkerClient) -> str:
        server = await serve(echo, port=port)
        call = await client.call(request())
        await client.close()
        await server.close()
        return call.output

    client = virtual_client(f"http://127.0.0.1:{port}/v1")
    assert [asyncio.run(one_call(client)) for _ in range(2)] == ["echo hi", "echo hi"]
    gc.collect()
    assert not [str(w.message) for w in recwarn.list if issubclass(w.category, ResourceWarning)]


async def test_unknown_worker_is_a_callers_bug():
    with pytest.raises(ValueError, match="worker_9.*worker_1"):
        await virtual_client("http://127.0.0.1:1/v1").call(request(worker_id="worker_9"))


async def test_keys_go_to_their_own_worker_only(monkeypatch):
    monkeypatch.setenv("KEY_A", "sk-a")
    seen = []

    async def record(req):
        seen.append(((await req.json())["model"], req.headers.get("Authorization"), req.headers.get("x-rw-call")))
        return web.json_response({"choices": [{"message": {"content": "ok"}}]})

    prices = PriceTable({"a": Price(1, 1), "b": Price(1, 1)})
    async with raw_server(record) as base_url:
        workers = [
            endpoint(base_url, id="a", model="ma", key_env="KEY_A"),
            endpoint(base_url, id="b", model="mb", send_call_header=True),
        ]
        client = HttpWorkerClient(workers, prices, None)
        await client.call(request(worker_id="a"))
        await client.call(request(worker_id="b"))
        await client.close()
    assert seen == [("ma", "Bearer sk-a", None), ("mb", None, "3/1/4/2/0")]


@pytest.mark.parametrize("key", ["EMPTY", "none", "null", "content"])
async def test_short_key_masks_nothing_in_a_reply(key, monkeypatch):
    """Local servers take any key; such words occur in replies, and in the JSON around them."""
    monkeypatch.setenv("TEST_WORKER_KEY", key)
    text = f"The set is EMPTY, none of the content is null; {key}."

    async def reply(req):
        message = {"content": text, "refusal": None}
        usage = {"prompt_tokens": 30, "completion_tokens": 7}
        return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})

    async with raw_server(reply) as base_url:
        client = virtual_client(base_url, key_env="TEST_WORKER_KEY")
        call = await client.call(request())
        await client.close()
    assert (call.status, call.output, call.attempts) == (CallStatus.OK, text, 1)
    assert call.cost_usd == pytest.approx(COST_USD)


@pytest.mark.parametrize("padding", [0, 90, 110, 280])
async def test_key_in_a_long_error_is_masked_before_the_message_is_cut(padding, monkeypatch, tmp_path):
    monkeypatch.setenv("TEST_WORKER_KEY", "sk-very-secret-1234")
    ledger = Ledger(tmp_path / "ledger.jsonl")

    async def refuse(req):
        return web.Response(status=400, text="x" * padding + " sk-very-secret-1234")

    async with raw_server(refuse) as base_url:
        client = virtual_client(base_url, ledger, key_env="TEST_WORKER_KEY")
        call = await client.call(request())
        await client.close()
    assert call.failure == "client_error" and "sk-" not in ledger.path.read_text()


async def test_refusal_inside_a_200_stops_the_run_too():
    async def no_credits(req):
        return web.Response(
            text=json.dumps({"error": {"code": 402, "message": "Insufficient credits"}}),
            content_type="application/json",
        )

    async with raw_server(no_credits) as base_url:
        client = virtual_client(base_url)
        with pytest.raises(WorkerRefusedError, match="402.*Insufficient credits"):
            await client.call(request())
        await client.close()


@pytest.mark.parametrize("calls", [300, pytest.param(5000, marks=pytest.mark.full)])
async def test_storm_of_faults_and_cancellations_keeps_the_books_straight(calls, tmp_path):
    draw = random.Random(11)
    kinds = [fault for fault in Fault if fault not in REFUSALS]
    weather = {i: [draw.choice(kinds) if draw.random() < 0.3 else None for _ in range(20)] for i in range(calls)}
    server = await serve(
        echo,
        latency=lambda call: 0.005,
        faults=lambda call, attempt: weather[int(call.content)][attempt],
    )
    ledger = Ledger(tmp_path / "ledger.jsonl")
    config = ClientConfig(attempt_timeout_s=0.2, retry=RetryPolicy(backoff_s=0.01, rate_limited=1))
    client = HttpWorkerClient([endpoint(server.base_url, max_concurrent=32)], PRICES, ledger, config)
    tasks = [asyncio.create_task(client.call(request(str(i), call=i))) for i in range(calls)]
    victims = draw.sample(tasks, calls // 10)
    for victim in victims:
        await asyncio.sleep(0.003)
        victim.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert client.in_flight == {"worker_1": 0}
    await client.close()
    await server.close()
    finished = [outcome for outcome in outcomes if not isinstance(outcome, asyncio.CancelledError)]
    assert {outcome.status for outcome in finished} == {CallStatus.OK, CallStatus.FAILED}
    records, torn = read_ledger(ledger.path)
    bookings = [record for record in records if record["kind"] == "call"]
    assert torn == 0 and len({record["call"] for record in bookings}) == len(bookings) >= len(finished)
    costs = [outcome.cost_usd or 0.0 for outcome in finished]
    assert booked_usd(records) == pytest.approx(sum(costs)) and spent_usd(records) > booked_usd(records) > 0


async def test_what_happened_since_it_was_last_asked_is_told_once():
    def faults(call, attempt):
        return Fault.HTTP_429 if attempt == 1 else Fault.HTTP_500 if attempt == 2 else None

    server = await serve(lambda call: Completion("ok", 1, 1), faults=faults)
    worker = WorkerEndpoint("w", "", server.base_url, "m", input_price=0.0, output_price=0.0)
    prices = PriceTable.from_endpoints([worker])
    client = HttpWorkerClient([worker], prices, None, sleep=lambda seconds: asyncio.sleep(0))
    assert client.take_metrics() == {"worker/w/in_flight": 0}
    await client.call(WorkerRequest(CallId(1, 0, 0, 1, 0), "w", "n1", None, (), "q", "q"))
    assert client.take_metrics() == {"retries/429": 1, "retries/5xx": 1, "worker/w/in_flight": 1}
    assert client.take_metrics() == {"worker/w/in_flight": 0}
    await client.close()
    await server.close()
