"""The slot table by itself: what it says is in the cache is what the reported work has put there."""

import numpy as np
import pytest

from rw.sampler.interface import EpisodeId
from rw.sampler.pages import PageBook
from rw.sampler.slots import SlotState, SlotTable

PAGE = 2


def tokens(*ids):
    return np.array(ids, np.int32)


def make_table(count, eviction=False, pages=60):
    return SlotTable(count, PageBook(1, pages), PAGE, eviction)


def fill(table, chunk=64, count=99):
    """Does all pending copies and prefills, and returns what was prefilled as (slot, start, end)."""
    done = []
    while True:
        attached, spans = table.attach(), table.spans(chunk, count)
        for span in spans:
            done.append((span.slot.index, span.start, span.end))
            table.filled(span)
        if not attached and not spans:
            return done


def episode(query, rollout=0):
    return EpisodeId(0, query, rollout)


def parts(spans):
    return [(span.slot.index, span.start, span.end) for span in spans]


def test_siblings_wait_for_one_prefill_and_begin_with_its_pages():
    table = make_table(3)
    slots = [table.admit(episode("q", k), tokens(1, 2, 3, 4, 5, 6), 6) for k in range(3)]
    (span,) = table.spans(3, 9)
    assert parts([span]) == [(0, 0, 3)] and span.pages == [1, 2]
    table.filled(span)
    assert not table.attach()
    (span,) = table.spans(3, 9)
    assert parts([span]) == [(0, 3, 5)] and span.pages == [1, 2, 3]
    table.filled(span)
    assert not table.spans(3, 9)
    attached = table.attach()
    assert [(a.slot.index, a.page, a.is_first) for a in attached] == [
        (0, (3, 4), True),
        (1, (3, 5), False),
        (2, (3, 6), False),
    ]
    assert [slot.pages for slot in slots] == [[1, 2, 4], [1, 2, 5], [1, 2, 6]]
    assert all(slot.state is SlotState.DECODING for slot in slots) and table.cached_tokens == 5 + 3


def test_prompt_of_whole_pages_needs_no_copy():
    table = make_table(2)
    slots = [table.admit(episode("q", k), tokens(1, 2, 3, 4, 5), 5) for k in range(2)]
    assert fill(table) == [(0, 0, 4)]
    assert slots[0].pages == slots[1].pages == [1, 2] and table.pages.users(1) == 3


def test_pieces_never_cross_the_end_of_the_shared_prompt():
    table = make_table(1)
    table.admit(episode("q"), np.arange(20, dtype=np.int32), 6)
    assert fill(table, chunk=8) == [(0, 0, 5), (0, 5, 13), (0, 13, 19)]


def test_next_sibling_goes_on_where_the_one_that_computed_the_prompt_is_released():
    table = make_table(2)
    for k in range(2):
        table.admit(episode("q", k), tokens(1, 2, 3, 4, 5), 5)
    table.filled(table.spans(2, 9)[0])
    table.release(episode("q", 0))
    assert parts(table.spans(8, 9)) == [(1, 2, 4)]


def test_prompt_outlives_its_episodes_until_its_pages_are_needed():
    table = make_table(1, pages=5, eviction=True)
    table.admit(episode("a"), tokens(1, 2, 3, 4), 4)
    fill(table)
    table.release(episode("a"))
    assert table.pages.in_use == 2
    again = table.admit(episode("a", 1), tokens(1, 2, 3, 4), 4)
    assert fill(table) == [] and again.state is SlotState.DECODING
    table.release(episode("a", 1))
    assert table.pages.capacity == 3
    table.admit(episode("b"), tokens(7, 7, 7, 7, 7), 1)
    fill(table)
    assert table.pages.capacity == 3  # not grown before unused prompts are gone
    table.release(episode("b"))
    table.admit(episode("a", 2), tokens(1, 2, 3, 4), 4)
    assert fill(table) == [(0, 0, 3)]


def test_paused_episode_prefills_only_what_is_new_and_its_last_sampled_token():
    table = make_table(1)
    slot = table.admit(episode("q"), tokens(1, 2, 3), 3)
    fill(table)
    table.make_room(slot, 7)
    table.sampled(slot, [7, 8])
    table.sampled(slot, [9])
    assert len(slot.pages) == 4
    table.pause(slot)
    assert len(slot.pages) == 3  # the last was reserved for what did not come
    assert table.admit(episode("q"), tokens(1, 2, 3, 7, 8, 9, 4, 4), 3) is slot
    assert fill(table) == [(0, 5, 7)]
    assert slot.state is SlotState.DECODING


def test_tokens_that_do_not_extend_the_last_turn_are_refused():
    table = make_table(1)
    slot = table.admit(episode("q"), tokens(1, 2, 3), 3)
    fill(table)
    with pytest.raises(ValueError, match="in a turn already"):
        table.admit(episode("q"), tokens(1, 2, 3), 3)
    table.make_room(slot, 4)
    table.sampled(slot, [7, 8])
    table.pause(slot)
    for other in ((1, 2, 3, 7), (1, 2, 3, 7, 9, 4), (1, 9, 3, 7, 8, 4)):
        with pytest.raises(ValueError, match="do not extend"):
            table.admit(episode("q"), tokens(*other), 3)
    assert slot.state is SlotState.PAUSED
    with pytest.raises(ValueError, match="prompt_length=9"):
        table.admit(episode("r"), tokens(1, 2), 9)


def test_longest_paused_episode_is_evicted_and_its_return_counts_as_rebuilt():
    table = make_table(2, eviction=True)
    for name in ("a", "b"):
        slot = table.admit(episode(name), tokens(1, 2, 3), 3)
        fill(table)
        table.sampled(slot, [5])
        table.pause(slot)
    taken = table.admit(episode("c"), tokens(8, 9), 2)
    assert taken.index == 0 and taken.built == 0 and table.evictions == 1
    assert table.slot_of(episode("a")) is None
    fill(table)
    assert table.admit(episode("d"), tokens(8, 9), 2).index == 1
    table.release(episode("c"))
    assert table.admit(episode("a"), tokens(1, 2, 3, 5, 6), 3).built == 3


def test_without_eviction_a_paused_episode_keeps_its_slot():
    table = make_table(1)
    slot = table.admit(episode("a"), tokens(1, 2), 2)
    fill(table)
    table.pause(slot)
    assert table.admit(episode("b"), tokens(1, 2), 2) is None
    table.release(episode("a"))
    table.release(episode("a"))
    assert table.admit(episode("b"), tokens(1, 2), 2) is slot


def running(table, name, length):
    """A slot that is about to decode, behind a context of its own."""
    slot = table.admit(episode(name), np.arange(length, dtype=np.int32), 1)
    fill(table)
    return slot


def test_pages_come_from_the_longest_paused_then_from_the_youngest_running_turn():
    table = make_table(5, eviction=True, pages=9)
    slots = {name: running(table, name, 4) for name in "abcd"}
    assert table.pages.in_use == 8
    for name in "bc":
        table.pause(slots[name])
    assert table.make_room(slots["d"], 7) and table.evictions == 1
    assert table.slot_of(episode("b")) is None and table.slot_of(episode("c")) is not None
    assert table.make_room(slots["a"], 7) and table.evictions == 2
    assert table.make_room(slots["a"], 11) and table.set_back == [episode("d")]
    assert slots["d"].state is SlotState.FREE and table.slot_of(episode("a")) is slots["a"]


def test_youngest_turn_gives_way_itself_and_comes_back_when_it_fits():
    table = make_table(3, eviction=True, pages=5)
    older, younger = running(table, "a", 5), running(table, "b", 4)
    table.make_room(older, 6)
    assert not table.make_room(younger, 5)
    assert table.set_back == [episode("b")] and younger.state is SlotState.FREE
    assert table.admit(episode("b"), np.arange(4, dtype=np.int32), 1) is None  # it would be set back at once
    assert table.admit(episode("c"), tokens(1), 1) is not None
    table.release(episode("c"))
    table.pause(older)
    back = table.admit(episode("b"), np.arange(4, dtype=np.int32), 1)
    assert back is not None and back.built == 3
    assert fill(table) == [(back.index, 0, 3)] and table.make_room(back, 7) and table.evictions == 1


def test_forgotten_caches_are_built_again_from_the_tokens():
    table = make_table(2)
    slot = table.admit(episode("a"), tokens(1, 2, 3), 3)
    other = table.admit(episode("b"), tokens(4, 5), 2)
    fill(table)
    table.make_room(slot, 4)
    table.sampled(slot, [7, 8])
    table.pause(other)
    table.forget_caches()
    assert slot.state is SlotState.PREFILLING and other.state is SlotState.PAUSED and table.pages.capacity == 0
    assert not table.attach() and fill(table) == [(0, 0, 2), (0, 2, 4)]
    table.restart(slot, 3)
    assert slot.tokens.tolist() == [1, 2, 3] and slot.length == 2 and slot.state is SlotState.DECODING


def test_discarded_pages_wait_to_be_cleaned_and_siblings_keep_theirs():
    table = make_table(3)
    first, second = (table.admit(episode("q", k), tokens(1, 2, 3, 4), 4) for k in range(2))
    fill(table)
    assert (first.pages, second.pages) == ([1, 3], [1, 4])
    table.discard(first)
    assert table.pages.unclean == [3, 2] and second.pages == [1, 4]
    table.discard(second)
    assert sorted(table.pages.unclean) == [1, 2, 3, 4] and table.pages.in_use == 0
    table.pages.cleaned()
    third = table.admit(episode("q", 2), tokens(1, 2, 3, 4), 4)
    assert fill(table) == [(third.index, 0, 3)]


def test_siblings_that_wait_for_a_discarded_prompt_compute_it_again():
    table = make_table(3)
    first, second = (table.admit(episode("q", k), tokens(1, 2, 3, 4), 4) for k in range(2))
    table.filled(table.spans(9, 9)[0])
    table.discard(first)
    assert fill(table) == [(1, 0, 3)] and second.state is SlotState.DECODING
    table.release(episode("q", 1))
    table.pages.cleaned()
    assert table.pages.in_use == 0
