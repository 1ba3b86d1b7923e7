"""Copies between pool and work cache, on pages whose numbers say where they came from."""

import jax.numpy as jnp
import numpy as np
import pytest

from rw.model.cache import KEY_AXIS, VALUE_AXIS, init_cache
from rw.sampler import decode as programs
from rw.sampler.tick import rows_of

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


def test_only_the_pages_that_were_written_are_put_back(layer):
    rows = rows_of([[3, 1, 6], [5]], [(6, 10), (2, 4)], 3, 10, 4, PAGE)
    assert rows.tables.tolist() == [[3, 1, 6], [5, 0, 0], [0, 0, 0]]
    assert rows.firsts.tolist() == [1, 0, 0] and rows.written.tolist() == [[1, 6], [5, 0], [0, 0]]
    want = read(layer)
    work = programs.gather(layer, rows.tables)
    new = programs._cut([(work[0] + 0.5, work[1] + 0.5)], rows.firsts, PAGE, 2)[0]
    want[[1, 5, 6]] += 0.5
    np.testing.assert_array_equal(read(programs.put(layer, new, rows.written)), want)


def test_scratch_page_stays_zero_whatever_padding_computes(layer):
    rows = rows_of((), (), 2, 8, 4, PAGE)
    new = tuple(array + np.nan for array in programs.gather(layer, rows.tables))
    assert np.all(read(programs.put(layer, new, rows.written))[0] == 0)


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
def test_pages_that_a_span_touches(span, length, first, written):
    rows = rows_of([[1, 2, 3]], [span], 1, length, 4, PAGE)
    assert rows.firsts.tolist() == [first] and rows.written.tolist() == [written]
