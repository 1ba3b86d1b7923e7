"""Which Workers are asked for streams, and what is learned of those that do not take to them.

Under `stream="auto"` a Worker is not streamed any more once it has refused to stream, ignored the wish, or left usage
out of several streams in a row: a reply without usage has no cost, and its rollout no efficiency reward.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import re
from collections.abc import Iterable

from rw.errors import FailureCause
from rw.workers.config import WorkerEndpoint
from rw.workers.reply import Failure, Reply

_LOG = logging.getLogger(__name__)
_STREAM = re.compile(r"\bstream", re.IGNORECASE)  # and not "upstream"
STREAMS_WITHOUT_USAGE = 3  # in a row: one alone may be a disturbance


class Transport:
    """Remembers, for every Worker, whether its replies are asked for as streams."""

    def __init__(self, workers: Iterable[WorkerEndpoint]):
        workers = tuple(workers)
        self._streamed = {worker.id for worker in workers if worker.is_streamed}
        self._may_change = {worker.id for worker in workers if worker.stream == "auto"}
        self._without_usage: collections.Counter[str] = collections.Counter()

    def is_streamed(self, worker_id: str) -> bool:
        """Whether the next request to this Worker asks for a stream."""
        return worker_id in self._streamed

    def learn(self, worker_id: str, outcome: Reply | Failure, was_plain: bool) -> Reply | Failure:
        """Draws the lesson of an attempt that asked for a stream.

        Returns:
            The outcome; where the Worker refuses streams, as a failure that is tried again, without one.
        """
        if worker_id not in self._may_change:
            return outcome
        if isinstance(outcome, Failure):
            if was_plain and outcome.cause is FailureCause.CLIENT_ERROR and _STREAM.search(outcome.message):
                self._stop(worker_id, "refuses streams")
                return dataclasses.replace(outcome, cause=FailureCause.BAD_RESPONSE)
        elif was_plain:
            self._stop(worker_id, "answers in one piece when asked for a stream")
        elif outcome.usage is not None:
            self._without_usage[worker_id] = 0
        else:
            self._without_usage[worker_id] += 1
            if self._without_usage[worker_id] >= STREAMS_WITHOUT_USAGE:
                self._stop(worker_id, "leaves usage out of its streams")
        return outcome

    def _stop(self, worker_id: str, why: str) -> None:
        if worker_id in self._streamed:
            self._streamed.discard(worker_id)
            _LOG.warning("%s %s; it is not streamed from now on", worker_id, why)
