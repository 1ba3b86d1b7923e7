"""Caps with 256 calls at once through the real client: faults, retries, cancellations, and what the server billed."""

import asyncio
import collections
import random

import pytest

from rw.errors import BudgetExhaustedError
from rw.types import CallId
from rw.workers.budget import Budget, BudgetConfig
from rw.workers.config import ClientConfig, WorkerEndpoint
from rw.workers.disturbances import mixed_faults
from rw.workers.faulty import BAD_USAGE, PASSING, Fault
from rw.workers.http import HttpWorkerClient
from rw.workers.interface import WorkerRequest
from rw.workers.ledger import Ledger, booked_usd, read_ledger, spent_usd
from rw.workers.loopback import Completion, serve
from rw.workers.pricing import PriceTable
from rw.workers.request import worst_case_usd
from rw.workers.retry import RetryPolicy

CALLERS = 256
# 200 MB each, or a second in which nothing is sent: they have tests of their own.
SLOW = {Fault.HUGE_BODY, Fault.GZIP_BOMB, Fault.HTTP_429_RETRY_AFTER, Fault.HTTP_429_RETRY_DATE}
NOT_BILLED = {Fault.HTTP_429, Fault.HTTP_500, Fault.HTTP_502_HTML, Fault.HTTP_503_HTML}
HANGS = (Fault.HANG, Fault.HANG_AFTER_HEADERS, Fault.HANG_IN_BODY, Fault.SLOW)
FAULTS = [fault for fault in (*PASSING, *sorted(BAD_USAGE, key=str)) if fault not in {*SLOW, *HANGS}]
CONTENT = "question"
RUN_USD, A_USD, B_USD = 0.6, 0.3, 0.5
RETRY = RetryPolicy(backoff_s=0.001, backoff_cap_s=0.002, rate_limited=1)
# Long enough for 256 calls at once on a busy machine: what timed out before it began would be asked for ever.
CLIENT = ClientConfig(attempt_timeout_s=2.0, call_deadline_s=6.0, adaptive_concurrency=False, retry=RETRY)


class WatchedBudget(Budget):
    """Checks every cap after everything that happens."""

    def __init__(self, config):
        super().__init__(config)
        self.highest_usd = 0.0

    async def reserve(self, worker_id, worst_case_usd):
        await super().reserve(worker_id, worst_case_usd)
        self.check()

    def settle(self, *arguments):
        super().settle(*arguments)
        self.check()

    def check(self):
        report = self.report()
        self.highest_usd = max(self.highest_usd, report.run / 1e12)
        assert report.run <= 1e12 * self._config.run_usd
        for worker_id, spent in report.by_worker.items():
            assert spent <= 1e12 * self._config.of_worker(worker_id)[1]


class Billing:
    """A Worker that remembers what it did work for."""

    def __init__(self, seed):
        self.faults, self.hangs = mixed_faults(0.3, seed, FAULTS), mixed_faults(0.01, seed + 1000, HANGS)
        self.tokens = collections.Counter()

    def answer(self, call):
        return Completion(f"reply to {call.call_header}", 30, 1 + len(call.call_header) % 17)

    def fault(self, call, attempt):
        fault = self.hangs(call, attempt) or self.faults(call, attempt)
        if fault not in NOT_BILLED:
            done = self.answer(call)
            self.tokens[call.model, "in"] += done.input_tokens
            self.tokens[call.model, "out"] += done.output_tokens
        return fault


async def spend_all(client, seed):
    """Every caller calls until it is told that nothing is left; some calls are cancelled."""
    draw = random.Random(seed)

    async def caller(number):
        for turn in range(10_000):
            worker_id = draw.choice("abb")
            request = WorkerRequest(CallId(1, 0, number, turn, 0), worker_id, "n1", None, (), "?", CONTENT)
            task = asyncio.create_task(client.call(request))
            given_up = draw.random() < 0.05
            if given_up:
                asyncio.get_running_loop().call_later(draw.uniform(0, 0.05), task.cancel)
            try:
                await task
            except asyncio.CancelledError:
                if not given_up:
                    raise

    return await asyncio.gather(*(caller(number) for number in range(CALLERS)), return_exceptions=True)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 12))])
async def test_what_is_spent_and_in_flight_never_exceeds_a_cap_and_nearly_all_of_it_is_used(tmp_path, seed):
    config = BudgetConfig(run_usd=RUN_USD, worker_usd=B_USD, workers_usd={"a": A_USD})
    billing, budget, ledger = Billing(seed), WatchedBudget(config), Ledger(tmp_path / "ledger.jsonl")
    server = await serve(billing.answer, faults=billing.fault)
    workers = [
        WorkerEndpoint(
            name, "", server.base_url, name, input_price=1.0, output_price=10.0, max_output_tokens=64,
            max_concurrent=CALLERS, send_call_header=True,
        )
        for name in "ab"
    ]  # fmt: skip
    prices = PriceTable.from_endpoints(workers)
    client = HttpWorkerClient(workers, prices, ledger, CLIENT, budget=budget)
    try:
        results = await asyncio.wait_for(spend_all(client, seed), 60)
    finally:
        await client.close()
        await server.close()
        ledger.close()
    assert {type(result) for result in results} == {BudgetExhaustedError}
    assert budget.reserved_usd == 0.0
    assert sum(client.in_flight.values()) == 0
    records, _ = read_ledger(ledger.path)
    worst_usd = worst_case_usd(prices, workers[0], CONTENT)
    # Some cap has no room for another call, and what the books say is what the budget knows.
    left = {"run": RUN_USD - budget.spent_usd, "a": A_USD - ledger.spent.by_worker_usd["a"]}
    left["b"] = B_USD - ledger.spent.by_worker_usd["b"]
    assert min(left.values()) < worst_usd < 0.01 * A_USD
    assert spent_usd(records) == pytest.approx(budget.spent_usd, abs=1e-9) == ledger.spent.total_usd
    assert ledger.spent.unknown_usd == pytest.approx(budget.unknown_usd, abs=1e-9)
    assert budget.unknown_usd > 0
    assert booked_usd(records) + budget.unknown_usd <= budget.spent_usd + 1e-9
    # The server never did work that the books do not hold.
    billed_usd = sum(count * {"in": 1.0, "out": 10.0}[side] for (_, side), count in billing.tokens.items()) / 1e6
    assert 0.01 < billed_usd <= budget.spent_usd <= budget.highest_usd <= RUN_USD
