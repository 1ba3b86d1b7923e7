"""Which sequences share a row: by lengths alone, none lost, none in a row too short for it."""

import numpy as np
import pytest

from rw.learner.packing import Family, arrange, arrange_families


def test_in_order_a_sequence_joins_the_last_row_or_opens_one():
    options = {"buckets": (8, 16), "micro_batch": 2, "packed": True, "by_length": False}
    assert arrange([5, 3, 9, 2, 8], **options) == [[(0, 1), (2, 3)], [(4,)]]
    assert arrange([9, 9, 9], **options) == [[(0,), (1,)], [(2,)]]
    assert arrange([], **options) == []


def test_by_length_each_goes_where_there_is_room_and_the_longest_first():
    options = {"buckets": (8, 16), "micro_batch": 2, "packed": True, "by_length": True}
    # 10 + 6 and 9 + 5 + 2 fill rows of 16 to the brim; of three rows one has a micro-batch to itself.
    assert arrange([2, 16, 5, 10, 6, 9], **options) == [[(1,)], [(3, 4), (5, 2, 0)]]
    assert arrange([2, 3, 2], **options) == [[(1, 0, 2)]]


@pytest.mark.parametrize("by_length", [False, True])
def test_every_sequence_lies_in_one_row_that_holds_it(by_length):
    rng = np.random.default_rng(0)
    for _ in range(200):
        lengths = [int(n) for n in rng.integers(1, 65, rng.integers(0, 40))]
        options = {"buckets": (8, 24, 64), "micro_batch": int(rng.integers(1, 5)), "by_length": by_length}
        parts = arrange(lengths, packed=True, **options)
        rows = [row for part in parts for row in part]
        assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
        assert all(sum(lengths[index] for index in row) <= 64 for row in rows)
        assert all(1 <= len(part) <= options["micro_batch"] for part in parts)
        if not by_length:
            assert [index for row in rows for index in row] == list(range(len(lengths)))
        assert len(rows) <= len(arrange(lengths, packed=False, **options)) * options["micro_batch"]


def test_long_sequences_leave_short_ones_in_short_rows():
    lengths, buckets = [1000] + [60] * 64, (64, 256, 1024)
    parts = arrange(lengths, buckets, 4, packed=True, by_length=True)
    longest = [max(sum(lengths[i] for i in row) for row in part) for part in parts]
    assert sum(length > 256 for length in longest) == 1


def test_families_are_whole_where_a_row_holds_them_and_cut_where_none_does():
    # The first shares 4 of its tokens and takes 4 + 2 + 3 + 3 = 12; the second 6 + 4 + 4 + 4 = 18.
    lengths = [6, 7, 7, 10, 10, 10, 3]
    families = [Family(4, (0, 1, 2)), Family(6, (3, 4, 5)), Family(0, (6,))]
    options = {"buckets": (16,), "micro_batch": 2}
    for packed, by_length, expected in (
        (True, False, [[(0, 1, 2), (3, 4)], [(5, 6)]]),
        (True, True, [[(5,)], [(3, 4), (1, 2, 0, 6)]]),
        (False, False, [[(0, 1, 2), (3, 4)], [(5,), (6,)]]),
        (False, True, [[(6,), (5,)], [(1, 2, 0), (3, 4)]]),
    ):
        assert arrange_families(families, lengths, **options, packed=packed, by_length=by_length) == expected


def test_any_family_lies_in_rows_that_hold_it_and_together():
    rng = np.random.default_rng(1)
    for _ in range(200):
        families, lengths = [], []
        for _ in range(int(rng.integers(0, 8))):
            shared, count = int(rng.integers(0, 30)), int(rng.integers(1, 9))
            families.append(Family(shared, range(len(lengths), len(lengths) + count)))
            lengths += [shared + int(n) for n in rng.integers(1 if not shared else 0, 35, count)]
        packed, by_length = (bool(rng.integers(2)) for _ in range(2))
        parts = arrange_families(families, lengths, (8, 24, 64), 3, packed=packed, by_length=by_length)
        rows = [row for part in parts for row in part]
        assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
        for row in rows:
            held = [Family(f.shared, [i for i in row if i in f.members]) for f in families if set(row) & set(f.members)]
            assert sum(family.size(lengths) for family in held) <= 64 and (packed or len(held) == 1)
        most = max((family.size(lengths) for family in families), default=0)
        if most <= 64 and not packed:
            assert len(rows) == len(families)
