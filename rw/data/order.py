"""Which queries make up batch b: a pure function, so that resuming needs no stored position beyond b."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from rw.errors import DataError


def batch_indices(seed: int, data_batch_index: int, size: int, batch: int | Sequence[int]) -> list[int]:
    """Indices in [0, size) of the queries of batch `data_batch_index`.

    Every epoch is a permutation of all indices, drawn by a generator seeded with (seed, epoch). A batch may span two
    epochs; what it took of the old one is then moved back in the new one, so that no batch holds an index twice.

    Args:
        batch: how many a batch holds; several numbers take turns by b, and some of them, not all, may be 0.

    Raises:
        DataError: a batch that is empty or larger than the set.
    """
    turns = Turns((batch,) if isinstance(batch, int) else batch)
    if turns.total < 1 or not 0 <= min(turns.counts) <= max(turns.counts) <= size:
        raise DataError(f"a batch of {max(turns.counts)} different queries cannot be taken from {size}")
    if data_batch_index < 0:
        raise DataError(f"data_batch_index={data_batch_index} must be >= 0")
    epoch, offset = divmod(turns.taken_before(data_batch_index), size)
    count = turns.of(data_batch_index)
    order: list[int] = []
    # An epoch's order depends on the batch that straddles its beginning, hence on the epoch before. Epochs are few.
    for current in range(epoch + 1):
        order = _next_epoch(seed, current, size, turns, order)
    taken = order[offset : offset + count]
    if len(taken) < count:
        taken = taken + _next_epoch(seed, epoch + 1, size, turns, order)[: count - len(taken)]
    return taken


class Turns:
    """How many each batch takes: `counts` in turn by b."""

    def __init__(self, counts: Sequence[int]):
        self.counts = tuple(counts)
        self.total = sum(self.counts)
        self._before = (0, *itertools.accumulate(self.counts))

    def of(self, data_batch_index: int) -> int:
        """What batch b takes."""
        return self.counts[data_batch_index % len(self.counts)]

    def taken_before(self, data_batch_index: int) -> int:
        """What all batches before b took."""
        rounds, turn = divmod(data_batch_index, len(self.counts))
        return rounds * self.total + self._before[turn]

    def open_at(self, place: int) -> tuple[int, int]:
        """(places before this one, places from it on) of the batch that spans it; (0, …) where one begins there."""
        within = place % self.total
        turn = max(turn for turn in range(len(self.counts)) if self._before[turn] <= within)
        return within - self._before[turn], self._before[turn + 1] - within


def _next_epoch(seed: int, epoch: int, size: int, turns: Turns, previous: list[int]) -> list[int]:
    """Order of an epoch; what the open batch already holds of `previous` comes no sooner than behind that batch."""
    drawn = np.random.default_rng([seed, epoch]).permutation(size).tolist()
    held_count, open_count = turns.open_at(epoch * size)
    held = set(previous[size - held_count :]) if held_count else set()
    head = [index for index in drawn if index not in held][:open_count] if held else []
    moved = set(head)
    return head + [index for index in drawn if index not in moved]
