"""The slot table by itself: what it says is in the cache is what the reported work has put there."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rw.sampler.interface import EpisodeId
from rw.sampler.slots import SlotState, SlotTable


def tokens(*ids):
    return np.array(ids, np.int32)


def fill(table, chunk=64):
    """Does all pending clones and prefills, and returns what was prefilled as (slot, start, end)."""
    done = []
    while table.clones() or table.spans(chunk):
        for clone in table.clones():
            table.filled(clone.target, clone.length)
        for span in table.spans(chunk):
            done.append((span.slot.index, span.start, span.end))
            table.filled(span.slot, span.end)
    return done


def episode(query, rollout=0):
    return EpisodeId(0, query, rollout)


def test_siblings_wait_for_one_prefill_and_clone_it():
    table = SlotTable(3, eviction=False)
    slots = [table.admit(episode("q", k), tokens(1, 2, 3, 4, 5), 5) for k in range(3)]
    assert [(s.slot.index, s.start, s.end) for s in table.spans(3)] == [(0, 0, 3)]
    table.filled(slots[0], 3)
    assert [(s.slot.index, s.start, s.end) for s in table.spans(3)] == [(0, 3, 4)]
    assert not table.clones()
    table.filled(slots[0], 4)
    assert [(c.source.index, c.target.index, c.length) for c in table.clones()] == [(0, 1, 4), (0, 2, 4)]
    assert slots[0].state is SlotState.DECODING and slots[1].state is SlotState.PREFILLING


def test_pieces_never_cross_the_end_of_the_shared_prompt():
    table = SlotTable(1, eviction=False)
    table.admit(episode("q"), np.arange(20, dtype=np.int32), 6)
    assert fill(table, chunk=8) == [(0, 0, 5), (0, 5, 13), (0, 13, 19)]


def test_next_sibling_leads_where_the_leader_is_released():
    table = SlotTable(2, eviction=False)
    for k in range(2):
        table.admit(episode("q", k), tokens(1, 2, 3, 4, 5), 5)
    table.filled(table.slots[0], 2)
    table.release(episode("q", 0))
    assert [(s.slot.index, s.start, s.end) for s in table.spans(8)] == [(1, 0, 4)]


def test_freed_slot_still_serves_its_prompt():
    table = SlotTable(2, eviction=False)
    table.admit(episode("a"), tokens(1, 2, 3), 3)
    fill(table)
    table.release(episode("a"))
    reused = table.admit(episode("a", 1), tokens(1, 2, 3), 3)
    assert reused.index == 0 and reused.state is SlotState.DECODING
    assert table.admit(episode("a", 2), tokens(1, 2, 3), 3).index == 1
    assert table.clones()[0].source is reused


def test_paused_episode_prefills_only_what_is_new_and_its_last_sampled_token():
    table = SlotTable(1, eviction=False)
    slot = table.admit(episode("q"), tokens(1, 2, 3), 3)
    fill(table)
    table.sampled(slot, [7, 8])
    table.sampled(slot, [9])
    table.pause(slot)
    assert table.admit(episode("q"), tokens(1, 2, 3, 7, 8, 9, 4, 4), 3) is slot
    assert fill(table) == [(0, 5, 7)]
    assert slot.state is SlotState.DECODING


def test_tokens_that_do_not_extend_the_last_turn_are_refused():
    table = SlotTable(1, eviction=False)
    slot = table.admit(episode("q"), tokens(1, 2, 3), 3)
    fill(table)
    with pytest.raises(ValueError, match="in a turn already"):
        table.admit(episode("q"), tokens(1, 2, 3), 3)
    table.sampled(slot, [7, 8])
    table.pause(slot)
    for other in ((1, 2, 3, 7), (1, 2, 3, 7, 9, 4), (1, 9, 3, 7, 8, 4)):
        with pytest.raises(ValueError, match="do not extend"):
            table.admit(episode("q"), tokens(*other), 3)
    assert slot.state is SlotState.PAUSED
    with pytest.raises(ValueError, match="prompt_length=9"):
        table.admit(episode("r"), tokens(1, 2), 9)


def test_longest_paused_episode_is_evicted_and_its_return_counts_as_rebuilt():
    table = SlotTable(2, eviction=True)
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
    table = SlotTable(1, eviction=False)
    slot = table.admit(episode("a"), tokens(1, 2), 2)
    fill(table)
    table.pause(slot)
    assert table.admit(episode("b"), tokens(1, 2), 2) is None
    table.release(episode("a"))
    table.release(episode("a"))
    assert table.admit(episode("b"), tokens(1, 2), 2) is slot


def test_forgotten_caches_are_built_again_from_the_tokens():
    table = SlotTable(2, eviction=False)
    slot = table.admit(episode("a"), tokens(1, 2, 3), 3)
    other = table.admit(episode("b"), tokens(4, 5), 2)
    fill(table)
    table.sampled(slot, [7, 8])
    table.pause(other)
    table.forget_caches()
    assert slot.state is SlotState.PREFILLING and other.state is SlotState.PAUSED
    assert not table.clones() and fill(table) == [(0, 0, 2), (0, 2, 4)]
    table.restart(slot, 3)
    assert slot.tokens.tolist() == [1, 2, 3] and slot.length == 2 and slot.state is SlotState.DECODING


class Machine(RuleBasedStateMachine):
    """Random histories beside a model of the cache: the tokens that the reported work wrote to each row."""

    QUERIES = {"a": (1, 2, 3, 4), "b": (1, 2, 9), "c": (5,)}

    @initialize(count=st.integers(1, 4), eviction=st.booleans())
    def start(self, count, eviction):
        self.table = SlotTable(count, eviction)
        self.cache = {index: [] for index in range(count)}
        self.contexts: dict[EpisodeId, list[int]] = {}

    def write(self, slot, start, end):
        row = self.cache[slot.index]
        assert len(row) >= start, "a gap would be read as if it were filled"
        self.cache[slot.index] = row[:start] + slot.tokens[start:end].tolist()

    @rule(query=st.sampled_from("abc"), rollout=st.integers(0, 3), extra=st.lists(st.integers(0, 9), max_size=5))
    def turn(self, query, rollout, extra):
        name = EpisodeId(0, query, rollout)
        slot = self.table.slot_of(name)
        if slot is not None and slot.state is not SlotState.PAUSED:
            return
        prompt = self.QUERIES[query]
        context = [*self.contexts.get(name, prompt), *extra]
        free = sum(s.state is SlotState.FREE for s in self.table.slots)
        admitted = self.table.admit(name, tokens(*context), len(prompt))
        if admitted is None:
            assert slot is None and free == 0
        else:
            self.contexts[name] = context

    @rule(chunk=st.integers(1, 4), limit=st.integers(1, 3))
    def tick(self, chunk, limit):
        for clone in self.table.clones():
            source = self.cache[clone.source.index][: clone.length]
            assert source == clone.target.tokens[: clone.length].tolist()
            self.cache[clone.target.index] = source
            self.table.filled(clone.target, clone.length)
        assert not self.table.clones()
        spans = self.table.spans(chunk)
        pending = [s for s in self.table.slots if s.state is SlotState.PREFILLING]
        assert bool(spans) == bool(pending), "some slot would wait for ever"
        for span in spans[:limit]:
            assert span.start == span.slot.length < span.end <= span.start + chunk
            self.write(span.slot, span.start, span.end)
            self.table.filled(span.slot, span.end)

    @rule(kept=st.lists(st.integers(0, 9), min_size=1, max_size=3), overshoot=st.integers(0, 2), ends=st.booleans())
    def decode(self, kept, overshoot, ends):
        for slot in self.table.decoding():
            assert slot.length == len(slot.tokens) - 1
            written = [*slot.tokens[-1:].tolist(), *kept, *[99] * overshoot][: len(kept) + overshoot]
            self.cache[slot.index] = self.cache[slot.index][: slot.length] + written
            self.table.sampled(slot, kept)
            self.contexts[slot.episode] = slot.tokens.tolist()
            if ends:
                self.table.pause(slot)

    @rule(query=st.sampled_from("abc"), rollout=st.integers(0, 3))
    def release(self, query, rollout):
        self.table.release(EpisodeId(0, query, rollout))
        self.contexts.pop(EpisodeId(0, query, rollout), None)

    @rule()
    def forget(self):
        self.table.forget_caches()
        self.cache = {index: [] for index in self.cache}

    @invariant()
    def cache_holds_what_the_slot_says(self):
        held = [s.episode for s in self.table.slots if s.state is not SlotState.FREE]
        assert None not in held and len(set(held)) == len(held)
        for slot in self.table.slots:
            assert self.cache[slot.index][: slot.length] == slot.tokens[: slot.length].tolist()
            assert (slot.episode is None) == (slot.state is SlotState.FREE)
            if slot.episode is not None:
                assert self.table.slot_of(slot.episode) is slot
                assert slot.tokens.tolist() == self.contexts[slot.episode]


TestMachine = Machine.TestCase
