"""Copies between pool and work cache, on a cache whose numbers say where they came from."""

import jax.numpy as jnp
import numpy as np
import pytest

from rw.model.cache import KEY_AXIS, VALUE_AXIS, init_cache
from rw.sampler import decode as programs

ROWS, CAPACITY = 5, 16


@pytest.fixture
def numbered(model_config):
    """Keys and values hold 100·row + position, in every head and feature."""
    numbers = 100.0 * jnp.arange(ROWS)[:, None] + jnp.arange(CAPACITY)  # f32[rows, C]

    def fill(array, axis):
        shape = [ROWS, 1, 1, 1]
        shape[axis] = CAPACITY
        return jnp.zeros_like(array) + numbers.reshape(shape)

    cache = init_cache(model_config, ROWS, CAPACITY)
    return [(fill(keys, KEY_AXIS), fill(values, VALUE_AXIS)) for keys, values in cache]


def read(cache):
    """f32[rows, C] of a cache, the same in every layer, head and feature of keys and values."""
    found = []
    for layer in cache:
        for array, axis in zip(layer, (KEY_AXIS, VALUE_AXIS), strict=True):
            array = np.moveaxis(np.asarray(array), axis, -1)
            found.append(array[:, 0, 0].copy())
            assert np.all(array == found[0][:, None, None])
    return found[0]


def test_gather_takes_the_head_of_the_rows_asked_for(numbered):
    work = programs.gather(numbered, np.array([3, 1], np.int32), 4)
    assert read(work).tolist() == [[300, 301, 302, 303], [100, 101, 102, 103]]


def test_store_puts_back_the_new_positions_alone(numbered):
    rows = np.array([3, 1], np.int32)
    work = [(keys + 0.5, values + 0.5) for keys, values in programs.gather(numbered, rows, 8)]
    want = read(numbered)
    want[3, 2:5] += 0.5
    want[1, 5:8] += 0.5
    np.testing.assert_array_equal(read(programs.store(numbered, work, rows, np.array([2, 5], np.int32), 3)), want)


def test_range_beyond_a_short_work_cache_moves_to_its_end(numbered):
    rows = np.array([2], np.int32)
    work = [(keys + 0.5, values + 0.5) for keys, values in programs.gather(numbered, rows, 8)]
    want = read(numbered)
    want[2, 5:8] += 0.5
    np.testing.assert_array_equal(read(programs.store(numbered, work, rows, np.array([7], np.int32), 3)), want)


def test_clone_copies_the_head_of_a_row(numbered):
    want = read(numbered)
    want[3, :6], want[0, :6] = want[1, :6], want[2, :6]
    sources, targets = np.array([1, 2, 4], np.int32), np.array([3, 0, 4], np.int32)
    np.testing.assert_array_equal(read(programs.clone(numbered, sources, targets, 6)), want)


def test_grown_pool_holds_what_it_held(numbered):
    want = read(numbered)
    grown = read(programs.grow(numbered, 20))
    np.testing.assert_array_equal(grown[:, :CAPACITY], want)
    assert grown.shape == (ROWS, 20)
