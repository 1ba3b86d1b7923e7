"""The seam between rollouts and Workers: a request with its identity in, a WorkerCall out."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from rw.types import CallId, CallStatus, Mode, Role, WorkerCall


@dataclasses.dataclass(frozen=True)
class WorkerRequest:
    """One logical call: `content` is the single user message that the Worker reads."""

    id: CallId
    worker_id: str
    node_id: str
    role: Role | None
    references: tuple[str, ...]
    subquery: str
    content: str
    query_id: str = ""  # of the rollout's query, for the books
    mode: Mode | None = None  # of the rollout, for the books


def stopped_call(request: WorkerRequest) -> WorkerCall:
    """The record of a call that was stopped before it had one: nothing of it was measured."""
    return WorkerCall(
        node_id=request.node_id,
        worker_id=request.worker_id,
        role=request.role,
        references=request.references,
        subquery=request.subquery,
        output="",
        input_tokens=None,
        output_tokens=None,
        cost_usd=None,
        latency_s=0.0,
        attempts=0,  # none was completed; the ledger knows those begun
        status=CallStatus.CANCELLED,
    )


def as_asked(call: WorkerCall, request: WorkerRequest) -> WorkerCall:
    """A kept call under the name that the present request gives it."""
    return dataclasses.replace(
        call,
        node_id=request.node_id,
        role=request.role,
        references=request.references,
        subquery=request.subquery,
    )


class WorkerClient(Protocol):
    """Calls Workers. A failed call is data (status FAILED with its cause), never an exception.

    Raises only what stops the run, an RwError (refused for good, over a cap, not on the cassette, a disk that takes no
    more), and cancellation.
    """

    async def call(self, request: WorkerRequest) -> WorkerCall: ...

    async def close(self) -> None: ...
