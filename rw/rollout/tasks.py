"""Coroutines side by side, none of which outlives its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def cancel_all(tasks: Iterable[asyncio.Task]) -> None:
    """Cancels the tasks and waits until each has ended, however it ends; their exceptions stay with them."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in the order given. The first exception, or our own cancellation, ends all others before it goes on."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    if not tasks:
        return []
    try:
        # Not gather: cancelled, it would cancel the tasks itself, and our own cancel after it would interrupt their
        # cleaning up.
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in ended:
            task.result()  # raises what the task raised
        return [task.result() for task in tasks]
    finally:
        await cancel_all(tasks)
