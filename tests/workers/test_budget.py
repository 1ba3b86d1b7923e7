"""Caps: what may be sent, who waits, who raises, and what hosts share."""

import asyncio
import logging
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rw.errors import BudgetExhaustedError, ConfigError
from rw.workers.budget import Budget, BudgetConfig, host_shares
from rw.workers.spending import Spent


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


class Calls:
    """Reservations as tasks, in the order in which they were asked for."""

    def __init__(self, budget):
        self.budget, self.tasks = budget, []

    async def ask(self, worst_case_usd, worker_id="a"):
        self.tasks.append(asyncio.create_task(self.budget.reserve(worker_id, worst_case_usd)))
        await turns()
        return len(self.tasks) - 1

    @property
    def through(self):
        return [i for i, task in enumerate(self.tasks) if task.done() and not task.cancelled() and not task.exception()]


async def test_a_call_waits_for_those_in_flight_and_no_other_overtakes_it():
    budget = Budget(BudgetConfig(run_usd=1.0))
    calls = Calls(budget)
    for worst_case_usd in (0.6, 0.6, 0.3, 0.1):
        await calls.ask(worst_case_usd)
    assert calls.through == [0]  # the third and fourth would fit, but the second came first
    budget.settle("a", 0.6, 0.1)
    await turns()
    assert calls.through == [0, 1, 2]
    budget.settle("a", 0.3, 0.0)
    await turns()
    assert calls.through == [0, 1, 2, 3]
    assert (budget.spent_usd, budget.reserved_usd) == (0.1, pytest.approx(0.7))


async def test_the_cap_of_one_worker_holds_up_no_other():
    budget = Budget(BudgetConfig(run_usd=10.0, worker_usd=5.0, workers_usd={"a": 1.0}))
    calls = Calls(budget)
    for worker_id, worst_case_usd in (("a", 0.8), ("a", 0.8), ("b", 0.8), ("a", 0.1)):
        await calls.ask(worst_case_usd, worker_id)
    assert calls.through == [0, 2]  # the last would fit, but its Worker's second came first
    budget.settle("a", 0.8, 0.1)
    await turns()
    assert calls.through == [0, 1, 2, 3]


async def test_a_cancelled_waiter_makes_way_and_a_cancelled_grant_is_given_back():
    budget = Budget(BudgetConfig(run_usd=1.0))
    calls = Calls(budget)
    for worst_case_usd in (0.9, 0.5, 0.1):
        await calls.ask(worst_case_usd)
    calls.tasks[1].cancel()
    await turns()
    assert calls.through == [0, 2]
    waiting = await calls.ask(0.4)
    budget.settle("a", 0.9, 0.2)  # grants it, and it is cancelled before it can run
    calls.tasks[waiting].cancel()
    await turns()
    assert calls.tasks[waiting].cancelled() and budget.reserved_usd == pytest.approx(0.1)


async def test_a_waiter_cancelled_in_the_same_moment_as_a_settlement_is_passed_over():
    budget = Budget(BudgetConfig(run_usd=1.0))
    calls = Calls(budget)
    for worst_case_usd in (0.9, 0.5, 0.6):
        await calls.ask(worst_case_usd)
    calls.tasks[1].cancel()
    budget.settle("a", 0.9, 0.0)
    await turns()
    assert calls.through == [0, 2]


async def test_where_nothing_could_fit_the_calls_in_flight_are_waited_for_and_then_all_raise(caplog):
    budget = Budget(BudgetConfig(run_usd=1.0), Spent(total_usd=0.5, unknown_usd=0.25, by_worker_usd={"a": 0.5}))
    calls = Calls(budget)
    await calls.ask(0.2)
    with caplog.at_level(logging.WARNING):
        await calls.ask(0.51)
    await calls.ask(0.01)  # would fit, but the run is ending
    assert calls.through == [0] and not calls.tasks[1].done() and not calls.tasks[2].done()
    assert "is used up; requests in flight are waited for: 1" in caplog.text
    budget.settle("a", 0.2, 0.1, unknown_usd=0.1)
    await turns()
    for task in calls.tasks[1:]:
        with pytest.raises(BudgetExhaustedError) as raised:
            await task
    message = str(raised.value)
    for told in ("budget.run_usd=1 USD", "0.5 USD are spent, 0.25 of them unreported", "call to a", "0.51 USD"):
        assert told in message
    with pytest.raises(BudgetExhaustedError):
        await budget.reserve("a", 0.0)
    assert (budget.spent_usd, budget.unknown_usd, budget.reserved_usd) == (0.6, 0.35, 0.0)


@pytest.mark.parametrize(
    "config, key",
    [
        (BudgetConfig(run_usd=1.0), "budget.run_usd"),
        (BudgetConfig(step_usd=1.0), "budget.step_usd"),
        (BudgetConfig(worker_usd=1.0), "budget.worker_usd"),
        (BudgetConfig(worker_usd=9.0, workers_usd={"a": 1.0}), "budget.workers_usd.a"),
    ],
)
async def test_every_cap_names_its_key(config, key):
    budget = Budget(config)
    budget.begin_step(1)
    with pytest.raises(BudgetExhaustedError, match=f"raise {key},"):
        await budget.reserve("a", 1.1)


async def test_no_cap_never_waits_and_still_counts():
    budget = Budget(BudgetConfig())
    for _ in range(3):
        await budget.reserve("a", 1e6)
    budget.settle("a", 1e6, 2.5)
    assert (budget.spent_usd, budget.reserved_usd) == (2.5, 2e6)


async def test_a_step_begins_with_what_it_spent_before_an_interruption_and_evaluations_belong_to_none():
    budget = Budget(BudgetConfig(run_usd=100.0, step_usd=1.0), Spent(total_usd=3.0, by_step_usd={7: 0.7}))
    budget.begin_step(6)
    await budget.reserve("a", 1.0)
    budget.settle("a", 1.0, 0.9)
    budget.end_step()
    await budget.reserve("a", 20.0)  # an evaluation
    budget.settle("a", 20.0, 5.0)
    budget.begin_step(7)
    with pytest.raises(BudgetExhaustedError, match="budget.step_usd=1 USD leaves no room: 0.7 USD are spent"):
        await budget.reserve("a", 0.4)
    assert budget.spent_usd == pytest.approx(8.9)


async def test_what_is_in_flight_when_a_step_begins_counts_in_it():
    budget = Budget(BudgetConfig(step_usd=1.0))
    await budget.reserve("a", 0.6)
    budget.begin_step(1)
    calls = Calls(budget)
    await calls.ask(0.6)
    assert calls.through == []
    budget.settle("a", 0.6, 0.4)
    await turns()
    assert calls.through == [0]


async def test_a_bill_above_the_worst_case_is_counted_and_told_once(caplog):
    budget = Budget(BudgetConfig(run_usd=1.0))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await budget.reserve("a", 0.1)
            budget.settle("a", 0.1, 0.3)
    assert budget.spent_usd == pytest.approx(0.6)
    assert len([record for record in caplog.records if "worst case" in record.message]) == 1


@pytest.mark.parametrize("values", [{"run_usd": -1.0}, {"step_usd": float("nan")}, {"workers_usd": {"a": "much"}}])
def test_caps_that_are_no_amounts_are_refused(values):
    with pytest.raises(ConfigError, match=r"budget\."):
        BudgetConfig(**values)


@given(cap=st.integers(0, 10**15), spent=st.lists(st.integers(0, 10**14), min_size=1, max_size=16))
@settings(max_examples=200, deadline=None)
def test_the_shares_of_all_hosts_sum_to_the_cap(cap, spent):
    shares = host_shares(cap, spent)
    assert sum(shares) == cap
    left = [share - own for share, own in zip(shares, spent, strict=True)]
    assert max(left) - min(left) <= 1  # a picodollar that cannot be divided
    if sum(spent) <= cap:
        assert min(left) >= 0


@pytest.mark.parametrize("seed", range(5))
async def test_hosts_that_share_caps_never_exceed_them_together_and_use_what_others_leave(seed):
    draw = random.Random(seed)
    caps = {"run": 10.0, "a": 4.0}
    config = BudgetConfig(run_usd=caps["run"], workers_usd={"a": caps["a"]})
    budgets = [Budget(config, hosts=4) for _ in range(4)]
    spent = {"run": 0.0, "a": 0.0}
    for step in range(300):
        for budget in budgets:
            budget.begin_step(step)
        reports = [budget.report() for budget in budgets]
        for host, budget in enumerate(budgets):
            budget.rebalance(reports, host)
        for budget in budgets[: 1 + step % 2]:  # half of the steps are one host's alone
            worker_id, usd = draw.choice("ab"), draw.uniform(0.01, 0.1)
            try:
                await budget.reserve(worker_id, usd)
            except BudgetExhaustedError:
                continue
            budget.settle(worker_id, usd, usd)
            spent["run"] += usd
            spent[worker_id] = spent.get(worker_id, 0.0) + usd
        assert all(spent[name] <= cap + 1e-9 for name, cap in caps.items())
    assert budgets[0].spent_usd > 3.9 or spent["a"] > 3.5  # far beyond a fixed quarter


@pytest.mark.parametrize("seed", range(8))
async def test_256_calls_at_once_never_exceed_a_cap_and_use_nearly_all_of_it(seed):
    """Costs, worst cases, failures and cancellations are drawn; the sum is checked after everything that happens."""
    draw = random.Random(seed)
    config = BudgetConfig(run_usd=1.0, workers_usd={"a": 0.5})
    budget = Budget(config)
    spent = {"run": 0.0, "a": 0.0}
    in_flight = {"run": 0.0, "a": 0.0}

    def move(sums, worker_id, usd):
        for name in ("run", worker_id):
            sums[name] = sums.get(name, 0.0) + usd
        assert spent["run"] + in_flight["run"] <= 1.0 + 1e-9 and spent["a"] + in_flight["a"] <= 0.5 + 1e-9

    async def call():
        worker_id, worst_case_usd = draw.choice("abb"), draw.uniform(0.001, 0.004)
        await budget.reserve(worker_id, worst_case_usd)
        cost_usd = worst_case_usd * draw.choice((0.0, 0.1, 0.3, 1.0))
        move(in_flight, worker_id, worst_case_usd)
        try:
            await asyncio.sleep(draw.choice((0, 0, 0.0001)))
        except asyncio.CancelledError:
            cost_usd = worst_case_usd
            raise
        finally:
            budget.settle(worker_id, worst_case_usd, cost_usd)
            move(in_flight, worker_id, -worst_case_usd)
            move(spent, worker_id, cost_usd)

    async def caller():
        while True:
            task = asyncio.create_task(call())
            await asyncio.sleep(0)
            if draw.random() < 0.1:
                task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass

    results = await asyncio.wait_for(asyncio.gather(*(caller() for _ in range(256)), return_exceptions=True), 30)
    assert all(isinstance(result, BudgetExhaustedError) for result in results)
    assert budget.reserved_usd == 0.0 and budget.spent_usd == pytest.approx(spent["run"])
    assert max(spent["run"] / 1.0, spent["a"] / 0.5) > 0.99
