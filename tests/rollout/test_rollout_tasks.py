"""None of several coroutines outlives its caller."""

import asyncio

import pytest

from rw.rollout.tasks import cancel_all, gather_or_cancel


async def _after(seconds, value):
    await asyncio.sleep(seconds)
    return value


async def _raise(error):
    await asyncio.sleep(0)
    raise error


async def test_results_keep_the_order_given():
    assert await gather_or_cancel([_after(0.02, "slow"), _after(0.0, "fast")]) == ["slow", "fast"]


async def test_first_exception_is_raised_and_the_others_have_ended_by_then():
    ended = []

    async def sibling():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)  # cleaning up takes a moment
            ended.append(True)

    with pytest.raises(KeyError, match="first"):
        await gather_or_cancel([sibling(), _raise(KeyError("first")), sibling()])
    assert ended == [True, True]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cancelling_the_caller_ends_all_and_lets_them_clean_up():
    ended = []

    async def sibling(cleaning_s):
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(cleaning_s)
            ended.append(cleaning_s)

    caller = asyncio.create_task(gather_or_cancel([sibling(0.0), sibling(0.02), sibling(0.01)]))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended == [0.0, 0.01, 0.02]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_nothing_to_run_gives_nothing():
    assert await gather_or_cancel([]) == []


async def test_cancel_all_raises_nothing_of_tasks_that_had_failed_before():
    failed = asyncio.create_task(_raise(ValueError("old")))
    running = asyncio.create_task(_after(60, None))
    await asyncio.sleep(0.01)
    await cancel_all([failed, running])
    assert running.cancelled() and isinstance(failed.exception(), ValueError)
