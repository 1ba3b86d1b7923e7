"""The client that calls Workers over HTTP: OpenAI-compatible chat completions, one message in, one reply out.

A call that fails after its retries is data (status FAILED with its cause). Two things leave as exceptions: a Worker
that refuses us for good, which stops the run, and cancellation.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp

from rw.errors import ConfigError, FailureCause, WorkerRefusedError
from rw.types import CallStatus, WorkerCall
from rw.workers.config import ClientConfig, WorkerEndpoint, read_key
from rw.workers.interface import WorkerRequest
from rw.workers.ledger import Ledger
from rw.workers.limits import ConcurrencyLimits
from rw.workers.pricing import PriceTable
from rw.workers.reply import Failure, Reply, Usage, read_reply
from rw.workers.request import call_header, request_body
from rw.workers.retry import call_fraction, next_wait_s, parse_retry_after

__all__ = ["ClientConfig", "HttpWorkerClient", "WorkerEndpoint"]

_LOG = logging.getLogger(__name__)
_CHUNK_BYTES = 64 * 1024


class HttpWorkerClient:
    """Calls Workers through one connection pool.

    Belongs to the event loop of its first call until it is closed; after that, the next call may be in another loop.
    `retries` counts repeated attempts by cause, `usage_missing` accepted replies without usage by Worker.
    """

    def __init__(
        self,
        workers: Sequence[WorkerEndpoint],
        prices: PriceTable,
        ledger: Ledger | None,
        config: ClientConfig | None = None,
        *,
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
        self._prices, self._ledger, self._config = prices, ledger, config or ClientConfig()
        self._clock, self._wall_clock, self._sleep = clock, wall_clock, sleep
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._limits = self._make_limits()
        self._complained: set[tuple[str, FailureCause]] = set()
        self.retries: collections.Counter[FailureCause] = collections.Counter()
        self.usage_missing: collections.Counter[str] = collections.Counter()

    @property
    def in_flight(self) -> dict[str, int]:
        """Calls that hold a permit now, by Worker."""
        return dict(self._limits.in_flight)

    async def call(self, request: WorkerRequest) -> WorkerCall:
        """One logical call with its retries; raises WorkerRefusedError, never for any other failure of the Worker."""
        if request.worker_id not in self._workers:
            raise ValueError(f"no Worker {request.worker_id!r}; there are {', '.join(self._workers)}")
        session = self._open_session()
        async with self._limits.hold(request.worker_id) as queue_wait_s:
            return await _LogicalCall(self, session, request, queue_wait_s).run()

    async def close(self) -> None:
        """Closes every connection; the client may be used again afterwards."""
        session, self._session, self._loop = self._session, None, None
        self._limits = self._make_limits()
        if session is not None:
            await session.close()

    def _make_limits(self) -> ConcurrencyLimits:
        return ConcurrencyLimits({w.id: w.max_concurrent for w in self._workers.values()}, self._clock)

    def _open_session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is not None and self._loop is not loop:
            raise RuntimeError("this client is bound to another event loop; close it there first")
        if self._session is None:
            # One connection per permit: a call that holds a permit never waits in the pool, where its Worker would
            # be charged for the wait.
            connector = aiohttp.TCPConnector(limit=sum(w.max_concurrent for w in self._workers.values()))
            timeout = aiohttp.ClientTimeout(total=None, connect=self._config.connect_timeout_s)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
            )
            self._loop = loop
        return self._session

    def _complain(self, worker_id: str, failure: Failure) -> None:
        first = (worker_id, failure.cause) not in self._complained
        self._complained.add((worker_id, failure.cause))
        level = logging.WARNING if first else logging.DEBUG  # a Worker that is down would otherwise flood the console
        _LOG.log(level, "%s: call failed (%s): %s", worker_id, failure.cause, failure.message)


class _LogicalCall:
    """One logical call while it holds its permit: attempts, waits and bookings."""

    def __init__(
        self, client: HttpWorkerClient, session: aiohttp.ClientSession, request: WorkerRequest, queue_wait_s: float
    ):
        self._client, self._session, self._request, self._queue_wait_s = client, session, request, queue_wait_s
        self._worker = client._workers[request.worker_id]
        self._config, self._clock = client._config, client._clock
        deadline_s = self._config.call_deadline_s
        self._ends_at = None if deadline_s is None else self._clock() + deadline_s
        self._attempts = 0
        self._latency_s = 0.0  # of the latest attempt

    async def run(self) -> WorkerCall:
        """Attempts until a reply, the policy or the deadline ends it; books the outcome exactly once."""
        failures: collections.Counter[FailureCause] = collections.Counter()
        try:
            while True:
                outcome = await self._attempt()
                if isinstance(outcome, Reply):
                    return self._finish(outcome)
                if outcome.refused_status is not None:
                    self._finish(outcome)
                    raise WorkerRefusedError(
                        f"Worker {self._worker.id} ({self._worker.base_url}) refuses our calls with {outcome.message}; "
                        f"check {self._worker.key_env or 'its key_env'} and the account behind it"
                    )
                failures[outcome.cause] += 1
                wait_s = next_wait_s(
                    self._config.retry,
                    failures,
                    outcome.cause,
                    outcome.retry_after_s,
                    self._remaining_s(),
                    call_fraction(self._request.id, f"jitter/{self._attempts}"),
                )
                if wait_s is None:
                    return self._finish(outcome)
                self._client.retries[outcome.cause] += 1
                await self._client._sleep(wait_s)
        except asyncio.CancelledError:
            self._book(CallStatus.CANCELLED, None, None, None, "")
            raise

    async def _attempt(self) -> Reply | Failure:
        self._attempts += 1
        remaining_s, limit_s = self._remaining_s(), self._config.attempt_timeout_s
        deadline_first = remaining_s is not None and (limit_s is None or remaining_s <= limit_s)
        began = self._clock()
        try:
            # Around the whole exchange: a socket timeout would start anew with every byte that trickles in.
            async with asyncio.timeout(remaining_s if deadline_first else limit_s):
                outcome = await self._exchange()
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            outcome = Failure(FailureCause.CONNECT, _say(error))
        except TimeoutError:
            cause = FailureCause.DEADLINE if deadline_first else FailureCause.TIMEOUT
            outcome = Failure(cause, f"no complete answer after {self._clock() - began:.1f} s")
        except aiohttp.ClientResponseError as error:
            outcome = Failure(FailureCause.BAD_RESPONSE, _say(error))
        except (aiohttp.ClientError, OSError) as error:
            outcome = Failure(FailureCause.RESET, _say(error))
        self._latency_s = self._clock() - began
        if outcome.usage is not None and self._client._ledger is not None:
            usage, cost_usd = outcome.usage, self._cost_usd(outcome.usage)
            self._client._ledger.attempt(
                self._request.id,
                self._worker.id,
                self._attempts,
                usage.input_tokens,
                usage.output_tokens,
                cost_usd,
                accepted=isinstance(outcome, Reply),
            )
        return outcome

    async def _exchange(self) -> Reply | Failure:
        url = self._worker.base_url.rstrip("/") + "/chat/completions"
        async with self._session.post(
            url,
            data=json.dumps(request_body(self._worker, self._config.worker_seed, self._request)).encode(),
            headers=self._headers(),
            allow_redirects=False,
        ) as response:
            received = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                received += chunk
                if len(received) > self._config.max_body_bytes:
                    response.close()  # or the connection would be kept to read the rest
                    return Failure(FailureCause.BAD_RESPONSE, f"a body over {self._config.max_body_bytes} bytes")
            retry_after_s = parse_retry_after(response.headers.get("Retry-After"), self._client._wall_clock())
            answer = response.status, response.headers.get("Content-Type", "")
            outcome = read_reply(*answer, bytes(received), retry_after_s)
            key = self._client._keys[self._worker.id]
            if isinstance(outcome, Reply) or key is None:  # a reply stays as it is, though a short key may occur in it
                return outcome
            # Servers echo keys in error messages, and messages end in logs and ledgers. The key goes before the message
            # is cut to length, or a part of it could stay.
            masked = read_reply(*answer, bytes(received).replace(key.encode(), b"***"))
            message = masked.message if isinstance(masked, Failure) else "an unreadable answer"
            return dataclasses.replace(outcome, message=message.replace(key, "***"))

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        key = self._client._keys[self._worker.id]
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        if self._worker.send_call_header:
            headers["x-rw-call"] = call_header(self._request.id)
        return headers

    def _remaining_s(self) -> float | None:
        return None if self._ends_at is None else max(0.0, self._ends_at - self._clock())

    def _cost_usd(self, usage: Usage) -> float | None:
        return self._client._prices.cost_usd(self._worker.id, usage.input_tokens, usage.output_tokens)

    def _finish(self, outcome: Reply | Failure) -> WorkerCall:
        reply = outcome if isinstance(outcome, Reply) else None
        failure = None if reply else outcome.cause
        usage = reply.usage if reply else None
        cost_usd = self._cost_usd(usage) if usage else None
        status = CallStatus.OK if reply else CallStatus.FAILED
        if reply and usage is None:
            self._client.usage_missing[self._worker.id] += 1
        if not reply:
            self._client._complain(self._worker.id, outcome)
        self._book(status, usage, cost_usd, failure, "" if reply else outcome.message)
        request = self._request
        return WorkerCall(
            node_id=request.node_id,
            worker_id=request.worker_id,
            role=request.role,
            references=request.references,
            subquery=request.subquery,
            output=reply.text if reply else "",
            input_tokens=usage.input_tokens if usage else None,
            output_tokens=usage.output_tokens if usage else None,
            cost_usd=cost_usd,
            latency_s=self._latency_s,
            attempts=self._attempts,
            status=status,
            failure=failure.value if failure else None,
            finish_reason=reply.finish_reason if reply else None,
            queue_wait_s=self._queue_wait_s,
        )

    def _book(
        self,
        status: CallStatus,
        usage: Usage | None,
        cost_usd: float | None,
        failure: FailureCause | None,
        detail: str,
    ) -> None:
        if self._client._ledger is not None:
            tokens = (usage.input_tokens, usage.output_tokens) if usage else (None, None)
            self._client._ledger.call(
                self._request.id, self._worker.id, status, self._attempts, *tokens, cost_usd, failure, detail
            )


def _say(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
