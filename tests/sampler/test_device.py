"""The device thread keeps order, never blocks the loop, and survives errors and cancellation."""

import asyncio
import threading
import time

import pytest

from rw.sampler.device import DeviceThread


@pytest.fixture
def device():
    thread = DeviceThread()
    yield thread
    thread.close()


async def test_functions_run_in_order_on_one_other_thread(device):
    seen = []
    await asyncio.gather(*(device.run(lambda i=i: seen.append((i, threading.get_ident()))) for i in range(20)))
    assert [i for i, _ in seen] == list(range(20))
    assert len({ident for _, ident in seen}) == 1 and seen[0][1] != threading.get_ident()


async def test_event_loop_runs_on_while_the_device_is_busy(device):
    busy = asyncio.create_task(device.run(time.sleep, 0.2))
    ticks = 0
    while not busy.done():
        await asyncio.sleep(0.005)
        ticks += 1
    assert ticks >= 5
    assert device.busy_s >= 0.19


async def test_error_reaches_its_caller_only(device):
    def broken():
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        await device.run(broken)
    assert await device.run(pow, 2, 5) == 32


async def test_cancelled_call_that_runs_finishes_and_a_waiting_one_is_dropped(device):
    started, release, seen = threading.Event(), threading.Event(), []

    def first():
        started.set()
        release.wait(5)
        seen.append("first")

    running = asyncio.create_task(device.run(first))
    waiting = asyncio.create_task(device.run(seen.append, "second"))
    await asyncio.to_thread(started.wait, 5)
    running.cancel()
    waiting.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
    release.set()
    await device.run(seen.append, "third")
    assert seen == ["first", "third"]


async def test_closed_thread_refuses_work(device):
    device.close()
    with pytest.raises(RuntimeError):
        await device.run(pow, 1, 1)
