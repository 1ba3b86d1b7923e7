"""A Worker client that journals: an answered call is never sent again."""

from __future__ import annotations

import functools
from collections.abc import Callable

from rw.types import CallStatus, WorkerCall
from rw.workers.interface import WorkerClient, WorkerRequest, as_asked, call_and_keep
from rw.workers.journal import Journal


class JournaledClient:
    """The calls of one scope through another client.

    Args:
        digest: of a request: of all that its answer depends on.
        on_replay: told of every call that was answered from the journal, so that the books can say what that saved.
        replay_failures: whether a call that failed stays failed after a restart. Otherwise it is sent again: whoever
            restarts a run after an outage wants its failures healed.
    """

    def __init__(
        self,
        client: WorkerClient,
        journal: Journal,
        digest: Callable[[WorkerRequest], str],
        on_replay: Callable[[WorkerRequest, WorkerCall], None] = lambda request, call: None,
        replay_failures: bool = False,
    ):
        self._client, self._journal = client, journal
        self._digest, self._on_replay, self._replay_failures = digest, on_replay, replay_failures

    async def call(self, request: WorkerRequest) -> WorkerCall:
        """One logical call, from the journal where it has the reply to this very request."""
        digest = self._digest(request)
        kept = self._journal.response(request.id, digest)
        if kept is not None and (kept.status is CallStatus.OK or self._replay_failures):
            kept = as_asked(kept, request)
            self._on_replay(request, kept)
            return kept
        self._journal.write_intent(request.id, request.worker_id, digest)
        keep = functools.partial(self._journal.write_response, request.id, digest)
        return await call_and_keep(self._client, request, keep)

    async def close(self) -> None:
        """Closes the client behind it; the journal belongs to its opener."""
        await self._client.close()
