"""Which queries make up batch b: a pure function, so that resuming needs no stored position beyond b."""

from __future__ import annotations

import numpy as np

from rw.errors import DataError


def batch_indices(seed: int, data_batch_index: int, size: int, batch: int) -> list[int]:
    """Indices in [0, size) of the queries of batch `data_batch_index`.

    Every epoch is a permutation of all indices, drawn by a generator seeded with (seed, epoch). A batch may span two
    epochs; what it took of the old one is then moved back in the new one, so that no batch holds an index twice.

    Raises:
        DataError: a batch that is empty or larger than the set.
    """
    if not 1 <= batch <= size:
        raise DataError(f"a batch of {batch} different queries cannot be taken from {size}")
    if data_batch_index < 0:
        raise DataError(f"data_batch_index={data_batch_index} must be >= 0")
    epoch, offset = divmod(data_batch_index * batch, size)
    order: list[int] = []
    # An epoch's order depends on the batch that straddles its beginning, hence on the epoch before. Epochs are few.
    for current in range(epoch + 1):
        order = _next_epoch(seed, current, size, batch, order)
    taken = order[offset : offset + batch]
    if len(taken) < batch:
        taken = taken + _next_epoch(seed, epoch + 1, size, batch, order)[: batch - len(taken)]
    return taken


def _next_epoch(seed: int, epoch: int, size: int, batch: int, previous: list[int]) -> list[int]:
    """Order of an epoch; what the open batch already holds of `previous` comes no sooner than behind that batch."""
    drawn = np.random.default_rng([seed, epoch]).permutation(size).tolist()
    open_count = epoch * size % batch  # places of the open batch that the previous epoch filled
    held = set(previous[size - open_count :]) if open_count else set()
    head = [index for index in drawn if index not in held][: batch - open_count] if held else []
    moved = set(head)
    return head + [index for index in drawn if index not in moved]
