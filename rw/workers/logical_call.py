"""One logical call while it holds its permit: attempts, waits and bookings.

An attempt is over before the next one begins, so that a late answer never enters beside its retry. Each is reserved for
before it is sent and settled once, however it ends.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import aiohttp

from rw.errors import FailureCause, WorkerRefusedError
from rw.types import CallStatus, WorkerCall
from rw.workers.attempt import Attempt
from rw.workers.budget import Budget
from rw.workers.config import ClientConfig, WorkerEndpoint
from rw.workers.interface import WorkerRequest
from rw.workers.keys import KeyMask
from rw.workers.ledger import Ledger
from rw.workers.pacing import Pace, Sending
from rw.workers.pricing import PriceTable
from rw.workers.reply import Failure, Reply, TokenBounds, Usage
from rw.workers.request import STREAM_FIELDS, call_header, input_bound, request_body, worst_case_usd
from rw.workers.retry import call_fraction, next_wait_s
from rw.workers.transport import Transport

OUTPUT_SLACK = 4  # times max_output_tokens that a report may hold: some servers overrun, or count thinking apart


class CallObserver(Protocol):
    """Who counts what happens to calls."""

    def attempted(self, worker_id: str, outcome: Reply | Failure, sending: Sending) -> None: ...

    def retried(self, cause: FailureCause) -> None: ...

    def ended(self, worker_id: str, outcome: Reply | Failure) -> None: ...


@dataclasses.dataclass(frozen=True, eq=False)
class CallContext:
    """What a call needs of its client."""

    worker: WorkerEndpoint
    key: str | None = dataclasses.field(repr=False)
    mask: KeyMask
    session: aiohttp.ClientSession
    config: ClientConfig
    prices: PriceTable
    ledger: Ledger | None
    budget: Budget | None
    pace: Pace
    transport: Transport
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[Any]]
    observer: CallObserver


class LogicalCall:
    """One call; `run` may be awaited once."""

    def __init__(self, context: CallContext, request: WorkerRequest, queue_wait_s: float):
        self._context, self._request, self._queue_wait_s = context, request, queue_wait_s
        self._worker, self._config, self._clock = context.worker, context.config, context.clock
        deadline_s = self._config.call_deadline_s
        self._ends_at_s = None if deadline_s is None else self._clock() + deadline_s
        self._input_bound = input_bound(self._worker, request.content)
        self._worst_case_usd = worst_case_usd(context.prices, self._worker, request.content)
        self._attempts = 0
        self._latency_s = 0.0  # of the latest attempt
        self._retry_cost_usd = 0.0
        self._is_booked = False

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
                    raise self._refusal(outcome)
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
                self._context.observer.retried(outcome.cause)
                await self._context.sleep(wait_s)
        finally:
            if self._attempts and not self._is_booked:  # cancelled, or ended by a cap
                self._book(CallStatus.CANCELLED, None, None, None, "")

    async def _attempt(self) -> Reply | Failure:
        """One attempt, after its turn in the Worker's pace and in the budget: waits that are ours, not the Worker's."""
        began_s = self._clock()
        context = self._context
        sending = await context.pace.admit(self._input_bound + self._worker.max_output_tokens)
        try:
            streamed = context.transport.is_streamed(self._worker.id)
            attempt = self._make_attempt(streamed)
            if context.budget is not None:
                await context.budget.reserve(self._worker.id, self._worst_case_usd)
        except BaseException:
            context.pace.settle(sending, 0)
            raise
        outcome: Reply | Failure | None = None
        try:
            self._waited(self._clock() - began_s)
            self._attempts += 1
            self._note_sent()
            attempt.remaining_s, began_s = self._remaining_s(), self._clock()
            outcome = await attempt.run()
        finally:
            self._latency_s = self._clock() - began_s
            try:
                if isinstance(outcome, Reply) and self._request.on_reply is not None:
                    self._request.on_reply(self._ended(outcome))
            finally:
                self._settle(attempt, outcome, sending)
        context.observer.attempted(self._worker.id, outcome, sending)
        return context.transport.learn(self._worker.id, outcome, attempt.was_plain) if streamed else outcome

    def _make_attempt(self, streamed: bool) -> Attempt:
        body = request_body(self._worker, self._config.worker_seed, self._request)
        return Attempt(
            session=self._context.session,
            url=self._worker.base_url.rstrip("/") + "/chat/completions",
            headers=self._headers(),
            body=json.dumps(body | STREAM_FIELDS if streamed else body).encode(),
            streamed=streamed,
            bounds=TokenBounds(self._input_bound, OUTPUT_SLACK * self._worker.max_output_tokens),
            mask=self._context.mask,
            config=self._config,
            remaining_s=None,
            wall_clock=self._context.wall_clock,
        )

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self._context.key is not None:
            headers["Authorization"] = f"Bearer {self._context.key}"
        if self._worker.send_call_header:
            headers["x-rw-call"] = call_header(self._request.id)
        return headers

    def _settle(self, attempt: Attempt, outcome: Reply | Failure | None, sending: Sending) -> None:
        """Books what an attempt cost, or may have cost where nobody said. `outcome` is None where it was cancelled."""
        usage = outcome.usage if outcome is not None else None
        cost_usd = self._cost_usd(usage)
        is_unknown = usage is None and may_be_billed(attempt.has_connected, outcome)
        unknown_usd = self._worst_case_usd if is_unknown else 0.0
        tokens = usage.input_tokens + usage.output_tokens if usage else None if is_unknown else 0
        self._context.pace.settle(sending, tokens)
        if self._context.budget is not None:
            spent_usd = (cost_usd or 0.0) + unknown_usd
            self._context.budget.settle(self._worker.id, self._worst_case_usd, spent_usd, unknown_usd)
        accepted = isinstance(outcome, Reply)
        if not accepted:
            self._retry_cost_usd += cost_usd or 0.0
        if self._context.ledger is not None and (usage is not None or unknown_usd > 0):
            failure = None if accepted else "cancelled" if outcome is None else outcome.cause.value
            tokens = (usage.input_tokens, usage.output_tokens) if usage else (None, None)
            request = self._request
            self._context.ledger.attempt(
                request.id,
                self._worker.id,
                self._attempts,
                *tokens,
                cost_usd,
                accepted,
                unknown_usd,
                failure,
                request.mode,
                request.query_id,
            )

    def _note_sent(self) -> None:
        if self._context.ledger is not None and self._worst_case_usd > 0:
            request = self._request
            self._context.ledger.sent(
                request.id, self._worker.id, self._attempts, self._worst_case_usd, request.mode, request.query_id
            )

    def _waited(self, seconds: float) -> None:
        self._queue_wait_s += seconds
        if self._ends_at_s is not None:
            self._ends_at_s += seconds

    def _remaining_s(self) -> float | None:
        return None if self._ends_at_s is None else max(0.0, self._ends_at_s - self._clock())

    def _cost_usd(self, usage: Usage | None) -> float | None:
        if usage is None:
            return None
        return self._context.prices.cost_usd(self._worker.id, usage.input_tokens, usage.output_tokens)

    def _refusal(self, failure: Failure) -> WorkerRefusedError:
        where = self._worker.key_env or self._worker.key_file or "its key_env or key_file"
        return WorkerRefusedError(
            f"Worker {self._worker.id} ({self._worker.base_url}) refuses our calls with {failure.message}; "
            f"check {where} and the account behind it"
        )

    def _finish(self, outcome: Reply | Failure) -> WorkerCall:
        ended = self._ended(outcome)
        self._context.observer.ended(self._worker.id, outcome)
        failure = outcome if isinstance(outcome, Failure) else None
        usage = None if failure else outcome.usage
        self._book(ended.status, usage, ended.cost_usd, failure and failure.cause, failure.message if failure else "")
        return ended

    def _ended(self, outcome: Reply | Failure) -> WorkerCall:
        reply = outcome if isinstance(outcome, Reply) else None
        failure = None if reply else outcome.cause
        usage = reply.usage if reply else None
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
            cost_usd=self._cost_usd(usage),
            latency_s=self._latency_s,
            attempts=self._attempts,
            status=CallStatus.OK if reply else CallStatus.FAILED,
            failure=failure.value if failure else None,
            finish_reason=reply.finish_reason if reply else None,
            queue_wait_s=self._queue_wait_s,
            retry_cost_usd=self._retry_cost_usd,
        )

    def _book(
        self,
        status: CallStatus,
        usage: Usage | None,
        cost_usd: float | None,
        failure: FailureCause | None,
        detail: str,
    ) -> None:
        self._is_booked = True
        if self._context.ledger is not None:
            tokens = (usage.input_tokens, usage.output_tokens) if usage else (None, None)
            self._context.ledger.call(
                self._request.id,
                self._worker.id,
                status,
                self._attempts,
                *tokens,
                cost_usd,
                failure,
                detail,
                self._request.mode,
                self._request.query_id,
            )


def may_be_billed(has_connected: bool, outcome: Reply | Failure | None) -> bool:
    """Whether an attempt without usage may have cost something; `outcome` is None where it was cancelled."""
    return has_connected and not (isinstance(outcome, Failure) and outcome.unbilled)
