"""The HTTP client against real sockets: every fault with its outcome, retries, deadlines and bookings."""

import dataclasses
import logging
import time

import pytest
from aiohttp import web

from rw.errors import ConfigError, FailureCause, WorkerRefusedError
from rw.types import CallId, CallStatus, Role
from rw.workers.http import ClientConfig, HttpWorkerClient
from rw.workers.ledger import Ledger, booked_usd, read_ledger, spent_usd
from rw.workers.loopback import Completion, CompletionCall, Fault, serve
from rw.workers.request import derived_seed
from rw.workers.retry import RetryPolicy

from .virtual_client import (
    COST_USD,
    PRICES,
    VirtualClock,
    echo,
    endpoint,
    free_port,
    raw_server,
    request,
    virtual_client,
)


async def test_reply_carries_request_identity_usage_cost_and_reason():
    server = await serve(echo)
    client = virtual_client(server.base_url)
    call = await client.call(request("hello"))
    await client.close()
    await server.close()
    assert (call.node_id, call.worker_id, call.role, call.references) == ("n1", "worker_1", Role.EXECUTOR, ("n0",))
    assert (call.output, call.subquery, call.finish_reason) == ("echo hello", "sub", "stop")
    assert (call.input_tokens, call.output_tokens, call.cost_usd) == (30, 7, COST_USD)
    assert (call.status, call.attempts, call.failure) == (CallStatus.OK, 1, None)


async def test_request_body_is_the_papers_decoding_and_nothing_else():
    seen = []
    server = await serve(lambda call: seen.append(call) or Completion("ok", 1, 1))
    extra_body = {"chat_template_kwargs": {"enable_thinking": False}}
    client = virtual_client(server.base_url, extra_body=extra_body, stream="never")
    await client.call(request("the message"))
    await client.close()
    await server.close()
    assert seen == [
        CompletionCall(
            model="m",
            content="the message",
            call_header=None,
            seed=42,
            max_tokens=4096,
            temperature=0.2,
            extra={"chat_template_kwargs": {"enable_thinking": False}},
            attempt=1,
        )
    ]


async def test_call_header_and_per_call_seed_follow_the_call_identity_and_survive_retries():
    seen = []
    server = await serve(
        lambda call: seen.append((call.call_header, call.seed)) or Completion("ok", 1, 1),
        faults=lambda call, attempt: Fault.HTTP_500 if attempt == 1 else None,
    )
    client = virtual_client(server.base_url, config=ClientConfig(worker_seed="per_call"), send_call_header=True)
    await client.call(request(call=0))
    await client.call(request(call=1))
    await client.close()
    await server.close()
    first, second = derived_seed(42, CallId(3, 1, 4, 2, 0)), derived_seed(42, CallId(3, 1, 4, 2, 1))
    assert first != second
    assert seen == [("3/1/4/2/0", first)] * 2 + [("3/1/4/2/1", second)] * 2


RETRIED = {  # fault -> (cause, requests until the policy is used up)
    Fault.RESET: (FailureCause.RESET, 4),
    Fault.HTTP_429: (FailureCause.RATE_LIMITED, 9),
    Fault.HTTP_429_RETRY_AFTER: (FailureCause.RATE_LIMITED, 9),
    Fault.HTTP_500: (FailureCause.SERVER_ERROR, 5),
    Fault.HTML: (FailureCause.BAD_RESPONSE, 3),
    Fault.TRUNCATED_JSON: (FailureCause.BAD_RESPONSE, 3),
    Fault.NO_CHOICES: (FailureCause.BAD_RESPONSE, 3),
    Fault.EMPTY_CHOICE: (FailureCause.EMPTY_OUTPUT, 3),
    Fault.HTTP_400: (FailureCause.CLIENT_ERROR, 1),
}


@pytest.mark.parametrize("fault", RETRIED, ids=lambda fault: fault.value)
async def test_lasting_fault_ends_as_a_failed_call_after_the_policys_requests(fault):
    cause, requests = RETRIED[fault]
    server = await serve(echo, faults=lambda call, attempt: fault)
    client = virtual_client(server.base_url)
    call = await client.call(request())
    await client.close()
    await server.close()
    assert (call.status, call.failure, call.output) == (CallStatus.FAILED, cause.value, "")
    assert (call.input_tokens, call.output_tokens, call.cost_usd) == (None, None, None)
    assert server.requests == call.attempts == requests
    assert client.retries == ({cause: requests - 1} if requests > 1 else {})


@pytest.mark.parametrize("fault", [f for f, (_, n) in RETRIED.items() if n > 1], ids=lambda fault: fault.value)
async def test_passing_fault_is_retried_into_an_ordinary_reply(fault):
    server = await serve(echo, faults=lambda call, attempt: fault if attempt == 1 else None)
    client = virtual_client(server.base_url)
    call = await client.call(request())
    await client.close()
    await server.close()
    assert (call.status, call.output, call.attempts, call.cost_usd) == (CallStatus.OK, "echo hi", 2, COST_USD)


async def test_no_usage_is_an_ok_call_without_cost(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    server = await serve(echo, faults=lambda call, attempt: Fault.NO_USAGE)
    client = virtual_client(server.base_url, ledger)
    call = await client.call(request())
    await client.close()
    await server.close()
    assert (call.status, call.output) == (CallStatus.OK, "echo hi")
    assert (call.input_tokens, call.output_tokens, call.cost_usd) == (None, None, None)
    assert client.usage_missing == {"worker_1": 1}
    sent, attempt, booked = read_ledger(ledger.path)[0]
    assert attempt["cost_usd"] is None and attempt["unknown_usd"] == sent["worst_case_usd"] > 0
    assert [(r["kind"], r["accepted"], r["cost_usd"]) for r in (attempt, booked)] == [
        ("attempt", True, None),
        ("call", True, None),
    ]


async def test_refusing_loopback_worker_stops_the_run_at_its_first_request():
    server = await serve(echo, faults=lambda call, attempt: Fault.REFUSED)
    client = virtual_client(server.base_url)
    with pytest.raises(WorkerRefusedError, match="worker_1.*status 401"):
        await client.call(request())
    await client.close()
    await server.close()
    assert server.requests == 1 and client.in_flight == {"worker_1": 0}


@pytest.mark.parametrize("status", [401, 402, 403])
async def test_refusal_stops_the_run_and_never_shows_the_key(status, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("TEST_WORKER_KEY", "sk-very-secret-1234")
    ledger = Ledger(tmp_path / "ledger.jsonl")
    got = []

    async def refuse(req):
        got.append(req.headers["Authorization"])
        message = f"Incorrect API key provided: {got[0].removeprefix('Bearer ')}."
        return web.json_response({"error": {"message": message}}, status=status)

    async with raw_server(refuse) as base_url:
        client = virtual_client(base_url, ledger, key_env="TEST_WORKER_KEY")
        with pytest.raises(WorkerRefusedError) as raised, caplog.at_level(logging.DEBUG):
            await client.call(request())
        await client.close()
    assert got == ["Bearer sk-very-secret-1234"]
    told = str(raised.value)
    assert "worker_1" in told and str(status) in told and "TEST_WORKER_KEY" in told and "\n" not in told
    assert raised.value.exit_code == 4
    for text in (told, caplog.text, ledger.path.read_text(), repr(client), repr(raised.value)):
        assert "secret" not in text


def test_missing_key_variable_is_named_at_construction(monkeypatch):
    monkeypatch.delenv("TEST_WORKER_KEY", raising=False)
    with pytest.raises(ConfigError, match="worker_1.*TEST_WORKER_KEY"):
        virtual_client("http://127.0.0.1:1/v1", key_env="TEST_WORKER_KEY")


def test_key_that_no_header_may_carry_is_refused_without_being_shown(monkeypatch):
    monkeypatch.setenv("TEST_WORKER_KEY", "sk-\r\nx-evil: 1")
    with pytest.raises(ConfigError, match="TEST_WORKER_KEY") as raised:
        virtual_client("http://127.0.0.1:1/v1", key_env="TEST_WORKER_KEY")
    assert "evil" not in str(raised.value)


@pytest.mark.parametrize("base_url", ["", "openrouter.ai/api/v1", "ftp://host/v1", "http://host:port/v1", "http:///v1"])
def test_missing_or_broken_url_is_refused_with_the_worker(base_url):
    with pytest.raises(ConfigError, match="worker_1.*base_url"):
        endpoint(base_url)


def test_endpoints_are_checked_together():
    with pytest.raises(ConfigError, match="no Workers"):
        HttpWorkerClient([], PRICES, None)
    with pytest.raises(ConfigError, match="worker_1 is used by more than one"):
        HttpWorkerClient([endpoint("http://h/v1"), endpoint("http://g/v1")], PRICES, None)
    with pytest.raises(ConfigError, match="worker_2 has no price.*priced: worker_1"):
        HttpWorkerClient([endpoint("http://h/v1", id="worker_2")], PRICES, None)
    with pytest.raises(ConfigError, match="extra_body may not set messages"):
        endpoint("http://h/v1", extra_body={"messages": []})
    with pytest.raises(ConfigError, match="worker_seed='random' is not one of fixed, per_call"):
        ClientConfig(worker_seed="random")


async def test_bad_request_is_sent_once_and_reported_in_the_servers_words(tmp_path, caplog):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    hits = []

    async def reject(req):
        hits.append(1)
        return web.json_response({"error": {"message": "model 'm' does not exist"}}, status=404)

    async with raw_server(reject) as base_url:
        client = virtual_client(base_url, ledger)
        with caplog.at_level(logging.WARNING):
            call = await client.call(request())
            await client.call(request())
        await client.close()
    assert len(hits) == 2 and call.attempts == 1 and call.failure == "client_error"
    assert [record.getMessage() for record in caplog.records] == [
        "worker_1: call failed (client_error): status 404: model 'm' does not exist"
    ]
    assert read_ledger(ledger.path)[0][1]["detail"] == "status 404: model 'm' does not exist"


async def test_six_rate_limits_with_retry_after_are_waited_out():
    clock = VirtualClock()
    headers = iter(["7", "0", "Mon, 21 Sep 2026 14:13:50 GMT", "nonsense", "120", "3"])
    hits = []

    async def limit(req):
        hits.append(clock.now_s)
        if len(hits) <= 6:
            return web.json_response({}, status=429, headers={"Retry-After": next(headers)})
        return web.json_response({"choices": [{"message": {"content": "at last"}}]})

    async with raw_server(limit) as base_url:
        client = virtual_client(base_url, clock=clock)
        call = await client.call(request())
        await client.close()
    assert (call.status, call.output, call.attempts) == (CallStatus.OK, "at last", 7)
    assert len(hits) == 7 and client.retries == {FailureCause.RATE_LIMITED: 6}
    # Retry-After is a lower bound (7 s, 30 s by its date, 120 s); elsewhere back-off: 1, 2, 4 … s, cut by up to half.
    waits_s = clock.waits_s
    assert waits_s[0] == 7.0 and waits_s[2] == 30.0 and waits_s[4] == 120.0
    assert 1 <= waits_s[1] <= 2 and 4 <= waits_s[3] <= 8 and 16 <= waits_s[5] <= 32


async def test_total_deadline_wins_over_retry_after_and_over_the_retries_left():
    clock = VirtualClock()
    server = await serve(echo, faults=lambda call, attempt: Fault.HTTP_500)
    policy = RetryPolicy(server_error=100, max_attempts=100, backoff_s=10.0)
    client = virtual_client(server.base_url, config=ClientConfig(call_deadline_s=60.0, retry=policy), clock=clock)
    call = await client.call(request())
    await client.close()
    await server.close()
    assert call.status is CallStatus.FAILED and call.failure == "server_error"
    assert sum(clock.waits_s) < 60.0 and server.requests == len(clock.waits_s) + 1 <= 5

    async def for_an_hour(req):
        return web.json_response({}, status=429, headers={"Retry-After": "3600"})

    async with raw_server(for_an_hour) as base_url:
        client = virtual_client(base_url)
        call = await client.call(request())
        await client.close()
    assert (call.failure, call.attempts) == ("rate_limited", 1)


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.SLOW], ids=lambda fault: fault.value)
async def test_attempt_timeout_ends_hanging_and_trickling_answers(fault):
    server = await serve(echo, faults=lambda call, attempt: fault)
    config = ClientConfig(attempt_timeout_s=0.3)
    client = virtual_client(server.base_url, config=config)
    began = time.monotonic()
    call = await client.call(request())
    elapsed_s = time.monotonic() - began
    await client.close()
    await server.close()
    assert (call.status, call.failure, call.attempts) == (CallStatus.FAILED, "timeout", 2)
    assert 0.5 < elapsed_s < 5.0  # a trickled body would take 15 s


async def test_call_deadline_inside_an_attempt_is_a_deadline_and_never_retried():
    server = await serve(echo, faults=lambda call, attempt: Fault.HANG)
    client = HttpWorkerClient([endpoint(server.base_url)], PRICES, None, ClientConfig(call_deadline_s=0.3))
    began = time.monotonic()
    call = await client.call(request())
    await client.close()
    await server.close()
    assert (call.status, call.failure, call.attempts) == (CallStatus.FAILED, "deadline", 1)
    assert 0.25 < time.monotonic() - began < 5.0 and 0.25 < call.latency_s < 5.0


async def test_hanging_attempt_then_answer_is_an_ordinary_reply():
    server = await serve(echo, faults=lambda call, attempt: Fault.HANG if attempt == 1 else None)
    client = virtual_client(server.base_url, config=ClientConfig(attempt_timeout_s=0.2))
    call = await client.call(request())
    await client.close()
    await server.close()
    assert (call.status, call.attempts) == (CallStatus.OK, 2)


async def test_refused_port_and_unknown_host_are_connection_failures():
    for base_url in (f"http://127.0.0.1:{free_port()}/v1", "http://no-such-host.invalid/v1"):
        client = virtual_client(base_url, config=ClientConfig(retry=RetryPolicy(connect=1)))
        call = await client.call(request())
        await client.close()
        assert (call.status, call.failure, call.attempts) == (CallStatus.FAILED, "connect", 2)


async def test_body_over_the_limit_is_cut_off_and_the_connection_works_on():
    big = iter([True, False])

    async def flood(req):
        content = "x" * 3_000_000 if next(big) else "small"
        return web.json_response({"choices": [{"message": {"content": content}}]})

    async with raw_server(flood) as base_url:
        client = virtual_client(base_url, config=ClientConfig(max_body_bytes=1_000_000))
        call = await client.call(request())
        await client.close()
    assert (call.output, call.attempts) == ("small", 2)


async def test_redirect_is_not_followed_with_the_key(monkeypatch):
    monkeypatch.setenv("TEST_WORKER_KEY", "sk-1")
    elsewhere = await serve(echo)

    async def redirect(req):
        raise web.HTTPTemporaryRedirect(elsewhere.base_url + "/chat/completions")

    async with raw_server(redirect) as base_url:
        client = virtual_client(base_url, key_env="TEST_WORKER_KEY")
        call = await client.call(request())
        await client.close()
    await elsewhere.close()
    assert call.failure == "client_error" and elsewhere.requests == 0


async def test_a_reply_is_told_once_and_before_anything_says_that_it_was_accepted(tmp_path):
    ledger, told = Ledger(tmp_path / "ledger.jsonl", run="r7"), []
    server = await serve(echo, faults=lambda call, attempt: Fault.EMPTY_CHOICE if attempt < 2 else None)
    client = virtual_client(server.base_url, ledger)

    def on_reply(call):
        told.append(call)
        records, _ = read_ledger(ledger.path)
        assert [r.get("accepted") for r in records if r["kind"] in ("attempt", "call")] == [False]

    assert told == [await client.call(dataclasses.replace(request(), on_reply=on_reply))]

    def full(call):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        await client.call(dataclasses.replace(request(call=1), on_reply=full))
    await client.close()
    await server.close()
    records, _ = read_ledger(ledger.path)
    assert sum(r["accepted"] for r in records if r["kind"] == "attempt") == 2  # what nobody kept was paid all the same


async def test_each_attempt_with_usage_is_spent_and_each_call_is_booked_once(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", run="r7")
    server = await serve(echo, faults=lambda call, attempt: Fault.EMPTY_CHOICE if attempt < 3 else None)
    client = virtual_client(server.base_url, ledger)
    call = await client.call(request())
    assert call.cost_usd == COST_USD  # the accepted attempt alone
    await client.close()
    await server.close()
    records, torn = read_ledger(ledger.path)
    attempts = [r for r in records if r["kind"] == "attempt"]
    assert [(r["attempt"], r["accepted"], r["cost_usd"]) for r in attempts] == [
        (1, False, COST_USD),
        (2, False, COST_USD),
        (3, True, COST_USD),
    ]
    assert [r for r in records if r["kind"] == "call"] == [
        {
            "kind": "call",
            "run": "r7",
            "step": 3,
            "group": 1,
            "rollout": 4,
            "turn": 2,
            "call": 0,
            "worker": "worker_1",
            "mode": None,
            "query": "",
            "input_tokens": 30,
            "output_tokens": 7,
            "cost_usd": COST_USD,
            "accepted": True,
            "status": "ok",
            "attempts": 3,
        }
    ]
    assert torn == 0
    assert spent_usd(records) == pytest.approx(3 * COST_USD) and booked_usd(records) == pytest.approx(COST_USD)
