"""Permits, prices and the ledger."""

import asyncio
import dataclasses
import json

import pytest

from rw.errors import ConfigError, WorkdirError
from rw.types import CallId, CallStatus
from rw.workers.config import WorkerEndpoint
from rw.workers.ledger import Ledger, booked_usd, read_ledger, spent_usd
from rw.workers.limits import ConcurrencyLimits
from rw.workers.pricing import Price, PriceTable

CALL = CallId(step=1, group=2, rollout=3, turn=4, call=5)


async def test_permits_are_per_worker_and_survive_cancelled_waiters():
    limits = ConcurrencyLimits({"a": 1, "b": 1})

    async def hold(worker_id, seconds):
        async with limits.hold(worker_id):
            await asyncio.sleep(seconds)

    holder = asyncio.create_task(hold("a", 0.05))
    await asyncio.sleep(0)
    waiters = [asyncio.create_task(hold("a", 0)) for _ in range(20)]
    await asyncio.sleep(0)
    assert (limits.in_flight, limits.waiting) == ({"a": 1, "b": 0}, {"a": 20, "b": 0})
    await asyncio.wait_for(hold("b", 0), 1)  # another Worker is not held up
    for waiter in waiters[:19]:
        waiter.cancel()
    await holder
    await asyncio.wait_for(waiters[19], 1)
    assert (limits.in_flight, limits.waiting) == ({"a": 0, "b": 0}, {"a": 0, "b": 0})
    await asyncio.wait_for(hold("a", 0), 1)


async def test_permit_returns_when_its_holder_raises():
    limits = ConcurrencyLimits({"a": 1})
    for _ in range(3):
        with pytest.raises(KeyError):
            async with limits.hold("a"):
                raise KeyError
    async with asyncio.timeout(1):
        async with limits.hold("a") as waited_s:
            assert 0 <= waited_s < 0.5


def test_cost_is_tokens_times_price_and_none_where_usage_is_missing():
    table = PriceTable({"w": Price(0.10, 0.32)})
    assert table.cost_usd("w", 1_000_000, 500_000) == pytest.approx(0.26, abs=1e-15)
    assert table.cost_usd("w", 0, 0) == 0.0
    assert table.cost_usd("w", None, 5) is None and table.cost_usd("w", 5, None) is None


def test_unpriced_worker_is_named_with_the_priced_ones():
    with pytest.raises(ConfigError, match=r"Worker w9 has no price.*\(priced: w1, w2\)"):
        PriceTable({"w2": Price(1, 1), "w1": Price(1, 1)}).cost_usd("w9", 1, 1)
    half = WorkerEndpoint("w1", "d", "http://h/v1", "m", input_price=0.1)
    with pytest.raises(ConfigError, match=r"Worker w1 has no price.*\(priced: none\)"):
        PriceTable.from_endpoints([half])
    with pytest.raises(ConfigError, match="Worker w1: prices nan"):
        PriceTable({"w1": Price(float("nan"), 1)})
    whole = WorkerEndpoint("w1", "d", "http://h/v1", "m", input_price=0.0, output_price=2.0)
    assert PriceTable.from_endpoints([whole])["w1"] == Price(0.0, 2.0)


def test_ledger_appends_over_restarts_and_tolerates_a_torn_line(tmp_path):
    path = tmp_path / "deep" / "ledger.jsonl"
    first = Ledger(path, run="r1")
    first.attempt(CALL, "w1", 1, 10, 2, 0.5, accepted=False)
    before = path.read_bytes()  # without close: a line is on its way to disk once it is booked
    assert before.endswith(b"\n")
    path.write_bytes(before + b'{"kind": "call", "ru')  # as a kill in mid-write leaves it
    second = Ledger(path, run="r1")
    second.call(CALL, "w1", CallStatus.OK, 2, 10, 2, 0.25)
    second.close()
    second.close()
    assert path.read_bytes().startswith(before)
    records, torn = read_ledger(path)
    assert torn == 1 and [r["kind"] for r in records] == ["attempt", "call"]
    assert {k: records[0][k] for k in ("run", "step", "group", "rollout", "turn", "call", "worker")} == {
        "run": "r1",
        "step": 1,
        "group": 2,
        "rollout": 3,
        "turn": 4,
        "call": 5,
        "worker": "w1",
    }
    assert (spent_usd(records), booked_usd(records)) == (0.5, 0.25)


def test_a_call_of_a_step_that_is_run_again_is_paid_twice_and_booked_once(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl")
    for cost_usd in (0.25, 0.5):
        ledger.attempt(CALL, "w1", 1, 10, 2, cost_usd, accepted=True)
        ledger.call(CALL, "w1", CallStatus.OK, 1, 10, 2, cost_usd)
    ledger.call(dataclasses.replace(CALL, call=6), "w1", CallStatus.OK, 1, 10, 2, 2.0)
    ledger.close()
    records, _ = read_ledger(ledger.path)
    assert (spent_usd(records), booked_usd(records)) == (0.75, 2.5)


def test_failed_and_cancelled_calls_are_booked_as_not_accepted(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl")
    ledger.call(
        CALL, "w1", CallStatus.FAILED, 3, None, None, None, "server_error", "status 500:\u2028 boom " + "x" * 900
    )
    ledger.call(CALL, "w1", CallStatus.CANCELLED, 1, None, None, None)
    ledger.close()
    lines = ledger.path.read_text().split("\n")
    failed, cancelled = (json.loads(line) for line in lines[:-1])
    assert (failed["accepted"], failed["status"], failed["failure"], len(failed["detail"])) == (
        False,
        "failed",
        "server_error",
        500,
    )
    assert (cancelled["accepted"], cancelled["status"], "failure" in cancelled) == (False, "cancelled", False)
    assert booked_usd([failed, cancelled]) == 0.0


def test_ledger_that_cannot_be_opened_or_written_says_where(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkdirError, match="file/ledger.jsonl"):
        Ledger(tmp_path / "file" / "ledger.jsonl")
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.close()
    with pytest.raises(WorkdirError, match="ledger.jsonl"):
        ledger.call(CALL, "w1", CallStatus.OK, 1, 1, 1, 0.1)
