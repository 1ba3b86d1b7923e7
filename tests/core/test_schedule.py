import collections
import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rw.core.schedule import (
    ScheduleConfig,
    assign_modes,
    forced_modes,
    forced_ratio,
    is_cold_start,
    is_forced,
    query_uniform,
    support_coefficient,
)
from rw.errors import ConfigError
from rw.types import Mode


def test_forced_ratio_falls_linearly_from_cold_start_to_autonomy():
    assert [forced_ratio(b) for b in (0, 24, 25, 26, 50, 74, 75, 89)] == [1.0, 1.0, 1.0, 0.98, 0.5, 0.02, 0.0, 0.0]
    assert [forced_ratio(b, cold_batches=2, autonomous_from=6) for b in range(8)] == [1, 1, 1, 0.75, 0.5, 0.25, 0, 0]


def test_without_progressive_exploration_nothing_is_ever_forced():
    assert {forced_ratio(b, cold_batches=0, autonomous_from=0) for b in range(90)} == {0.0}
    assert not is_cold_start(0, cold_batches=0)


@pytest.mark.parametrize("arguments", [(-1, 25, 75), (0, 76, 75), (0, -1, 75)])
def test_bounds_out_of_order_are_refused(arguments):
    with pytest.raises(ConfigError):
        forced_ratio(*arguments)


def test_support_coefficient_is_off_in_cold_start_and_fades_with_the_forced_ratio():
    assert [support_coefficient(b) for b in (0, 24, 25, 50, 75, 89)] == [0.0, 0.0, 0.002, 0.001, 0.0, 0.0]


def test_query_uniform_reads_eight_bytes_big_endian():
    digest = hashlib.sha256("maths/17 é".encode()).hexdigest()
    assert query_uniform("maths/17 é") == int(digest[:16], 16) / 2**64
    assert query_uniform("maths/17") == 0x1E5FE40DDF6D5149 / 2**64 == 0.11865067804995034  # digest 1e5fe40d df6d5149 …


def test_forced_iff_below_the_ratio_and_always_at_one():
    u = query_uniform("maths/17")
    assert not is_forced("maths/17", u)  # strictly below
    assert is_forced("maths/17", float(np.nextafter(u, 1.0)))  # the next float64: float32 could not tell them apart
    assert is_forced("maths/17", 1.0)
    assert not is_forced("maths/17", 0.0)


def test_at_ratio_one_even_the_largest_hash_is_forced(monkeypatch):
    monkeypatch.setattr("rw.core.schedule.query_uniform", lambda query_id: 1.0)
    assert is_forced("any", 1.0)


@given(st.text(max_size=30), st.floats(0, 1), st.floats(0, 1))
def test_a_query_once_free_stays_free_as_the_ratio_falls(query_id, first, second):
    low, high = sorted((first, second))
    assert is_forced(query_id, high) or not is_forced(query_id, low)


def test_share_of_forced_queries_follows_the_ratio():
    forced = sum(is_forced(f"q{i}", 0.3) for i in range(4000))
    assert 0.28 < forced / 4000 < 0.32


@pytest.mark.parametrize("b, quotas", [(0, (10, 11, 11)), (1, (11, 10, 11)), (2, (11, 11, 10)), (30, (10, 11, 11))])
def test_the_papers_batch_is_split_11_11_10_and_the_ten_rotates(b, quotas):
    modes = forced_modes(7, b, 32)
    assert tuple(modes.count(mode) for mode in Mode) == quotas


@pytest.mark.parametrize(
    "b, size, quotas",
    [
        (0, 9, (3, 3, 3)),
        (0, 10, (4, 3, 3)),
        (1, 10, (3, 4, 3)),
        (2, 8, (3, 2, 3)),
        (0, 2, (1, 1, 0)),
        (2, 1, (0, 0, 1)),
    ],
)
def test_other_batch_sizes_give_the_rest_to_the_modes_from_b_on(b, size, quotas):
    modes = forced_modes(7, b, size)
    assert tuple(modes.count(mode) for mode in Mode) == quotas


def test_positions_are_shuffled_by_seed_and_batch_alone():
    assert forced_modes(7, 3, 32) == forced_modes(7, 3, 32)
    assert len({forced_modes(7, 3, 32), forced_modes(8, 3, 32), forced_modes(7, 6, 32)}) == 3
    first = collections.Counter(forced_modes(7, b, 32)[0] for b in range(300))
    assert min(first[mode] for mode in Mode) > 70  # no position is bound to a mode


def test_modes_are_assigned_before_the_draw():
    ids = [f"q{i}" for i in range(32)]
    everyone = forced_modes(7, 50, 32)
    assigned = assign_modes(ids, 7, 50)
    assert assigned == tuple(
        mode if is_forced(query_id, 0.5) else None for query_id, mode in zip(ids, everyone, strict=True)
    )
    assert 8 < sum(mode is not None for mode in assigned) < 24
    assert None not in assign_modes(ids, 7, 25)
    assert set(assign_modes(ids, 7, 75)) == {None}


def test_a_config_gives_the_bounds_and_the_only_mode():
    assert ScheduleConfig(20, 120).bounds == (20, 120) and ScheduleConfig().mode is None
    assert ScheduleConfig(20, 120, progressive=False).bounds == (0, 0)
    assert [ScheduleConfig(only_mode=mode.word).mode for mode in Mode] == list(Mode)
    with pytest.raises(ConfigError, match="only_mode='Multi'"):
        ScheduleConfig(only_mode="Multi")
