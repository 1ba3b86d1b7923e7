"""The layouts of work caches, as numbers."""

import numpy as np
import pytest

from rw.sampler.work import in_pages, in_rows

PAGE = 4


@pytest.mark.parametrize(
    "span, length, first, written",
    [
        ((0, 4), 12, 0, [1, 0]),
        ((3, 7), 12, 0, [1, 2]),
        ((7, 8), 12, 1, [2, 0]),
        ((9, 12), 12, 1, [0, 3]),  # the last page of the row: counted from where two of them fit
        ((1, 3), 4, 0, [1]),
    ],
)
def test_pages_of_a_row_that_a_span_touches(span, length, first, written):
    rows = in_rows([[1, 2, 3]], [span], 1, (length,), 4, PAGE)
    assert rows.firsts.tolist() == [first] and rows.written.tolist() == [written]


def test_rows_are_as_long_as_the_longest_needs():
    rows = in_rows([[1, 2, 3], [4]], [(8, 9), (0, 2)], 2, (8, 12, 20), 4, PAGE)
    assert rows.pages.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert rows.of_row(0) == {1, 2, 3} and rows.of_row(1) == {4}


def test_pages_that_rows_share_lie_there_once():
    work = in_pages([[7, 2, 9], [7, 2, 5]], [(8, 10), (9, 12)], 3, (8, 12), 4, PAGE)
    assert work.pages.tolist() == [0, 7, 2, 9, 5, 0, 0]  # room for three rows of two pages, and the scratch page
    assert work.tables.tolist() == [[1, 2, 3], [1, 2, 4], [0, 0, 0]]
    assert work.places.tolist() == [[3, 0], [4, 0], [0, 0]] and work.written.tolist() == [[9, 0], [5, 0], [0, 0]]
    assert work.of_row(0) == {7, 2, 9} and work.of_row(2) == set()


def test_pages_reserved_beyond_what_is_written_are_left_out():
    work = in_pages([[3, 4, 5, 6]], [(3, 5)], 1, (16,), 4, PAGE)
    assert work.pages.tolist() == [0, 3, 4, 0, 0] and work.written.tolist() == [[3, 4]]


def test_rows_share_room_whatever_the_length_of_each():
    """One row of the longest beside two short ones fits in what three middling ones have."""
    pages = [list(range(1, 6)), [6], [7]]
    work = in_pages(pages, [(16, 17), (0, 1), (2, 4)], 3, (4, 12, 20), 2, PAGE)
    assert len(work.pages) == 1 + 3 * 3 and work.tables.shape == (3, 5)
    assert sorted(work.pages.tolist()) == [0, 0, 0, *range(1, 8)]


@pytest.mark.parametrize("seed", range(20))
def test_both_layouts_read_and_store_the_same(seed):
    rng = np.random.default_rng(seed)
    free, pages, spans = list(rng.permutation(99) + 1), [], []
    for _ in range(rng.integers(1, 5)):
        end = int(rng.integers(1, 40))
        start = max(0, end - int(rng.integers(1, 7)))
        own = [free.pop() for _ in range(-(-end // PAGE) + rng.integers(0, 2))]
        pages.append(own), spans.append((start, end))
    arguments = pages, spans, 4, (8, 16, 44), 6, PAGE
    rows, paged = in_rows(*arguments), in_pages(*arguments)
    for i, (own, (start, end)) in enumerate(zip(pages, spans, strict=True)):
        needed = own[: -(-end // PAGE)]
        assert rows.pages[i, : len(needed)].tolist() == needed
        assert paged.pages[paged.tables[i, : len(needed)]].tolist() == needed
        written = set(own[start // PAGE : len(needed)])
        assert set(rows.written[i].tolist()) - {0} == written == set(paged.written[i].tolist()) - {0}
