"""Sandboxes started ahead, so that a program need not wait for a cold one. Knows nothing of programs and tests."""

from __future__ import annotations

import atexit
import collections
import concurrent.futures
import contextlib
import os
import threading

from rw.scoring.sandbox_process import Sandbox, SandboxFault

AHEAD = 2  # started and unused; an idle one holds some 15 MiB


class SandboxPool:
    """Sandboxes of one tier; each is taken once, and others are started in its place. For any threads of a process.

    One thread starts them all and stays while the process lives: some kinds of sandbox end with the thread that started
    them.
    """

    def __init__(self, tier: str, ahead: int = AHEAD):
        self.tier = tier
        self._ahead = ahead
        self._starter = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=f"sandboxes-{tier}")
        self._starting: collections.deque[concurrent.futures.Future[Sandbox]] = collections.deque()
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> Sandbox:
        """A sandbox that is ready, for the caller to `end`, and then to `refill` the pool.

        Raises SandboxFault where a fresh one fails too: those that were ended while they waited say nothing.
        """
        for _ in range(self._ahead):
            with contextlib.suppress(SandboxFault):
                return self._ready(self._next())
        return self._ready(self._next())

    def refill(self) -> None:
        """Starts as many as shall wait; not at once when one is taken, when there is a program to run."""
        with self._lock:
            while len(self._starting) < self._ahead and not self._closed:
                self._starting.append(self._starter.submit(Sandbox, self.tier))

    def _next(self) -> concurrent.futures.Future[Sandbox]:
        with self._lock:
            return self._starting.popleft() if self._starting else self._starter.submit(Sandbox, self.tier)

    @staticmethod
    def _ready(future: concurrent.futures.Future[Sandbox]) -> Sandbox:
        sandbox = future.result()
        try:
            sandbox.await_ready()
        except BaseException:
            sandbox.end()
            raise
        return sandbox

    def close(self) -> None:
        """Ends all that wait."""
        with self._lock:
            starting, self._starting, self._closed = self._starting, collections.deque(), True
        for future in starting:
            with contextlib.suppress(SandboxFault):
                future.result().end()
        self._starter.shutdown()


_pools: dict[str, SandboxPool] = {}
_pools_lock = threading.Lock()


def pool(tier: str) -> SandboxPool:
    """The pool of that tier in this process."""
    with _pools_lock:
        if tier not in _pools:
            _pools[tier] = SandboxPool(tier)
        return _pools[tier]


def close_pools() -> None:
    """Ends all sandboxes that wait; later ones start cold."""
    with _pools_lock:
        pools = list(_pools.values())
        _pools.clear()
    for one in pools:
        one.close()


def _forget_pools() -> None:
    global _pools_lock
    _pools_lock = threading.Lock()
    _pools.clear()  # they are the parent's


atexit.register(close_pools)
os.register_at_fork(after_in_child=_forget_pools)
