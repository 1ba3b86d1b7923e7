"""What the client reserves, books and believes: worst cases, unknown spending, caps, and late or cancelled attempts."""

import asyncio
import json
import logging
import random
import socket

import pytest
from aiohttp import web

from rw.errors import BudgetExhaustedError, FailureCause
from rw.types import CallId, CallStatus, Mode, Role
from rw.workers.budget import Budget, BudgetConfig
from rw.workers.completion import Completion
from rw.workers.config import ClientConfig, WorkerEndpoint
from rw.workers.faulty import Fault
from rw.workers.http import HttpWorkerClient
from rw.workers.interface import WorkerRequest
from rw.workers.ledger import Ledger, booked_usd, read_ledger, spent_usd
from rw.workers.logical_call import may_be_billed
from rw.workers.loopback import serve
from rw.workers.pricing import Price, PriceTable
from rw.workers.reply import Failure, Reply
from rw.workers.request import input_bound, worst_case_usd
from rw.workers.retry import RetryPolicy

from .virtual_client import raw_server

PRICES = PriceTable({"worker_1": Price(2.0, 10.0)})
COST_USD = (30 * 2.0 + 7 * 10.0) / 1e6
WORST_USD = ((2 + 1024) * 2.0 + 4096 * 10.0) / 1e6  # of the message "hi"
QUICK = RetryPolicy(backoff_s=0.01, rate_limited=2, server_error=2)
NO_RETRIES = RetryPolicy(0, 0, 0, 0, 0, 0, 0)


def worker(base_url: str = "http://h/v1", **fields) -> WorkerEndpoint:
    return WorkerEndpoint("worker_1", "d", base_url, "m", **fields)


def request(content: str = "hi", call: int = 0) -> WorkerRequest:
    call_id = CallId(3, 1, 4, 2, call)
    return WorkerRequest(call_id, "worker_1", "n1", Role.EXECUTOR, (), "sub", content, "q7", Mode.AGENTIC)


def echo(call) -> Completion:
    return Completion(f"echo {call.content}", 30, 7)


def attempts_of(ledger: Ledger) -> list[tuple]:
    records, _ = read_ledger(ledger.path)
    return [
        (r["attempt"], r["cost_usd"], r["unknown_usd"], r.get("failure")) for r in records if r["kind"] == "attempt"
    ]


def test_worst_case_is_every_byte_a_token_and_the_longest_answer():
    assert input_bound(worker(), "") == 1024 and input_bound(worker(), "Zürich 😀") == 12 + 1024
    assert worst_case_usd(PRICES, worker(), "hi") == pytest.approx(WORST_USD, rel=1e-12)
    assert worst_case_usd(PRICES, worker(max_output_tokens=1), "") == pytest.approx((1024 * 2 + 10) / 1e6, rel=1e-12)
    assert worst_case_usd(PriceTable({"worker_1": Price(0, 0)}), worker(), "hi") == 0.0
    assert input_bound(worker(), "\ud800") == 3 + 1024  # lone surrogates are never sent as such, but counted


async def test_what_extra_body_adds_to_the_input_is_in_the_worst_case_and_believed(tmp_path):
    async def handle(asked):
        spent = {"prompt_tokens": 9000, "completion_tokens": 7}
        return web.json_response({"choices": [{"message": {"content": "hi"}}], "usage": spent})

    tools = [{"type": "function", "function": {"name": "search", "description": "Zürich " * 1500}}]
    async with raw_server(handle) as base_url:
        asked = worker(base_url, stream="never", extra_body={"tools": tools})
        client = HttpWorkerClient([asked], PRICES, Ledger(tmp_path / "ledger.jsonl"))
        call = await client.call(request())
        await client.close()
    assert call.cost_usd == pytest.approx((9000 * 2.0 + 7 * 10.0) / 1e6)
    added = len(json.dumps(tools, ensure_ascii=False).encode())
    assert input_bound(asked, "hi") > 2 + added + 1024 > 9000
    assert worst_case_usd(PRICES, asked, "hi") > call.cost_usd


def test_only_what_the_server_turned_down_or_never_saw_costs_nothing_for_sure():
    turned_down = Failure(FailureCause.RATE_LIMITED, "", unbilled=True)
    assert may_be_billed(True, Failure(FailureCause.TIMEOUT, "")) and may_be_billed(True, None)
    assert may_be_billed(True, Reply("text", None, None))
    assert not may_be_billed(True, turned_down) and not may_be_billed(False, None)
    assert not may_be_billed(False, Failure(FailureCause.CONNECT, ""))


OUTCOMES = {  # fault -> (cost and unknown spending of every attempt, attempts)
    None: (COST_USD, 0.0, 1),
    Fault.EMPTY_CHOICE: (COST_USD, 0.0, 3),
    Fault.HANG: (None, WORST_USD, 2),
    Fault.RESET: (None, WORST_USD, 4),
    Fault.RESET_IN_BODY: (None, WORST_USD, 4),
    Fault.TRUNCATED_JSON: (None, WORST_USD, 3),
    Fault.HTML: (None, WORST_USD, 3),
    Fault.NO_USAGE: (None, WORST_USD, 1),
    Fault.NEGATIVE_USAGE: (None, WORST_USD, 1),
    Fault.ABSURD_USAGE: (None, WORST_USD, 1),
    Fault.HTTP_429: None,
    Fault.HTTP_500: None,
    Fault.HTTP_502_HTML: None,
    Fault.HTTP_400: None,
}


@pytest.mark.parametrize("stream", ["never", "always"])
@pytest.mark.parametrize("fault", OUTCOMES, ids=lambda fault: fault.value if fault else "none")
async def test_every_attempt_is_spent_or_unknown_at_its_worst_case(fault, stream, tmp_path):
    ledger, budget = Ledger(tmp_path / "ledger.jsonl"), Budget(BudgetConfig(run_usd=10.0))
    server = await serve(echo, faults=lambda call, attempt: fault)
    config = ClientConfig(attempt_timeout_s=0.3, retry=QUICK)
    client = HttpWorkerClient([worker(server.base_url, stream=stream)], PRICES, ledger, config, budget=budget)
    call = await client.call(request())
    await client.close()
    await server.close()
    records, _ = read_ledger(ledger.path)
    expected = OUTCOMES[fault]
    if expected is None:
        assert attempts_of(ledger) == [] and budget.spent_usd == 0.0
    else:
        cost_usd, unknown_usd, attempts = expected
        booked = attempts_of(ledger)
        assert len(booked) == call.attempts == attempts
        assert [b[1:3] for b in booked] == [(cost_usd, pytest.approx(unknown_usd))] * attempts
        assert budget.unknown_usd == pytest.approx(attempts * unknown_usd)
    assert budget.reserved_usd == 0.0 and budget.spent_usd == pytest.approx(spent_usd(records))
    assert booked_usd(records) == pytest.approx(call.cost_usd or 0.0)
    failed_usd = COST_USD * 3 if fault is Fault.EMPTY_CHOICE else 0.0
    assert call.retry_cost_usd == pytest.approx(failed_usd)
    assert {(r["mode"], r["query"]) for r in records} == {("agentic", "q7")}
    assert [r["kind"] for r in records if r["kind"] in ("call", "sent")] == ["sent"] * call.attempts + ["call"]


async def test_connection_that_was_never_made_costs_nothing(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    ledger, budget = Ledger(tmp_path / "ledger.jsonl"), Budget(BudgetConfig(run_usd=1.0))
    config = ClientConfig(retry=QUICK)
    client = HttpWorkerClient([worker(f"http://127.0.0.1:{port}/v1")], PRICES, ledger, config, budget=budget)
    call = await client.call(request())
    await client.close()
    assert call.failure == "connect" and attempts_of(ledger) == []
    assert (budget.spent_usd, budget.reserved_usd) == (0.0, 0.0)


async def test_late_first_answer_never_enters_beside_its_retry(tmp_path):
    """The first answer comes complete, but after the client has left for its second attempt."""
    ledger, budget = Ledger(tmp_path / "ledger.jsonl"), Budget(BudgetConfig(run_usd=1.0))
    hits, late = 0, asyncio.Event()

    async def handle(req):
        nonlocal hits
        hits += 1
        attempt = hits
        if attempt == 1:
            await asyncio.sleep(0.5)
            late.set()
        usage = {"prompt_tokens": 30, "completion_tokens": 7}
        return web.json_response({"choices": [{"message": {"content": f"answer {attempt}"}}], "usage": usage})

    async with raw_server(handle, is_cancelled=False) as base_url:  # it works to the end, whoever has left
        config = ClientConfig(attempt_timeout_s=0.2, retry=QUICK)
        client = HttpWorkerClient([worker(base_url)], PRICES, ledger, config, budget=budget)
        call = await client.call(request())
        again = await client.call(request(call=1))
        await asyncio.wait_for(late.wait(), 2)
        await client.close()
    assert (call.output, call.attempts, call.cost_usd) == ("answer 2", 2, COST_USD)
    assert (again.output, again.attempts) == ("answer 3", 1)
    assert attempts_of(ledger) == [
        (1, None, pytest.approx(WORST_USD), "timeout"),
        (2, COST_USD, 0.0, None),
        (1, COST_USD, 0.0, None),
    ]
    assert budget.spent_usd == pytest.approx(WORST_USD + 2 * COST_USD) and budget.reserved_usd == 0.0


async def test_caps_hold_under_parallel_calls_with_faults(tmp_path):
    draw = random.Random(5)
    kinds = [None] * 6 + [Fault.EMPTY_CHOICE, Fault.RESET, Fault.HTTP_500, Fault.NO_USAGE, Fault.HTTP_429]
    weather = [[draw.choice(kinds) for _ in range(20)] for _ in range(256)]
    server = await serve(
        echo, latency=lambda call: 0.002, faults=lambda call, attempt: weather[int(call.content)][attempt]
    )
    cap_usd = 40 * WORST_USD
    ledger, budget = Ledger(tmp_path / "ledger.jsonl"), Budget(BudgetConfig(run_usd=cap_usd))
    config = ClientConfig(retry=QUICK)
    endpoint = worker(server.base_url, max_concurrent=256)
    client = HttpWorkerClient([endpoint], PRICES, ledger, config, budget=budget)
    most_usd = 0.0

    async def watch():
        nonlocal most_usd
        while True:
            most_usd = max(most_usd, budget.spent_usd + budget.reserved_usd)
            await asyncio.sleep(0)

    watcher = asyncio.create_task(watch())
    outcomes = await asyncio.gather(*(client.call(request(str(i), call=i)) for i in range(256)), return_exceptions=True)
    watcher.cancel()
    await client.close()
    await server.close()
    records, _ = read_ledger(ledger.path)
    assert {type(o) for o in outcomes} >= {BudgetExhaustedError}
    assert cap_usd / 2 < most_usd <= cap_usd and budget.reserved_usd == 0.0
    assert spent_usd(records) <= cap_usd and budget.spent_usd == pytest.approx(spent_usd(records))
    calls = [r["call"] for r in records if r["kind"] == "call"]
    assert len(calls) == len(set(calls)) and {r["call"] for r in records} == set(calls)


async def test_unbelievable_usage_is_missing_and_said_once(caplog):
    said = {}

    async def handle(req):
        return web.json_response({"choices": [{"message": {"content": "text"}}], "usage": said})

    believed = {"prompt_tokens": 2 + 1024, "completion_tokens": 4 * 4096}
    lies = [
        believed | {"prompt_tokens": 2 + 1024 + 1},
        believed | {"completion_tokens": 4 * 4096 + 1},
        believed | {"prompt_tokens": -1},
        believed | {"completion_tokens": 2.5},
        believed | {"completion_tokens": "7"},
        believed | {"completion_tokens": 0},
    ]
    async with raw_server(handle) as base_url:
        client = HttpWorkerClient([worker(base_url, stream="never")], PRICES, None)
        with caplog.at_level(logging.WARNING):
            said = believed
            assert (await client.call(request())).output_tokens == 4 * 4096
            for lie in lies:
                said = lie
                call = await client.call(request())
                assert (call.status, call.output_tokens, call.cost_usd) == (CallStatus.OK, None, None)
        await client.close()
    assert client.usage_unbelieved == client.usage_missing == {"worker_1": len(lies)}
    assert [r.getMessage() for r in caplog.records] == [
        "worker_1: reports usage that cannot be true and counts as missing: prompt_tokens=1027, completion_tokens=16384"
    ]


async def test_moderation_fails_one_call_and_other_refusals_stop_the_run():
    notice = {"reasons": ["violence"], "flagged_input": "hi", "provider_name": "p", "model_slug": "m"}
    error = {"code": 403, "message": "input was flagged", "metadata": notice}
    for status in (403, 200):
        body = {"error": error}

        async def handle(req, body=body, status=status):
            return web.json_response(body, status=status)

        async with raw_server(handle) as base_url:
            client = HttpWorkerClient([worker(base_url)], PRICES, None)
            call = await client.call(request())
            await client.close()
        assert (call.status, call.failure, call.attempts) == (CallStatus.FAILED, "client_error", 1)
