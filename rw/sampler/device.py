"""The one thread of a process that issues device work.

Compiling and running block their thread for as long as the device is busy. On the event loop that would let the
deadlines of healthy Workers expire; on several threads the order of programs would depend on chance, which hosts that
run the same programs together must not allow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import jax


def _guard() -> None:
    jax.thread_guard(True).__enter__()  # for as long as the thread lives


def _name(fn: Callable) -> str:
    """What a profile calls it."""
    return getattr(getattr(fn, "func", fn), "__qualname__", "device work")  # of a partial, what it calls


P = ParamSpec("P")
R = TypeVar("R")


class DeviceThread:
    """Runs functions one after another, in the order they were handed over, on a thread of its own."""

    def __init__(self, name: str = "device", guarded: bool = False):
        """`guarded`: programs of several processes may then be issued by this thread alone, and jax says if others try:
        from two threads, each process might issue them in an order of its own."""
        begin = _guard if guarded else None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name, initializer=begin)
        self.busy_s = 0.0  # spent inside functions since the thread was made; only that thread writes it

    async def run(self, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Awaits `fn(*args, **kwargs)`, and raises what it raises.

        A caller that is cancelled stops waiting: a function that has not begun is dropped, one that runs goes on to its
        end and its result is dropped, since device work cannot be interrupted.
        """
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._timed, fn, args, kwargs)

    def _timed(self, fn, args, kwargs):
        start = time.monotonic()
        try:
            with jax.profiler.TraceAnnotation(_name(fn)):
                return fn(*args, **kwargs)
        finally:
            self.busy_s += time.monotonic() - start

    def close(self) -> None:
        """Drops what has not begun and waits for what runs. Further calls of `run` raise RuntimeError."""
        self._executor.shutdown(wait=True, cancel_futures=True)
