"""The arrays of a tick, from the slot table alone."""

import dataclasses

import numpy as np

from rw.sampler.interface import EpisodeId
from rw.sampler.pages import PageBook
from rw.sampler.shapes import EngineConfig
from rw.sampler.slots import SlotState, SlotTable
from rw.sampler.tick import CopyDispatch, DecodeDispatch, PrefillDispatch, plan_tick

CONFIG = EngineConfig(
    slots=4,
    lengths=(8, 16),
    decode_widths=(2,),
    prefill_rows=(1, 2),
    prefill_chunk=4,
    prefill_tokens=8,
    clone_rows=2,
    page_tokens=4,
    steps_per_dispatch=2,
    work_cache="rows",
)


@dataclasses.dataclass
class Recorder:
    tokens: list


@dataclasses.dataclass
class Running:
    words: np.ndarray
    recorder: Recorder
    remaining: int = 5


class AllTurns(dict):
    """A running turn for whatever episode is asked for: its words are (step, 0, rollout, 7), three tokens sampled."""

    def __missing__(self, episode):
        return Running(np.array([episode.step, 0, episode.rollout, 7], np.uint32), Recorder([1, 2, 3]))


def make_table(slots=4, pages=40, eviction=False):
    return SlotTable(slots, PageBook(4, pages), CONFIG.page_tokens, eviction)


def admit(table, query, rollout, tokens, prompt_length):
    return table.admit(EpisodeId(1, query, rollout), np.array(tokens, np.int32), prompt_length)


def kinds(tick):
    return [type(dispatch) for dispatch in tick.dispatches]


def test_nothing_to_do_is_an_empty_tick():
    assert plan_tick(make_table(), CONFIG, AllTurns()).dispatches == []


def test_prefill_is_padded_to_its_shape():
    table = make_table()
    admit(table, "a", 0, range(10, 16), 4)
    (prompt,) = plan_tick(table, CONFIG, AllTurns()).dispatches
    assert prompt.tokens.tolist() == [[10, 11, 12, 0]] and prompt.positions.tolist() == [[0, 1, 2, -1]]
    copied, rest, decoded = plan_tick(table, CONFIG, AllTurns()).dispatches
    assert rest.tokens.tolist() == [[13, 14, 0, 0]] and rest.positions.tolist() == [[3, 4, -1, -1]]
    assert prompt.work.pages.tolist() == [[1, 0]] and copied.sources.tolist() == [1, 0]
    assert copied.targets.tolist() == [2, 0] and rest.work.pages.tolist() == [[2, 3]]
    assert isinstance(decoded, DecodeDispatch) and decoded.work.written.tolist() == [[0, 3], [0, 0]]


def test_budget_bounds_a_tick_and_earlier_turns_come_first():
    table = make_table()
    for query in ("a", "b", "c"):
        admit(table, query, 0, [ord(query), *range(4)], 5)
    tick = plan_tick(table, CONFIG, AllTurns())
    assert kinds(tick) == [PrefillDispatch] and tick.prefilled_tokens == 8
    assert tick.dispatches[0].tokens[:, 0].tolist() == [ord("a"), ord("b")]
    again = plan_tick(table, CONFIG, AllTurns())
    assert kinds(again) == [PrefillDispatch, DecodeDispatch] and again.prefilled_tokens == 4
    assert [slot.state for slot in table.slots] == [SlotState.DECODING, SlotState.DECODING, SlotState.PREFILLING]


def test_neither_new_contexts_nor_running_turns_starve():
    """However much waits to be prefilled, every tick decodes what is ready and prefills its whole budget."""
    table = make_table(slots=20, pages=400)
    running = admit(table, "a", 0, [9], 1)
    for query in range(19):
        admit(table, f"q{query}", 0, [query, *range(8)], 9)
    for step in range(1, 20):
        tick = plan_tick(table, CONFIG, AllTurns())
        assert running in [slot for d in tick.dispatches if isinstance(d, DecodeDispatch) for slot in d.slots]
        assert tick.prefilled_tokens == 8
        assert len(table.decoding()) == step or len(table.decoding()) == step - 1
        running.length, running.tokens = 1, running.tokens[:1]
        table.sampled(running, [1])
    assert not plan_tick(table, CONFIG, AllTurns()).prefilled_tokens and len(table.decoding()) == 20


def test_siblings_copy_the_end_of_their_prompt_and_decode_at_once():
    table = make_table()
    for rollout in range(4):
        admit(table, "a", rollout, [5, 6, 7, 8], 4)
    assert kinds(plan_tick(table, CONFIG, AllTurns())) == [PrefillDispatch]
    tick = plan_tick(table, CONFIG, AllTurns())
    assert kinds(tick) == [CopyDispatch, CopyDispatch, DecodeDispatch, DecodeDispatch]
    assert [d.sources.tolist() for d in tick.dispatches[:2]] == [[1, 1], [1, 1]]
    assert [d.targets.tolist() for d in tick.dispatches[:2]] == [[2, 3], [4, 5]]
    assert tick.cloned_tokens == 9 and tick.prefilled_tokens == 0 and tick.pages == 12


def test_whole_pages_of_a_prompt_are_shared_without_a_copy():
    table = make_table()
    for rollout in range(2):
        admit(table, "a", rollout, range(9), 9)
    plan_tick(table, CONFIG, AllTurns())
    (decoded,) = plan_tick(table, CONFIG, AllTurns()).dispatches
    assert decoded.work.pages.tolist() == [[1, 2, 3, 0], [1, 2, 4, 0]]
    assert decoded.work.written.tolist() == [[3, 0], [4, 0]]


def test_decode_rows_carry_the_last_token_the_key_and_what_is_left():
    table = make_table()
    for rollout in range(3):
        admit(table, "a", rollout, [9], 1)
    first, second = plan_tick(table, CONFIG, AllTurns()).dispatches
    assert first.tokens.tolist() == [9, 9] and first.positions.tolist() == [0, 0]
    assert first.words.tolist() == [[1, 0, 0, 7], [1, 0, 1, 7]] and first.offsets.tolist() == [3, 3]
    assert first.limits.tolist() == [5, 5] and second.limits.tolist() == [5, 0]
    assert second.work.pages.tolist() == [[3, 0], [0, 0]] and second.positions.tolist() == [0, -1]
    assert len(second.slots) == len(second.turns) == 1


def test_long_rows_do_not_lengthen_short_ones():
    table = make_table()
    admit(table, "a", 0, [9], 1)
    admit(table, "b", 0, range(8), 1)
    plan_tick(table, CONFIG, AllTurns())
    dispatches = [d for d in plan_tick(table, CONFIG, AllTurns()).dispatches if isinstance(d, DecodeDispatch)]
    assert [(d.work.pages.shape[1], d.slots[0].episode.query_id) for d in dispatches] == [(2, "a"), (4, "b")]


def test_in_pages_rows_of_any_length_go_together_those_of_like_length_as_neighbours():
    config = dataclasses.replace(CONFIG, work_cache="pages", decode_widths=(4,))
    table = make_table()
    for query, count in (("a", 1), ("b", 12), ("c", 2), ("d", 8)):
        admit(table, query, 0, range(count), 1)
    while len(table.decoding()) < 4:
        *_, decoded = plan_tick(table, config, AllTurns()).dispatches
    (decoded,) = plan_tick(table, config, AllTurns()).dispatches
    assert [slot.episode.query_id for slot in decoded.slots] == ["a", "c", "d", "b"]
    assert decoded.positions.tolist() == [0, 1, 7, 11]


def test_a_turns_last_tokens_reserve_no_more_than_they_need():
    table = make_table()
    turns = AllTurns()
    slot = admit(table, "a", 0, [9, 9, 9, 9], 1)
    turns[slot.episode] = Running(np.zeros(4, np.uint32), Recorder([]), remaining=1)
    plan_tick(table, CONFIG, turns)
    assert len(slot.pages) == 1
    turns[slot.episode].remaining = 2
    plan_tick(table, CONFIG, turns)
    assert len(slot.pages) == 2


def test_rebuilt_tokens_are_counted_apart():
    table = make_table(slots=1, pages=4, eviction=True)
    slot = admit(table, "a", 0, [1, 2, 3], 3)
    plan_tick(table, CONFIG, AllTurns())
    plan_tick(table, CONFIG, AllTurns())
    table.sampled(slot, [4, 5])
    table.pause(slot)
    admit(table, "b", 0, range(10), 1)
    for _ in range(2):
        plan_tick(table, CONFIG, AllTurns())
    assert table.evictions == 1
    table.release(EpisodeId(1, "b", 0))
    admit(table, "a", 0, [1, 2, 3, 4, 5, 6, 6, 6], 3)
    tick = plan_tick(table, CONFIG, AllTurns())
    assert kinds(tick) == [CopyDispatch, PrefillDispatch, PrefillDispatch, DecodeDispatch]
    assert tick.prefilled_tokens == 5 and tick.reprefilled_tokens == 2 and tick.cloned_tokens == 2


def test_turn_that_is_set_back_is_in_no_dispatch():
    table = make_table(slots=2, pages=4, eviction=True)
    older, younger = admit(table, "a", 0, range(7), 1), admit(table, "b", 0, range(7), 1)
    plan_tick(table, CONFIG, AllTurns())
    (_, decoded) = plan_tick(table, CONFIG, AllTurns()).dispatches
    assert decoded.slots == (older, younger)
    table.sampled(older, [1, 2])
    table.sampled(younger, [1, 2])
    (decoded,) = plan_tick(table, CONFIG, AllTurns()).dispatches
    assert decoded.slots == (older,) and table.set_back == [EpisodeId(1, "b", 0)]
