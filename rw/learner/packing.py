"""Which sequences share a row, and which rows a micro-batch: pure functions of lengths, so that every host agrees.

Knows no tokens and no arrays of a model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RowOf = tuple[int, ...]  # indices of the sequences that a row holds, in order

# Longer rows leave less padding, but attention compares all pairs of a row's blocks: padding may be this much above the
# least that any row length gives.
PADDING_SLACK = 1.05


def arrange(
    lengths: Sequence[int], buckets: Sequence[int], micro_batch: int, *, packed: bool, by_length: bool
) -> list[list[RowOf]]:
    """Micro-batches of rows of sequences; every sequence lies in one of them.

    Args:
        lengths: tokens of each sequence, none above the last bucket.
        buckets: legal lengths of a micro-batch, ascending.
        packed: several sequences may share a row, of a length that the lengths decide; otherwise each has its own.
        by_length: sequences are sorted, which leaves less padding; otherwise they keep their order. In a sorted batch
            the micro-batch that is not full holds the shortest rows, in the other it is the last.
    """
    if not packed:
        order = sorted(range(len(lengths)), key=lengths.__getitem__) if by_length else range(len(lengths))
        return _split([(index,) for index in order], micro_batch, by_length)
    layouts = [_packed(lengths, buckets, target, micro_batch, by_length) for target in buckets]
    slots = [_slots(layout, lengths, buckets, micro_batch) for layout in layouts]
    return next(layout for layout, size in zip(layouts, slots, strict=True) if size <= PADDING_SLACK * min(slots))


def bucket_of(length: int, buckets: Sequence[int]) -> int | None:
    """The smallest bucket that holds `length`, or None."""
    return next((bucket for bucket in buckets if bucket >= length), None)


def _packed(lengths, buckets, target: int, micro_batch: int, by_length: bool) -> list[list[RowOf]]:
    """Rows of `target` tokens or, where the sequence that opens one is longer, of the bucket that holds it.

    Sorted, each sequence goes to the first row with room, the longest first; otherwise to the last row or a new one.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)) if by_length else range(len(lengths))
    rows: list[list[int]] = []
    room = np.zeros(len(lengths), np.int64)
    for index in order:
        first = 0 if by_length else max(len(rows) - 1, 0)
        fits = np.flatnonzero(room[first : len(rows)] >= lengths[index])
        if fits.size:
            at = first + int(fits[0])
        else:
            at = len(rows)
            rows.append([])
            room[at] = bucket_of(max(lengths[index], target), buckets)
        rows[at].append(index)
        room[at] -= lengths[index]
    made = [tuple(row) for row in rows]
    if by_length:
        made.sort(key=lambda row: (_used(row, lengths), row))
    return _split(made, micro_batch, by_length)


def _split(rows: list[RowOf], micro_batch: int, short_first: bool) -> list[list[RowOf]]:
    """Rows in parts of `micro_batch`; what is left over is the first part or the last."""
    start = len(rows) % micro_batch if short_first else 0
    head = [rows[:start]] if start else []
    return head + [rows[at : at + micro_batch] for at in range(start, len(rows), micro_batch)]


def _used(row: RowOf, lengths: Sequence[int]) -> int:
    return sum(lengths[index] for index in row)


def _slots(layout: list[list[RowOf]], lengths, buckets, micro_batch: int) -> int:
    longest = (max(_used(row, lengths) for row in part) for part in layout)
    return sum(micro_batch * bucket_of(length, buckets) for length in longest)
