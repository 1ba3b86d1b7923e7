"""The arrays of a tick, from the slot table alone."""

import dataclasses

import numpy as np

from rw.sampler.interface import EpisodeId
from rw.sampler.shapes import EngineConfig
from rw.sampler.slots import SlotState, SlotTable
from rw.sampler.tick import CloneDispatch, DecodeDispatch, PrefillDispatch, plan_tick

CONFIG = EngineConfig(
    slots=4,
    lengths=(8, 16),
    decode_widths=(2,),
    prefill_rows=(1, 2),
    prefill_chunk=4,
    prefill_tokens=8,
    clone_rows=2,
    steps_per_dispatch=2,
)
SPARE = 4


@dataclasses.dataclass
class Recorder:
    tokens: list


@dataclasses.dataclass
class Running:
    words: np.ndarray
    recorder: Recorder


class AllTurns(dict):
    """A running turn for whatever episode is asked for: its words are (step, 0, rollout, 7), three tokens sampled."""

    def __missing__(self, episode):
        return Running(np.array([episode.step, 0, episode.rollout, 7], np.uint32), Recorder([1, 2, 3]))


def admit(table, query, rollout, tokens, prompt_length):
    return table.admit(EpisodeId(1, query, rollout), np.array(tokens, np.int32), prompt_length)


def kinds(tick):
    return [type(dispatch) for dispatch in tick.dispatches]


def test_nothing_to_do_is_an_empty_tick():
    assert plan_tick(SlotTable(4, False), CONFIG, AllTurns()).dispatches == []


def test_prefill_is_padded_to_its_shape():
    table = SlotTable(4, False)
    admit(table, "a", 0, range(10, 16), 4)
    first = plan_tick(table, CONFIG, AllTurns()).dispatches
    assert [type(d) for d in first] == [PrefillDispatch, PrefillDispatch, DecodeDispatch]
    prompt, rest, _ = first
    assert prompt.tokens.tolist() == [[10, 11, 12, 0]] and prompt.positions.tolist() == [[0, 1, 2, -1]]
    assert rest.tokens.tolist() == [[13, 14, 0, 0]] and rest.positions.tolist() == [[3, 4, -1, -1]]
    assert rest.rows.tolist() == [0] and rest.starts.tolist() == [3] and rest.length == 8


def test_budget_bounds_a_tick_and_earlier_turns_come_first():
    table = SlotTable(4, False)
    for query in ("a", "b", "c"):
        admit(table, query, 0, [ord(query), *range(5)], 6)
    tick = plan_tick(table, CONFIG, AllTurns())
    assert kinds(tick) == [PrefillDispatch] and tick.prefilled_tokens == 8
    assert tick.dispatches[0].rows.tolist() == [0, 1]
    assert tick.dispatches[0].tokens[:, 0].tolist() == [ord("a"), ord("b")]
    again = plan_tick(table, CONFIG, AllTurns())
    assert kinds(again) == [PrefillDispatch, DecodeDispatch] and again.prefilled_tokens == 2
    assert [slot.state for slot in table.slots[:3]] == [SlotState.DECODING, SlotState.DECODING, SlotState.PREFILLING]


def test_siblings_are_cloned_in_the_tick_after_and_decode_at_once():
    table = SlotTable(4, False)
    for rollout in range(4):
        admit(table, "a", rollout, [5, 6, 7, 8], 4)
    assert kinds(plan_tick(table, CONFIG, AllTurns())) == [PrefillDispatch, DecodeDispatch]
    tick = plan_tick(table, CONFIG, AllTurns())
    assert kinds(tick) == [CloneDispatch, CloneDispatch, DecodeDispatch, DecodeDispatch]
    assert [d.sources.tolist() for d in tick.dispatches[:2]] == [[0, 0], [0, SPARE]]
    assert [d.targets.tolist() for d in tick.dispatches[:2]] == [[1, 2], [3, SPARE]]
    assert tick.cloned_tokens == 9 and tick.prefilled_tokens == 0


def test_decode_rows_carry_the_last_token_and_the_key():
    table = SlotTable(4, False)
    for rollout in range(3):
        admit(table, "a", rollout, [9], 1)
    first, second = plan_tick(table, CONFIG, AllTurns()).dispatches
    assert first.tokens.tolist() == [9, 9] and first.positions.tolist() == [0, 0]
    assert first.words.tolist() == [[1, 0, 0, 7], [1, 0, 1, 7]] and first.offsets.tolist() == [3, 3]
    assert second.rows.tolist() == [2, SPARE] and second.positions.tolist() == [0, -1]
    assert len(second.slots) == len(second.turns) == 1


def test_long_rows_do_not_lengthen_short_ones():
    table = SlotTable(4, False)
    admit(table, "a", 0, [9], 1)
    admit(table, "b", 0, range(8), 1)
    dispatches = [d for d in plan_tick(table, CONFIG, AllTurns()).dispatches if isinstance(d, DecodeDispatch)]
    assert [(d.length, d.rows[0]) for d in dispatches] == [(8, 0), (16, 1)]


def test_rebuilt_tokens_are_counted_apart():
    table = SlotTable(1, True)
    slot = admit(table, "a", 0, [1, 2, 3], 3)
    plan_tick(table, CONFIG, AllTurns())
    table.sampled(slot, [4, 5])
    table.pause(slot)
    admit(table, "b", 0, [7], 1)
    table.release(EpisodeId(1, "b", 0))
    admit(table, "a", 0, [1, 2, 3, 4, 5, 6, 6, 6], 3)
    tick = plan_tick(table, CONFIG, AllTurns())
    assert tick.prefilled_tokens == 6 and tick.reprefilled_tokens == 4
