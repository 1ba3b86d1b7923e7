"""Whether Workers count as they used to: reported tokens against a local count of the same texts.

Every tokenizer counts differently, chat templates add to the input, and thinking that is not shown adds to the output;
so a Worker is compared with itself alone. Its first calls give the ratio of reported to local tokens that is normal for
it; the latest calls are then held against that:

    a gap has grown where the latest calls report more than GROWTH times what the ratio predicts, and more than
    SLACK_TOKENS a call above it (a template weighs more on shorter messages, which is no reason to warn).

What a Worker did before the process began is not known. Holds counts only; it knows no prices and no tokenizer.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Callable, Mapping

from rw.types import CallStatus, WorkerCall
from rw.workers.interface import WorkerClient, WorkerRequest

_LOG = logging.getLogger(__name__)
FIRST_CALLS = 64  # all counted: they make the ratio that is normal for the Worker
EVERY = 8  # after them, one call in so many is counted
LATEST_CALLS = 64  # counted calls that are held against the first ones
GROWTH = 1.3
SLACK_TOKENS = 32
SIDES = ("in", "out")


@dataclasses.dataclass
class _Tokens:
    """Of one side of some calls."""

    calls: int = 0
    reported: int = 0
    local: int = 0

    def add(self, reported: int, local: int, sign: int = 1) -> None:
        self.calls += sign
        self.reported += sign * reported
        self.local += sign * local

    @property
    def ratio(self) -> float | None:
        return self.reported / self.local if self.local else None


class _Side:
    """The first and the latest calls of a Worker, on one side."""

    def __init__(self):
        self.first, self.latest = _Tokens(), _Tokens()
        self._kept: collections.deque[tuple[int, int]] = collections.deque()
        self.has_warned = False

    def add(self, reported: int, local: int) -> None:
        if self.first.calls < FIRST_CALLS:
            self.first.add(reported, local)
        self.latest.add(reported, local)
        self._kept.append((reported, local))
        if len(self._kept) > LATEST_CALLS:
            self.latest.add(*self._kept.popleft(), sign=-1)

    def has_grown(self) -> bool:
        if self.first.calls < FIRST_CALLS or not self.first.reported or not self.first.local:
            return False
        predicted = self.first.ratio * self.latest.local
        excess = self.latest.reported - predicted
        return excess > (GROWTH - 1) * predicted and excess > SLACK_TOKENS * self.latest.calls


class UsageCheck:
    """Counts a sample of the calls, and warns once a Worker and side where the gap has grown."""

    def __init__(self, count_tokens: Callable[[str], int]):
        """`count_tokens`: the local count, by any tokenizer; it is called for the sampled texts alone."""
        self._count_tokens = count_tokens
        self._calls: collections.Counter[str] = collections.Counter()
        self._sides: dict[tuple[str, str], _Side] = collections.defaultdict(_Side)

    def note(self, request: WorkerRequest, call: WorkerCall) -> None:
        """Takes notice of an answered call; one without usage says nothing."""
        if call.status is not CallStatus.OK or call.input_tokens is None or call.output_tokens is None:
            return
        worker_id, number = call.worker_id, self._calls[call.worker_id]
        self._calls[worker_id] += 1
        if number < FIRST_CALLS or number % EVERY == 0:
            self._add(worker_id, "in", call.input_tokens, request.content)
            self._add(worker_id, "out", call.output_tokens, call.output)

    def metrics(self) -> Mapping[str, float]:
        """`worker/{id}/usage_ratio_{in,out}`: reported over local tokens of the latest calls."""
        ratios = {
            f"worker/{worker}/usage_ratio_{side}": kept.latest.ratio for (worker, side), kept in self._sides.items()
        }
        return {name: ratio for name, ratio in ratios.items() if ratio is not None}

    def _add(self, worker_id: str, side: str, reported: int, text: str) -> None:
        kept = self._sides[worker_id, side]
        kept.add(reported, self._count_tokens(text))
        if not kept.has_warned and kept.has_grown():
            kept.has_warned = True
            _LOG.warning(
                "%s now reports %.2f %sput tokens for each that we count, and reported %.2f at first: it may have "
                "changed its model, its template or what it thinks unseen; worker/%s/usage_ratio_%s shows it",
                worker_id,
                kept.latest.ratio,
                side,
                kept.first.ratio,
                worker_id,
                side,
            )


class UsageCheckedClient:
    """Another client, whose answered calls the check takes notice of."""

    def __init__(self, client: WorkerClient, check: UsageCheck):
        self._client, self._check = client, check

    async def call(self, request: WorkerRequest) -> WorkerCall:
        """One logical call."""
        call = await self._client.call(request)
        self._check.note(request, call)
        return call

    async def close(self) -> None:
        """Closes the client behind it."""
        await self._client.close()
