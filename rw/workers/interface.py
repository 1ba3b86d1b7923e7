"""The seam between rollouts and Workers: a request with its identity in, a WorkerCall out."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from rw.types import CallId, Mode, Role, WorkerCall


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


class WorkerClient(Protocol):
    """Calls Workers. A failed call is data (status FAILED with its cause), never an exception.

    Raises only WorkerRefusedError, which stops the run, and cancellation.
    """

    async def call(self, request: WorkerRequest) -> WorkerCall: ...

    async def close(self) -> None: ...
