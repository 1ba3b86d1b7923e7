"""The order of queries: epochs, batches that span them, and resuming from nothing but b."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rw.data.order import batch_indices
from rw.errors import DataError


def test_literal_order_of_a_small_set():
    assert [batch_indices(0, b, 10, 4) for b in range(6)] == [
        [4, 6, 2, 7],
        [3, 5, 9, 0],
        [8, 1, 9, 3],
        [1, 8, 7, 6],
        [0, 4, 2, 5],
        [8, 2, 1, 0],
    ]


@given(st.integers(0, 2**32), st.integers(1, 40), st.data())
def test_every_epoch_holds_every_index_once_and_no_batch_holds_one_twice(seed, size, data):
    batch = data.draw(st.integers(1, size))
    batches = [batch_indices(seed, b, size, batch) for b in range(-(-3 * size // batch))]
    assert all(len(set(one)) == len(one) == batch for one in batches)
    stream = list(itertools.chain.from_iterable(batches))
    for epoch in range(3):
        assert sorted(stream[epoch * size : (epoch + 1) * size]) == list(range(size))


def test_epochs_differ_and_so_do_seeds():
    first, second = batch_indices(0, 0, 20, 20), batch_indices(0, 1, 20, 20)
    assert sorted(first) == sorted(second) and first != second
    assert batch_indices(1, 0, 20, 20) != first


def test_resuming_at_any_batch_the_last_of_an_epoch_too_continues_the_same_order():
    whole = [batch_indices(7, b, 8, 4) for b in range(6)]
    for resumed_at in range(6):
        assert [batch_indices(7, b, 8, 4) for b in range(resumed_at, 6)] == whole[resumed_at:]


def test_impossible_batches_are_refused():
    for size, batch in ((10, 11), (0, 1), (10, 0)):
        with pytest.raises(DataError, match=f"batch of {batch} different queries cannot be taken from {size}"):
            batch_indices(0, 0, size, batch)
    with pytest.raises(DataError, match="data_batch_index=-1"):
        batch_indices(0, -1, 10, 5)
