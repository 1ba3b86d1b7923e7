"""Which sequences share a row, and which rows a micro-batch: pure functions of lengths, so that every host agrees.

Knows no tokens and no arrays of a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

RowOf = tuple[int, ...]  # indices of the sequences that a row holds, in order


class Family(NamedTuple):
    """Sequences that begin alike, and can share what they begin with where they share a row."""

    shared: int  # tokens
    members: Sequence[int]  # indices of the sequences

    def size(self, lengths: Sequence[int]) -> int:
        """Tokens of a row that holds all of them: what is shared lies there once."""
        own = sum(lengths[index] - self.shared for index in self.members)
        return own + self.shared


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
    families = [Family(0, (index,)) for index in range(len(lengths))]
    return arrange_families(families, lengths, buckets, micro_batch, packed=packed, by_length=by_length)


def arrange_families(
    families: Sequence[Family],
    lengths: Sequence[int],
    buckets: Sequence[int],
    micro_batch: int,
    *,
    packed: bool,
    by_length: bool,
) -> list[list[RowOf]]:
    """Micro-batches of rows of families; every family lies in one row, or in parts where one would be too long for it.

    The sequences of a part follow each other in their row. Arguments as of `arrange`; `packed`: several families may
    share a row, otherwise a row holds one, or a part of one.
    """
    layouts, slots = [], []
    for target in buckets if packed else buckets[-1:]:
        parts = [part for family in families for part in _cut(family, lengths, target, buckets, by_length)]
        sizes = [part.size(lengths) for part in parts]
        if packed:
            layout = _packed(sizes, buckets, target, micro_batch, by_length)
        else:
            order = sorted(range(len(parts)), key=sizes.__getitem__) if by_length else range(len(parts))
            layout = _split([(part,) for part in order], micro_batch, by_length)
        slots.append(_slots(layout, sizes, buckets, micro_batch))
        layouts.append([[sum((tuple(parts[at].members) for at in row), ()) for row in rows] for rows in layout])
    return next(layout for layout, size in zip(layouts, slots, strict=True) if size <= PADDING_SLACK * min(slots))


def bucket_of(length: int, buckets: Sequence[int]) -> int | None:
    """The smallest bucket that holds `length`, or None."""
    return next((bucket for bucket in buckets if bucket >= length), None)


def _cut(family: Family, lengths, target: int, buckets, by_length: bool) -> Iterator[Family]:
    """The family in as few parts as rows of `target` tokens, or of the bucket that holds its longest sequence, allow.

    Sorted, each sequence goes to the first part with room, the longest first; otherwise to the last or a new one.
    """
    own = [lengths[index] - family.shared for index in family.members]
    room = bucket_of(max(family.shared + max(own), target), buckets) - family.shared
    for row in _filled(own, [room] * len(own), by_length):
        yield Family(family.shared, [family.members[at] for at in row])


def _packed(lengths, buckets, target: int, micro_batch: int, by_length: bool) -> list[list[RowOf]]:
    """Rows of `target` tokens or, where what opens one is longer, of the bucket that holds it."""
    rooms = [bucket_of(max(length, target), buckets) for length in lengths]
    made = [tuple(row) for row in _filled(lengths, rooms, by_length)]
    if by_length:
        made.sort(key=lambda row: (_used(row, lengths), row))
    return _split(made, micro_batch, by_length)


def _filled(sizes: Sequence[int], rooms: Sequence[int], by_size: bool) -> list[list[int]]:
    """Rows of indices of `sizes`; the one that opens a row says by `rooms` what the row can hold.

    By size each goes to the first row with room, the largest first; otherwise to the last row or a new one.
    """
    order = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)) if by_size else range(len(sizes))
    rows: list[list[int]] = []
    room = np.zeros(len(sizes), np.int64)
    for index in order:
        first = 0 if by_size else max(len(rows) - 1, 0)
        fits = np.flatnonzero(room[first : len(rows)] >= sizes[index])
        if fits.size:
            at = first + int(fits[0])
        else:
            at = len(rows)
            rows.append([])
            room[at] = rooms[index]
        rows[at].append(index)
        room[at] -= sizes[index]
    return rows


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
