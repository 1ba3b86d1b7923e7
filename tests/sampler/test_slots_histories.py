"""Random histories of the slot table beside a model of the pages: which tokens the reported work wrote where."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rw.sampler.interface import EpisodeId
from rw.sampler.pages import SCRATCH, PageBook, pages_for
from rw.sampler.slots import SlotState, SlotTable

LONGEST = 14


class Machine(RuleBasedStateMachine):
    """Turns come, pause and go while pages run out, are shared, and change hands."""

    QUERIES = {"a": (1, 2, 3, 4), "b": (1, 2, 9), "c": (5,)}

    @initialize(count=st.integers(1, 4), eviction=st.booleans(), page=st.integers(1, 4), spare=st.integers(0, 12))
    def start(self, count, eviction, page, spare):
        context = pages_for(LONGEST, page) + 1
        limit = context + spare if eviction else 12 * context  # three queries of four rollouts
        self.coming: set[EpisodeId] = set()
        self.table = SlotTable(count, PageBook(1, limit), page, eviction, self.coming)
        self.pages = {number: [None] * page for number in range(limit + 1)}
        self.contexts: dict[EpisodeId, list[int]] = {}

    def put(self, pages, position, token):
        page = pages[position // self.table.page_tokens]
        assert page != SCRATCH
        self.pages[page][position % self.table.page_tokens] = token

    def read(self, pages, length):
        every = [token for page in pages for token in self.pages[page]]
        return every[:length]

    def queue_again(self):
        """Turns that were set back are tried again like new ones, with the tokens that they have."""
        self.table.set_back.clear()

    @rule(query=st.sampled_from("abc"), rollout=st.integers(0, 3), extra=st.lists(st.integers(0, 9), max_size=4))
    def turn(self, query, rollout, extra):
        name = EpisodeId(0, query, rollout)
        slot = self.table.slot_of(name)
        if slot is not None and slot.state is not SlotState.PAUSED:
            return
        prompt = self.QUERIES[query]
        context = [*self.contexts.get(name, prompt), *extra][:LONGEST]
        running = [s for s in self.table.slots if s.state is not SlotState.PAUSED]
        admitted = self.table.admit(name, np.array(context, np.int32), len(prompt))
        assert admitted is not None or running, "a turn alone always has room"
        assert admitted is None or len(running) < self.table._at_work, "more at work than may be"
        assert self.table._eviction or (admitted is None) == (len(running) == self.table._at_work)
        self.coming.discard(name)
        if admitted is not None:
            self.contexts[name] = context
        else:
            self.coming.add(name)

    @rule(chunk=st.integers(1, 4), count=st.integers(1, 3))
    def tick(self, chunk, count):
        for attached in self.table.attach():
            if attached.page is not None:
                source, target = attached.page
                self.pages[target] = list(self.pages[source])
        spans = self.table.spans(chunk, count)
        pending = [s for s in self.table.slots if s.state is SlotState.PREFILLING]
        assert spans or not [s for s in pending if not s.waits_for_prompt], "some slot would wait for ever"
        assert not self.table.evictions or self.table._eviction
        for span in spans:
            assert span.start < span.end <= span.start + chunk
            for position in range(span.start, span.end):
                self.put(span.pages, position, int(span.slot.tokens[position]))
            self.table.filled(span)
        self.queue_again()

    @rule(kept=st.lists(st.integers(0, 9), min_size=1, max_size=3), overshoot=st.integers(0, 2), ends=st.booleans())
    def decode(self, kept, overshoot, ends):
        for slot in self.table.decoding():
            room = LONGEST - len(slot.tokens)
            if slot.state is not SlotState.DECODING or room < 1:
                continue
            own, beyond = kept[:room], [99] * overshoot
            written = [slot.tokens[-1], *own, *beyond][: len(own) + overshoot][: LONGEST - slot.length]
            if not self.table.make_room(slot, slot.length + len(written)):
                continue
            for place, token in enumerate(written):
                self.put(slot.pages, slot.length + place, int(token))
            self.table.sampled(slot, own)
            self.contexts[slot.episode] = slot.tokens.tolist()
            if ends:
                self.table.pause(slot)
        self.queue_again()

    @rule(query=st.sampled_from("abc"), rollout=st.integers(0, 3))
    def release(self, query, rollout):
        self.table.release(EpisodeId(0, query, rollout))
        self.contexts.pop(EpisodeId(0, query, rollout), None)
        self.coming.discard(EpisodeId(0, query, rollout))

    @rule(place=st.integers(0, 11))
    def discard(self, place):
        if not self.table.slots:
            return
        slot = self.table.slots[place % len(self.table.slots)]
        self.contexts.pop(slot.episode)
        self.table.discard(slot)
        self.table.discard(slot)  # nothing is left of it
        for page in self.table.pages.unclean:
            self.pages[page] = [None] * self.table.page_tokens
        self.table.pages.cleaned(list(self.table.pages.unclean))

    @rule()
    def forget(self):
        self.table.forget_caches()
        self.pages = {number: [None] * self.table.page_tokens for number in self.pages}

    @invariant()
    def pages_hold_what_the_slots_say(self):
        for slot in self.table.slots:
            assert slot.state is not SlotState.GONE and self.table.slot_of(slot.episode) is slot
            assert self.read(slot.pages, slot.length) == slot.tokens[: slot.length].tolist()
            if slot.prompt is not None:
                read = self.read(slot.prompt.pages, slot.prompt.length)
                assert read == slot.prompt.tokens[: slot.prompt.length].tolist()
            assert slot.tokens.tolist() == self.contexts[slot.episode]

    @invariant()
    def every_page_is_counted(self):
        """Once for each slot and each prompt that holds it, and no page of a slot's own is anybody else's."""
        prompts = {id(s.prompt): s.prompt for s in self.table.slots if s.prompt is not None}
        prompts |= {id(p): p for p in self.table._prompts.values()}
        holders = [s.pages for s in self.table.slots] + [p.pages for p in prompts.values()]
        held = [page for pages in holders for page in pages]
        for page in set(held):
            assert self.table.pages.users(page) == held.count(page)
        assert self.table.pages.in_use == len(set(held)) and not self.table.pages.unclean
        for slot in self.table.slots:
            shared = len(slot.prompt.tokens) // self.table.page_tokens if slot.prompt is not None else 0
            assert all(self.table.pages.users(page) == 1 for page in slot.pages[shared:])


TestMachine = Machine.TestCase
