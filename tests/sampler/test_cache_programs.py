"""Copies between pool and work cache, on pages whose numbers say where they came from."""

import jax.numpy as jnp
import numpy as np
import pytest

from rw.model.cache import KEY_AXIS, VALUE_AXIS, init_cache
from rw.sampler import decode as programs
from rw.sampler.work import in_pages, in_rows

PAGES, PAGE = 7, 4


@pytest.fixture
def layer(model_config):
    """Keys and values hold 10·page + place, in every head and feature; the scratch page is zero."""
    numbers = 10.0 * jnp.arange(PAGES)[:, None] + jnp.arange(PAGE)  # f32[pages, page]
    numbers = numbers.at[0].set(0.0)

    def fill(array, axis):
        shape = [PAGES, 1, 1, 1]
        shape[axis] = PAGE
        return jnp.zeros_like(array) + numbers.reshape(shape)

    keys, values = init_cache(model_config, PAGES, PAGE)[0]
    return fill(keys, KEY_AXIS), fill(values, VALUE_AXIS)


def read(layer):
    """f32[rows, C], the same in every head and feature of keys and values."""
    found = []
    for array, axis in zip(layer, (KEY_AXIS, VALUE_AXIS), strict=True):
        array = np.moveaxis(np.asarray(array), axis, -1)
        found.append(array[:, 0, 0].copy())
        assert np.all(array == found[0][:, None, None])
    return found[0]


def test_gather_puts_pages_one_after_another(layer):
    work = read(programs.gather(layer, np.array([[3, 1], [5, 0]], np.int32)))
    assert work.tolist() == [[30, 31, 32, 33, 10, 11, 12, 13], [50, 51, 52, 53, 0, 0, 0, 0]]


def test_gather_takes_pages_as_they_are(layer):
    work = read(programs.gather(layer, np.array([0, 5, 2], np.int32)))
    assert work.tolist() == [[0, 0, 0, 0], [50, 51, 52, 53], [20, 21, 22, 23]]


SPANS = [(6, 10), (2, 4)]  # of rows that have the pages 3, 1, 6 and 5


def put_back(layer, work, places):
    """The pool after 0.5 was added to everything in the work cache of this layer."""
    cache = [tuple(array + 0.5 for array in programs.gather(layer, work.pages))]
    new = programs._cut(cache, places, PAGE, 2)[0]
    return read(programs.put(layer, new, work.written.reshape(-1)))


def test_only_the_pages_of_rows_that_were_written_are_put_back(layer):
    rows = in_rows([[3, 1, 6], [5]], SPANS, 3, (10,), 4, PAGE)
    assert rows.pages.tolist() == [[3, 1, 6], [5, 0, 0], [0, 0, 0]]
    assert rows.firsts.tolist() == [1, 0, 0] and rows.written.tolist() == [[1, 6], [5, 0], [0, 0]]
    want = read(layer)
    want[[1, 5, 6]] += 0.5
    np.testing.assert_array_equal(put_back(layer, rows, programs.InRows(rows.firsts)), want)


def test_only_the_pages_that_were_written_are_put_back(layer):
    pages = in_pages([[3, 1, 6], [5]], SPANS, 3, (4, 12), 4, PAGE)
    assert pages.written.tolist() == [[1, 6], [5, 0], [0, 0]]
    want = read(layer)
    want[[1, 5, 6]] += 0.5
    np.testing.assert_array_equal(put_back(layer, pages, programs.InPages(pages.tables, pages.places)), want)


@pytest.mark.parametrize("layout", [in_rows, in_pages])
def test_scratch_page_stays_zero_whatever_padding_computes(layer, layout):
    work = layout((), (), 2, (8,), 4, PAGE)
    new = tuple(jnp.full((4, *array.shape[1:]), jnp.nan) for array in layer)
    assert np.all(read(programs.put(layer, new, work.written.reshape(-1)))[0] == 0)


def test_copied_pages(layer):
    want = read(layer)
    want[3], want[2] = want[1], want[0]
    sources, targets = np.array([1, 0, 0], np.int32), np.array([3, 2, 0], np.int32)
    np.testing.assert_array_equal(read(programs.copy(layer, sources, targets)), want)


def test_grown_pool_holds_what_it_held(layer):
    want = read(layer)
    grown = read(programs.grow(layer, 9))
    np.testing.assert_array_equal(grown[:PAGES], want)
    assert grown.shape == (9, PAGE)
