"""The event loop's lag is what a task feels that should have run."""

import asyncio
import logging
import time

from rw.rollout.lag import LoopLag


async def test_a_blocked_loop_is_measured_and_said(caplog):
    with caplog.at_level(logging.WARNING):
        async with LoopLag(interval_s=0.01, alarm_s=0.2) as lag:
            await asyncio.sleep(0.03)
            time.sleep(0.3)
            await asyncio.sleep(0.03)
    assert 0.25 < lag.longest_s
    assert "the event loop was blocked for" in caplog.text


async def test_a_block_just_before_the_end_counts():
    async with LoopLag(interval_s=0.01, alarm_s=60.0) as lag:
        time.sleep(0.3)
    assert 0.25 < lag.longest_s


async def test_waiting_is_no_lag_and_leaves_no_task(caplog):
    before = asyncio.all_tasks()
    async with LoopLag(interval_s=0.01, alarm_s=60.0) as lag:
        await asyncio.sleep(0.5)
    assert lag.longest_s < 0.4 and asyncio.all_tasks() == before and caplog.text == ""
