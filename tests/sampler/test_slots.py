"""The slot table by itself: what it says is in the cache is what the reported work has put there."""

import numpy as np
import pytest

from rw.sampler.interface import EpisodeId
from rw.sampler.pages import PageBook
from rw.sampler.slots import SlotState, SlotTable

PAGE = 2


def tokens(*ids):
    return np.array(ids, np.int32)


def make_table(at_work, eviction=False, pages=60, coming=()):
    return SlotTable(at_work, PageBook(1, pages), PAGE, eviction, coming)


def fill(table, chunk=64, count=99):
    """Does all pending copies and prefills, and returns what was prefilled as (episode, start, end)."""
    done = []
    while True:
        attached, spans = table.attach(), table.spans(chunk, count)
        done += parts(spans)
        for span in spans:
            table.filled(span)
        if not attached and not spans:
            return done


def episode(query, rollout=0):
    return EpisodeId(0, query, rollout)


def named(slot):
    return f"{slot.episode.query_id}{slot.episode.rollout}"


def parts(spans):
    return [(named(span.slot), span.start, span.end) for span in spans]


def test_siblings_wait_for_one_prefill_and_begin_with_its_pages():
    table = make_table(3)
    slots = [table.admit(episode("q", k), tokens(1, 2, 3, 4, 5, 6), 6) for k in range(3)]
    (span,) = table.spans(3, 9)
    assert parts([span]) == [("q0", 0, 3)] and span.pages == [1, 2]
    table.filled(span)
    assert not table.attach()
    (span,) = table.spans(3, 9)
    assert parts([span]) == [("q0", 3, 5)] and span.pages == [1, 2, 3]
    table.filled(span)
    assert not table.spans(3, 9)
    attached = table.attach()
    assert [(named(a.slot), a.page, a.is_first) for a in attached] == [
        ("q0", (3, 4), True),
        ("q1", (3, 5), False),
        ("q2", (3, 6), False),
    ]
    assert [slot.pages for slot in slots] == [[1, 2, 4], [1, 2, 5], [1, 2, 6]]
    assert all(slot.state is SlotState.DECODING for slot in slots) and table.cached_tokens == 5 + 3


def test_prompt_of_whole_pages_needs_no_copy():
    table = make_table(2)
    slots = [table.admit(episode("q", k), tokens(1, 2, 3, 4, 5), 5) for k in range(2)]
    assert fill(table) == [("q0", 0, 4)]
    assert slots[0].pages == slots[1].pages == [1, 2] and table.pages.users(1) == 3


def test_pieces_never_cross_the_end_of_the_shared_prompt():
    table = make_table(1)
    table.admit(episode("q"), np.arange(20, dtype=np.int32), 6)
    assert fill(table, chunk=8) == [("q0", 0, 5), ("q0", 5, 13), ("q0", 13, 19)]


def test_next_sibling_goes_on_where_the_one_that_computed_the_prompt_is_released():
    table = make_table(2)
    for k in range(2):
        table.admit(episode("q", k), tokens(1, 2, 3, 4, 5), 5)
    table.filled(table.spans(2, 9)[0])
    table.release(episode("q", 0))
    assert parts(table.spans(8, 9)) == [("q1", 2, 4)]


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
    assert fill(table) == [("a2", 0, 3)]


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
    assert fill(table) == [("q0", 5, 7)]
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


def test_those_at_work_are_bounded_and_the_paused_keep_their_caches():
    table = make_table(2, eviction=True)
    slots = {name: table.admit(episode(name), tokens(1, 2, 3), 1) for name in "abcd"}
    assert slots["c"] is slots["d"] is None and fill(table) == [("a0", 0, 2), ("b0", 0, 2)]
    table.pause(slots["a"])
    assert table.admit(episode("c"), tokens(4, 5), 1) is not None
    assert table.admit(episode("a"), tokens(1, 2, 3, 4), 1) is None and slots["a"].state is SlotState.PAUSED
    table.pause(slots["b"])
    assert table.admit(episode("a"), tokens(1, 2, 3, 4), 1) is slots["a"]
    assert fill(table) == [("c0", 0, 1), ("a0", 2, 3)] and table.evictions == 0
    assert len(table.slots) == 3 and table.pages.in_use == 1 + 1 + 2


def running(table, name, length):
    """A slot that is about to decode, behind a context of its own."""
    slot = table.admit(episode(name), np.arange(length, dtype=np.int32), 1)
    fill(table)
    return slot


def test_longest_paused_episode_is_evicted_for_a_page_and_its_return_counts_as_rebuilt():
    table = make_table(2, eviction=True, pages=4)
    for name in "ab":
        slot = table.admit(episode(name), tokens(1, 2, 3), 1)
        fill(table)
        table.make_room(slot, 3)
        table.sampled(slot, [5])
        table.pause(slot)
    assert table.pages.in_use == 4
    running(table, "c", 4)
    assert table.evictions == 1 and table.slot_of(episode("a")) is None and table.slot_of(episode("b")) is not None
    table.release(episode("c"))
    back = table.admit(episode("a"), tokens(1, 2, 3, 5, 6), 1)
    assert back.built == 3 and fill(table) == [("a0", 0, 4)] and table.evictions == 1


def test_paused_episode_whose_turn_waits_is_evicted_after_the_others_and_the_latest_first():
    coming = {episode("a"), episode("b")}
    table = make_table(4, eviction=True, pages=6, coming=coming)
    for name in "abc":
        table.pause(running(table, name, 4))
    for lost, left in (("c", "ab"), ("b", "a")):
        running(table, f"for {lost}", 4)
        assert [slot.episode for slot in table.slots if slot.state is SlotState.PAUSED] == [episode(n) for n in left]


def test_paused_episode_without_a_cache_does_not_keep_its_prompt_from_being_dropped():
    table = make_table(2, eviction=True, pages=3)
    slot = table.admit(episode("a"), tokens(1, 2, 3), 3)
    fill(table)
    table.pause(slot)
    table.forget_caches()
    other = table.admit(episode("a", 1), tokens(1, 2, 3), 3)
    assert fill(table) == [("a1", 0, 2)] and other.prompt is slot.prompt and table.pages.in_use == 1
    table.release(episode("a", 1))
    alone = running(table, "b", 6)
    assert alone.state is SlotState.DECODING and not table.set_back and table.slot_of(episode("a")) is None


def test_without_eviction_paused_episodes_keep_their_caches_for_as_long_as_there_are_pages():
    table = make_table(1, pages=3)
    for name in "abc":
        table.pause(running(table, name, 2))
    assert table.pages.in_use == 3
    table.admit(episode("d"), tokens(1, 2), 1)
    with pytest.raises(RuntimeError, match="no page is left of 3"):
        table.spans(8, 9)


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
    assert slots["d"].state is SlotState.GONE and table.slot_of(episode("a")) is slots["a"]


def test_youngest_turn_gives_way_itself_and_comes_back_when_it_fits():
    table = make_table(3, eviction=True, pages=5)
    older, younger = running(table, "a", 5), running(table, "b", 4)
    table.make_room(older, 6)
    assert not table.make_room(younger, 5)
    assert table.set_back == [episode("b")] and younger.state is SlotState.GONE
    assert table.admit(episode("b"), np.arange(4, dtype=np.int32), 1) is None  # it would be set back at once
    assert table.admit(episode("c"), tokens(1), 1) is not None
    table.release(episode("c"))
    table.pause(older)
    back = table.admit(episode("b"), np.arange(4, dtype=np.int32), 1)
    assert back is not None and back.built == 3
    assert fill(table) == [("b0", 0, 3)] and table.make_room(back, 7) and table.evictions == 1


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
    assert not table.attach() and fill(table) == [("a0", 0, 2), ("a0", 2, 4)]
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
    table.pages.cleaned(list(table.pages.unclean))
    table.admit(episode("q", 2), tokens(1, 2, 3, 4), 4)
    assert fill(table) == [("q2", 0, 3)]


def test_siblings_that_wait_for_a_discarded_prompt_compute_it_again():
    table = make_table(3)
    first, second = (table.admit(episode("q", k), tokens(1, 2, 3, 4), 4) for k in range(2))
    table.filled(table.spans(9, 9)[0])
    table.discard(first)
    assert fill(table) == [("q1", 0, 3)] and second.state is SlotState.DECODING
    table.release(episode("q", 1))
    table.pages.cleaned(list(table.pages.unclean))
    assert table.pages.in_use == 0
