"""Bucket choice, and settings that do not fit together."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rw.errors import ConfigError
from rw.sampler.shapes import EngineConfig, length_bucket, split_rows


@pytest.mark.parametrize(
    "count, parts",
    [
        (0, []),
        (3, [(3, 8)]),
        (8, [(8, 8)]),
        (12, [(8, 8), (4, 8)]),
        (24, [(24, 32)]),
        (40, [(32, 32), (8, 8)]),
        (64, [(32, 32), (32, 32)]),
    ],
)
def test_rows_are_divided_over_few_well_filled_dispatches(count, parts):
    assert split_rows(count, (8, 32)) == parts


@given(st.integers(0, 300), st.sets(st.integers(1, 64), min_size=1, max_size=4))
def test_every_row_gets_a_place(count, widths):
    widths = tuple(sorted(widths))
    parts = split_rows(count, widths)
    assert sum(rows for rows, _ in parts) == count
    assert all(0 < rows <= width and width in widths for rows, width in parts)


def test_smallest_sufficient_length_or_the_largest():
    assert [length_bucket(need, (64, 128)) for need in (1, 64, 65, 128, 131)] == [64, 64, 128, 128, 128]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"slots": 0}, "engine.slots=0"),
        ({"page_tokens": 0}, "engine.page_tokens=0"),
        ({"steps_per_dispatch": 0}, "engine.steps_per_dispatch=0"),
        ({"lengths": (256, 128)}, r"engine.lengths=\(256, 128\)"),
        ({"lengths": ()}, r"engine.lengths=\(\)"),
        ({"decode_widths": (0, 8)}, r"engine.decode_widths=\(0, 8\)"),
        ({"lengths": (32, 64), "prefill_chunk": 64}, "must be at least 64"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**settings)


def test_pool_goes_from_one_wide_dispatch_to_all_episodes_or_its_budget():
    config = EngineConfig(slots=3, lengths=(128, 512), decode_widths=(2, 8), page_tokens=64)
    assert config.pool_pages(1000, 20) == (16, 20 * 9) and config.pool_pages(1000, 0) == (9, 9)
    assert dataclasses.replace(config, kv_bytes=50_999).pool_pages(1000, 20) == (16, 49)
    assert dataclasses.replace(config, kv_bytes=10_000).pool_pages(1000, 20) == (9, 9)
    with pytest.raises(ConfigError, match=r"kv_bytes=9999: a context of 512 tokens may take 10000; raise it"):
        dataclasses.replace(config, kv_bytes=9_999).pool_pages(1000, 20)
    whole = dataclasses.replace(config, deterministic=True, kv_bytes=181_000)
    assert whole.pool_pages(1000, 20) == (16, 180)
    with pytest.raises(ConfigError, match="kv_bytes=181000: 21 contexts of 512 tokens may take 190000"):
        whole.pool_pages(1000, 21)


def test_lists_from_a_file_become_tuples():
    assert EngineConfig(lengths=[128, 256]).lengths == (128, 256)


def test_work_caches_lie_in_pages_on_cpus_unless_one_says_otherwise():
    assert EngineConfig().for_platform("cpu").work_cache == "pages"
    assert EngineConfig().for_platform("gpu").work_cache == EngineConfig().for_platform("tpu").work_cache == "rows"
    assert EngineConfig(work_cache="rows").for_platform("cpu").work_cache == "rows"
    with pytest.raises(ConfigError, match="engine.work_cache='page'.*auto, rows, pages"):
        EngineConfig(work_cache="page")
