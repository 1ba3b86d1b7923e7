"""The seam between rollouts and Workers: a request with its identity in, a WorkerCall out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
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
    # Told of an accepted reply before it is booked as paid: a kill in between must not leave it booked and lost.
    on_reply: Callable[[WorkerCall], None] | None = dataclasses.field(default=None, compare=False, repr=False)


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


async def call_and_keep(client: WorkerClient, request: WorkerRequest, keep: Callable[[WorkerCall], None]) -> WorkerCall:
    """One logical call, which `keep` is told of once: of a reply before it is booked, where the client says so, and of
    all else when it has ended."""
    is_kept = False

    def on_reply(call: WorkerCall) -> None:
        nonlocal is_kept
        is_kept = True
        keep(call)
        if request.on_reply is not None:
            request.on_reply(call)

    ended = await client.call(dataclasses.replace(request, on_reply=on_reply))
    if not is_kept:
        keep(ended)
    return ended


class WorkerClient(Protocol):
    """Calls Workers. A failed call is data (status FAILED with its cause), never an exception.

    Raises only what stops the run, an RwError (refused for good, over a cap, not on the cassette, a disk that takes no
    more), and cancellation.
    """

    async def call(self, request: WorkerRequest) -> WorkerCall: ...

    async def close(self) -> None: ...
