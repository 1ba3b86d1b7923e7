"""The book of pages by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rw.sampler.pages import PageBook, pages_for, pool_sizes


@pytest.mark.parametrize("tokens, pages", [(0, 0), (1, 1), (8, 1), (9, 2)])
def test_pages_hold_whole_tokens(tokens, pages):
    assert pages_for(tokens, 8) == pages


def test_pool_grows_in_steps_below_twofold_up_to_its_limit():
    assert pool_sizes(4, 30) == [4, 7, 12, 21, 30]
    assert pool_sizes(1, 4) == [1, 2, 3, 4]
    assert pool_sizes(50, 30) == [30]


def test_pool_grows_only_where_its_pages_are_used_up():
    book = PageBook(4, 9)
    assert book.take(3) == [1, 2, 3] and book.capacity == 4
    assert book.take(2, may_grow=False) is None and book.capacity == 4
    assert book.take(2) == [4, 5] and book.capacity == 7
    assert book.take(5) is None and book.in_use == 5
    book.give([2])
    assert book.take(5) == [2, 6, 7, 8, 9] and book.capacity == 9


def test_shared_page_is_free_when_its_last_user_has_given_it_back():
    book = PageBook(2, 2)
    pages = book.take(2)
    book.share(pages[:1])
    book.give(pages)
    assert book.in_use == 1 and book.users(1) == 1 and book.take(2) is None
    book.give(pages[:1])
    assert book.take(2) == [1, 2]


def test_spoilt_pages_are_not_given_out_before_they_were_cleaned():
    book = PageBook(3, 3)
    first, second = book.take(1), book.take(1)
    book.give(first)
    book.spoil([*first, *second, 3])
    assert book.unclean == [1, 3] and book.take(1) is None
    book.give(second)
    assert book.unclean == [1, 3, 2]
    book.cleaned([1, 3])  # 2 came while these were
    assert book.unclean == [2] and book.take(3) is None
    book.cleaned([2])
    assert book.take(3) == [1, 2, 3] and not book.unclean


@given(st.integers(1, 40), st.integers(0, 400), st.lists(st.integers(1, 60), max_size=12))
def test_what_is_allocated_stays_below_twice_what_is_in_use(first, more, counts):
    book = PageBook(first, first + more)
    for count in counts:
        before = book.capacity
        if book.take(count) is not None and book.capacity != before:
            assert book.capacity <= max(first, 2 * book.in_use)
