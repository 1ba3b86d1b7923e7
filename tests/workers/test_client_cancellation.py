"""Calls cancelled or failing at every point where they wait: nothing stays held, and the books are right."""

import asyncio

import pytest

from rw.errors import BudgetExhaustedError, WorkdirError
from rw.types import CallId, CallStatus, Role, WorkerCall
from rw.workers.budget import Budget, BudgetConfig
from rw.workers.completion import Completion
from rw.workers.config import ClientConfig, WorkerEndpoint
from rw.workers.faulty import Fault
from rw.workers.http import HttpWorkerClient
from rw.workers.interface import WorkerRequest
from rw.workers.ledger import Ledger, read_ledger, spent_usd
from rw.workers.loopback import serve
from rw.workers.pricing import Price, PriceTable
from rw.workers.retry import RetryPolicy

PRICES = PriceTable({"worker_1": Price(2.0, 10.0)})
POINTS = 25  # waits of a call with one retry are fewer


def request(call: int) -> WorkerRequest:
    return WorkerRequest(CallId(0, 0, 0, 0, call), "worker_1", "n1", Role.EXECUTOR, (), "sub", "hi")


class CancelledAt:
    """Awaits a coroutine and cancels the task when it begins its wait number `point`, counted from 0."""

    def __init__(self, coroutine, point: int):
        self._waits, self._point = coroutine.__await__(), point

    def __await__(self):
        number, resume, value = 0, self._waits.send, None
        while True:
            try:
                wait = resume(value)
            except StopIteration as end:
                return end.value
            if number == self._point:
                asyncio.current_task().cancel()
            number += 1
            try:
                resume, value = self._waits.send, (yield wait)
            except BaseException as error:
                resume, value = self._waits.throw, error

    async def outcome(self):
        """The call's, None where it was cancelled, or the error that ended it."""
        try:
            return await self
        except asyncio.CancelledError:
            return None
        except BudgetExhaustedError as error:
            return error


async def cancelled_after(iterations: int, coroutine):
    """The outcome of a task that is cancelled after so many iterations: what it waits for may be there already."""
    task = asyncio.create_task(coroutine)
    for _ in range(iterations):
        await asyncio.sleep(0)
    task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    return None if isinstance(outcome, asyncio.CancelledError) else outcome


def assert_all_is_free(client: HttpWorkerClient, budget: Budget, ledger: Ledger) -> None:
    assert client.in_flight == {"worker_1": 0} and budget.reserved_usd == 0.0
    records, torn = read_ledger(ledger.path)
    booked = [r["call"] for r in records if r["kind"] == "call"]
    sent = {r["call"] for r in records if r["kind"] in ("sent", "attempt")}
    assert torn == 0 and len(booked) == len(set(booked)) and set(booked) == sent
    assert budget.spent_usd == pytest.approx(spent_usd(records))


@pytest.mark.parametrize("stream", ["never", "always"])
@pytest.mark.parametrize("cap_usd", [1e6, 5.0], ids=["ample", "tight"])
async def test_1000_tasks_that_raise_or_are_cancelled_at_every_point_leave_everything_free(stream, cap_usd, tmp_path):
    faults = (None, Fault.EMPTY_CHOICE, None, Fault.HTTP_429, Fault.RESET)
    server = await serve(
        lambda call: Completion("ok", 3, 1),
        faults=lambda call, attempt: faults[int(call.call_header.rpartition("/")[2]) % 5] if attempt == 1 else None,
    )
    fields = {"stream": stream, "max_concurrent": 8, "send_call_header": True, "tokens_per_minute": 1e9}
    endpoint = WorkerEndpoint("worker_1", "d", server.base_url, "m", **fields)
    ledger, budget = Ledger(tmp_path / "ledger.jsonl"), Budget(BudgetConfig(run_usd=cap_usd))
    config = ClientConfig(retry=RetryPolicy(backoff_s=0.001))
    client = HttpWorkerClient([endpoint], PRICES, ledger, config, budget=budget)
    outcomes, uncancelled = [], 0
    for round_ in range(20):
        calls = [client.call(request(50 * round_ + i)) for i in range(50)]
        at_waits = [CancelledAt(calls[point], point).outcome() for point in range(POINTS)]
        later = [cancelled_after(6 * point, calls[POINTS + point]) for point in range(POINTS)]
        outcomes += await asyncio.gather(*at_waits, *later)
        uncancelled += isinstance(outcomes[-POINTS - 1], WorkerCall)
    assert uncancelled or cap_usd < 1e6  # or there were more points than were tried
    kinds = {type(outcome) for outcome in outcomes}
    assert kinds == {type(None), WorkerCall} | ({BudgetExhaustedError} if cap_usd < 1e6 else set())
    assert_all_is_free(client, budget, ledger)
    if cap_usd == 1e6:
        async with asyncio.timeout(10):
            calls = await asyncio.gather(*(client.call(request(10_000 + i)) for i in range(64)))
        assert {call.status for call in calls} == {CallStatus.OK}
        assert_all_is_free(client, budget, ledger)
    await client.close()
    await server.close()


class StumblingLedger(Ledger):
    """Cannot write when it is asked for the `fails_at`-th time."""

    def __init__(self, path, fails_at: int):
        super().__init__(path)
        self._left = fails_at

    def _write(self, record):
        self._left -= 1
        if self._left == 0:
            raise WorkdirError("the disk is full")
        super()._write(record)


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4, 5])
async def test_ledger_that_cannot_write_ends_the_call_and_leaves_everything_free(fails_at, tmp_path):
    fault = [Fault.EMPTY_CHOICE]
    server = await serve(
        lambda call: Completion("ok", 3, 1), faults=lambda call, attempt: fault.pop() if fault else None
    )
    ledger, budget = StumblingLedger(tmp_path / "ledger.jsonl", fails_at), Budget(BudgetConfig(run_usd=1e6))
    config = ClientConfig(retry=RetryPolicy(backoff_s=0.001))
    endpoint = WorkerEndpoint("worker_1", "d", server.base_url, "m", max_concurrent=2)
    client = HttpWorkerClient([endpoint], PRICES, ledger, config, budget=budget)
    with pytest.raises(WorkdirError, match="disk is full"):
        await client.call(request(0))
    assert client.in_flight == {"worker_1": 0} and budget.reserved_usd == 0.0
    calls = await asyncio.gather(*(client.call(request(1 + i)) for i in range(8)))
    assert {call.status for call in calls} == {CallStatus.OK}
    await client.close()
    await server.close()


async def test_cap_reached_between_attempts_books_the_call_once(tmp_path):
    server = await serve(lambda call: Completion("", 3, 1))
    worst_usd = ((2 + 1024) * 2.0 + 4096 * 10.0) / 1e6
    ledger, budget = Ledger(tmp_path / "ledger.jsonl"), Budget(BudgetConfig(run_usd=worst_usd * 1.0001))
    config = ClientConfig(retry=RetryPolicy(backoff_s=0.001))
    endpoint = WorkerEndpoint("worker_1", "d", server.base_url, "m")
    client = HttpWorkerClient([endpoint], PRICES, ledger, config, budget=budget)
    with pytest.raises(BudgetExhaustedError, match="run_usd"):
        await client.call(request(0))
    await client.close()
    await server.close()
    records, _ = read_ledger(ledger.path)
    assert [(r["kind"], r.get("status")) for r in records] == [
        ("sent", None),
        ("attempt", None),
        ("call", "cancelled"),
    ]
    assert client.in_flight == {"worker_1": 0} and budget.reserved_usd == 0.0
