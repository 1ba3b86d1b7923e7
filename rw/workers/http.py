"""The client that calls Workers over HTTP: OpenAI-compatible chat completions, one message in, one reply out.

A call that fails after its retries is data (status FAILED with its cause). Three things leave as exceptions: a Worker
that refuses us for good and a cap on spending, which stop the run, and cancellation.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp

from rw.errors import ConfigError, FailureCause
from rw.types import WorkerCall
from rw.workers.attempt import reach_trace
from rw.workers.budget import Budget
from rw.workers.config import ClientConfig, WorkerEndpoint
from rw.workers.interface import WorkerRequest
from rw.workers.keys import KeyMask, read_key
from rw.workers.ledger import Ledger
from rw.workers.limits import ConcurrencyLimits
from rw.workers.logical_call import CallContext, LogicalCall
from rw.workers.pacing import Pace, Sending
from rw.workers.pricing import PriceTable
from rw.workers.reply import Failure, Reply
from rw.workers.transport import Transport

__all__ = ["ClientConfig", "HttpWorkerClient", "WorkerEndpoint"]

_LOG = logging.getLogger(__name__)
_KEPT_S = 4.0  # an idle connection; many servers close theirs after 5 s, and a request may be on its way just then
_CAUSES = {FailureCause.RATE_LIMITED: "429", FailureCause.SERVER_ERROR: "5xx"}  # as dashboards call them


class HttpWorkerClient:
    """Calls Workers through one connection pool.

    Belongs to the event loop of its first call until it is closed; after that, the next call may be in another loop.
    Counts since it was made: `retries` repeated attempts by cause; by Worker, `usage_missing` accepted replies without
    usage, and `usage_unbelieved` attempts whose usage cannot be true.
    """

    def __init__(
        self,
        workers: Sequence[WorkerEndpoint],
        prices: PriceTable,
        ledger: Ledger | None,
        config: ClientConfig | None = None,
        *,
        budget: Budget | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ):
        """Checks everything that a first call would trip over: ids, prices and keys; raises ConfigError."""
        if not workers:
            raise ConfigError("no Workers: a client needs at least one endpoint")
        repeated = [i for i, n in collections.Counter(worker.id for worker in workers).items() if n > 1]
        if repeated:
            raise ConfigError(f"Worker id {repeated[0]} is used by more than one endpoint")
        prices.require(worker.id for worker in workers)
        self._workers = {worker.id: worker for worker in workers}
        self._keys = {worker.id: read_key(worker) for worker in workers}
        self._masks = {worker_id: KeyMask(key) for worker_id, key in self._keys.items()}
        self._prices, self._ledger, self._budget, self._config = prices, ledger, budget, config or ClientConfig()
        self._clock, self._wall_clock, self._sleep = clock, wall_clock, sleep
        self._transport = Transport(workers)
        most = {worker.id: worker.max_concurrent for worker in workers}
        self._limits = ConcurrencyLimits(most, clock, self._config.adaptive_concurrency)
        self._paces = {
            w.id: Pace(w.requests_per_minute, w.tokens_per_minute, clock, sleep, self._config.adaptive_concurrency)
            for w in workers
        }
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._said: set[tuple[str, str]] = set()
        self.retries: collections.Counter[FailureCause] = collections.Counter()
        self.usage_missing: collections.Counter[str] = collections.Counter()
        self.usage_unbelieved: collections.Counter[str] = collections.Counter()
        self._told = {"retries": self.retries.copy(), "usage_unbelieved": self.usage_unbelieved.copy()}

    @property
    def in_flight(self) -> dict[str, int]:
        """Calls that hold a permit now, by Worker."""
        return self._limits.in_flight

    @property
    def concurrency_limits(self) -> dict[str, int]:
        """Calls that may hold a permit at once, as far as each Worker's answers tell."""
        return self._limits.now

    def take_peak_in_flight(self) -> dict[str, int]:
        """The most calls that held a permit at once since this was last asked, by Worker."""
        return self._limits.take_peaks()

    def take_metrics(self) -> dict[str, float]:
        """What happened since this was last asked.

        `retries/{cause}`: attempts repeated, where any were, `429` and `5xx` among the causes. `worker/{id}/in_flight`:
        the most calls at once. `worker/{id}/usage_unbelieved`: attempts, where any were.
        """
        retries = self.retries - self._told["retries"]
        unbelieved = self.usage_unbelieved - self._told["usage_unbelieved"]
        self._told = {"retries": self.retries.copy(), "usage_unbelieved": self.usage_unbelieved.copy()}
        return {
            **{f"retries/{_CAUSES.get(cause, cause.value)}": float(count) for cause, count in retries.items()},
            **{f"worker/{worker_id}/in_flight": float(peak) for worker_id, peak in self.take_peak_in_flight().items()},
            **{f"worker/{worker_id}/usage_unbelieved": float(count) for worker_id, count in unbelieved.items()},
        }

    async def call(self, request: WorkerRequest) -> WorkerCall:
        """One logical call with its retries; a failure of the Worker is no exception.

        Raises:
            WorkerRefusedError: no later call to this Worker can succeed.
            BudgetExhaustedError: the call might cost more than a cap allows.
        """
        if request.worker_id not in self._workers:
            raise ValueError(f"no Worker {request.worker_id!r}; there are {', '.join(self._workers)}")
        session = self._open_session()
        async with self._limits.hold(request.worker_id) as queue_wait_s:
            return await LogicalCall(self._context(request.worker_id, session), request, queue_wait_s).run()

    async def close(self) -> None:
        """Closes every connection; the client may be used again afterwards."""
        session, self._session, self._loop = self._session, None, None
        if session is not None:
            await session.close()

    def _context(self, worker_id: str, session: aiohttp.ClientSession) -> CallContext:
        return CallContext(
            worker=self._workers[worker_id],
            key=self._keys[worker_id],
            mask=self._masks[worker_id],
            session=session,
            config=self._config,
            prices=self._prices,
            ledger=self._ledger,
            budget=self._budget,
            pace=self._paces[worker_id],
            transport=self._transport,
            clock=self._clock,
            wall_clock=self._wall_clock,
            sleep=self._sleep,
            observer=self,
        )

    def _open_session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is not None and self._loop is not loop:
            raise RuntimeError("this client is bound to another event loop; close it there first")
        if self._session is None:
            # One connection per permit: a call that holds a permit never waits in the pool, where its Worker would
            # be charged for the wait.
            most = sum(worker.max_concurrent for worker in self._workers.values())
            connector = aiohttp.TCPConnector(limit=most, keepalive_timeout=_KEPT_S)
            timeout = aiohttp.ClientTimeout(total=None, connect=self._config.connect_timeout_s)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                trace_configs=[reach_trace()],
            )
            self._loop = loop
        return self._session

    def attempted(self, worker_id: str, outcome: Reply | Failure, sending: Sending) -> None:
        """Notes how an attempt ended, and what that says of the Worker's limits."""
        if outcome.unbelieved:
            self.usage_unbelieved[worker_id] += 1
            what = "reports usage that cannot be true and counts as missing"
            self._say_once(worker_id, "usage", what, outcome.unbelieved)
        pace = self._paces[worker_id]
        if isinstance(outcome, Reply):
            self._limits.succeeded(worker_id)
            pace.succeeded(sending)
            return
        retry_after_s = outcome.retry_after_s or 0.0
        if retry_after_s and outcome.unbilled:
            # A wait beyond the deadline fails this call and must not keep those that come later from asking again.
            pace.hold_back(min(retry_after_s, self._config.call_deadline_s or retry_after_s))
        if outcome.cause is FailureCause.RATE_LIMITED and not pace.rejected(sending, retry_after_s):
            self._limits.rejected(worker_id, retry_after_s)

    def retried(self, cause: FailureCause) -> None:
        """Notes that an attempt is repeated."""
        self.retries[cause] += 1

    def ended(self, worker_id: str, outcome: Reply | Failure) -> None:
        """Notes how a call ended."""
        if isinstance(outcome, Failure):
            self._say_once(worker_id, outcome.cause, f"call failed ({outcome.cause})", outcome.message)
        elif outcome.usage is None:
            self.usage_missing[worker_id] += 1

    def _say_once(self, worker_id: str, topic: str, what: str, detail: str) -> None:
        first = (worker_id, topic) not in self._said
        self._said.add((worker_id, topic))
        level = logging.WARNING if first else logging.DEBUG  # a Worker that is down would otherwise flood the console
        _LOG.log(level, "%s: %s: %s", worker_id, what, detail)
