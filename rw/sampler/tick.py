"""What one tick of the engine computes: copies, then prefills, then decode steps, as arrays ready for the device.

Pure: reads the slot table and reports to it what the dispatches will have put into the caches. No jax, no clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rw.sampler.pages import SCRATCH, pages_for
from rw.sampler.prompts import Prompt
from rw.sampler.shapes import EngineConfig, length_bucket, split_rows
from rw.sampler.slots import Slot, SlotTable, Span


@dataclasses.dataclass(frozen=True)
class CopyDispatch:
    """Pages copied from `sources` to `targets`, both i32[N]; padding copies the scratch page onto itself."""

    slots: tuple[Slot, ...]
    sources: np.ndarray
    targets: np.ndarray


@dataclasses.dataclass(frozen=True)
class Rows:
    """The cache rows of a dispatch, put together from pages; the scratch page stands where there is none.

    Args:
        tables: i32[W, P], the pages of each row, as many as its length needs.
        firsts: i32[W], the place in the row's table of the first page that is written.
        written: i32[W, M], the pages to store from there on; the scratch page for those that stay as they are.
    """

    tables: np.ndarray
    firsts: np.ndarray
    written: np.ndarray


@dataclasses.dataclass(frozen=True)
class PrefillDispatch:
    """tokens, positions i32[R, C]; padding has position -1."""

    slots: tuple[Slot, ...]
    prompts: tuple[Prompt, ...]  # those that it computes a piece of, for whoever waits for them
    rows: Rows
    tokens: np.ndarray
    positions: np.ndarray


@dataclasses.dataclass(frozen=True)
class DecodeDispatch:
    """One input token i32[W] for each row; padding has position -1."""

    slots: tuple[Slot, ...]
    turns: tuple[Any, ...]  # the running turn of each slot
    rows: Rows
    tokens: np.ndarray
    positions: np.ndarray
    words: np.ndarray  # u32[W, 4]
    offsets: np.ndarray  # i32[W]
    limits: np.ndarray  # i32[W], tokens that the turn may still sample


Dispatch = CopyDispatch | PrefillDispatch | DecodeDispatch


@dataclasses.dataclass
class Tick:
    """Dispatches in the order in which they run, and what they amount to."""

    pages: int = 0  # that the pool must have, the scratch page not counted
    dispatches: list[Dispatch] = dataclasses.field(default_factory=list)
    cloned_tokens: int = 0  # of prompts that a sibling had computed
    prefilled_tokens: int = 0
    reprefilled_tokens: int = 0  # of them, tokens that the episode's lost cache had held


def plan_tick(table: SlotTable, config: EngineConfig, turns: dict[Any, Any]) -> Tick:
    """The next tick for the running turns by episode; empty where nothing is runnable.

    The slot table is told at once what the dispatches will have filled, so that a slot decodes in the tick that
    completes its context. Whoever runs the tick must discard the slots of a dispatch that fails.
    """
    tick = Tick()
    _plan_copies(tick, table, config)
    _plan_prefills(tick, table, config)
    ends = {
        slot: slot.length + min(config.steps_per_dispatch, turns[slot.episode].remaining) for slot in table.decoding()
    }
    ready = [
        slot for slot, end in ends.items() if table.make_room(slot, end)
    ]  # the earliest first, who may set back others
    for length, group in _by_length(ready, config.lengths, ends.get):
        for part, width in _parts(group, config.decode_widths):
            tick.dispatches.append(_decode_dispatch(part, ends, width, length, config, turns))
    tick.pages = table.pages.capacity
    return tick


def _plan_copies(tick: Tick, table: SlotTable, config: EngineConfig) -> None:
    attached = table.attach()
    tick.cloned_tokens += sum(len(found.slot.prompt.tokens) for found in attached if not found.is_first)
    copies = [found for found in attached if found.page is not None]
    for start in range(0, len(copies), config.clone_rows):
        part = copies[start : start + config.clone_rows]
        pages = np.full((2, config.clone_rows), SCRATCH, np.int32)
        pages[:, : len(part)] = np.array([found.page for found in part]).T
        tick.dispatches.append(CopyDispatch(tuple(found.slot for found in part), *pages))


def _plan_prefills(tick: Tick, table: SlotTable, config: EngineConfig) -> None:
    """Fills up to `prefill_tokens` in whole pieces, the earliest turns first; a slot may get several, in order."""
    chunk, budget = config.prefill_chunk, config.prefill_tokens
    while budget > 0 and (spans := table.spans(chunk, pages_for(budget, chunk))):
        for length, group in _by_length(spans, config.lengths, lambda span: span.end):
            for part, rows in _parts(group, config.prefill_rows):
                tick.dispatches.append(_prefill_dispatch(part, rows, length, config))
        for span in spans:
            tick.prefilled_tokens += span.end - span.start
            tick.reprefilled_tokens += max(0, min(span.end, span.slot.built) - span.start)
            table.filled(span)
            budget -= chunk


def _by_length(items: Sequence[Any], lengths: Sequence[int], need) -> list[tuple[int, list[Any]]]:
    groups: dict[int, list[Any]] = {}
    for item in items:
        groups.setdefault(length_bucket(need(item), lengths), []).append(item)
    return sorted(groups.items())


def _parts(items: list[Any], widths: Sequence[int]) -> list[tuple[list[Any], int]]:
    parts, start = [], 0
    for count, width in split_rows(len(items), widths):
        parts.append((items[start : start + count], width))
        start += count
    return parts


def rows_of(
    pages: Sequence[Sequence[int]],
    spans: Sequence[tuple[int, int]],
    width: int,
    length: int,
    count: int,
    page_tokens: int,
) -> Rows:
    """Rows of `length` tokens over the pages of each, of which the positions [start, end) of `spans` are written,
    `count` at most; filled up to `width` rows."""
    columns = pages_for(length, page_tokens)
    touched = min(columns, pages_for(count - 1, page_tokens) + 1)
    tables = np.full((width, columns), SCRATCH, np.int32)
    firsts, written = np.zeros(width, np.int32), np.full((width, touched), SCRATCH, np.int32)
    for i, (own, (start, end)) in enumerate(zip(pages, spans, strict=True)):
        tables[i, : min(len(own), columns)] = own[:columns]
        firsts[i] = min(start // page_tokens, columns - touched)
        places = range(start // page_tokens, pages_for(end, page_tokens))
        written[i, [place - firsts[i] for place in places]] = [own[place] for place in places]
    return Rows(tables, firsts, written)


def _prefill_dispatch(spans: Sequence[Span], rows: int, length: int, config: EngineConfig) -> PrefillDispatch:
    tokens = np.zeros((rows, config.prefill_chunk), np.int32)
    positions = np.full((rows, config.prefill_chunk), -1, np.int32)
    for i, span in enumerate(spans):
        count = span.end - span.start
        tokens[i, :count] = span.slot.tokens[span.start : span.end]
        positions[i, :count] = np.arange(span.start, span.end)
    places = [(span.start, span.end) for span in spans]
    cache = rows_of([span.pages for span in spans], places, rows, length, config.prefill_chunk, config.page_tokens)
    prompts = tuple(span.slot.prompt for span in spans if span.in_prompt)
    return PrefillDispatch(tuple(span.slot for span in spans), prompts, cache, tokens, positions)


def _decode_dispatch(
    slots: Sequence[Slot],
    ends: dict[Slot, int],
    width: int,
    length: int,
    config: EngineConfig,
    turns: dict[Any, Any],
) -> DecodeDispatch:
    running = tuple(turns[slot.episode] for slot in slots)
    tokens, positions = np.zeros(width, np.int32), np.full(width, -1, np.int32)
    words, (offsets, limits) = np.zeros((width, 4), np.uint32), np.zeros((2, width), np.int32)
    for i, (slot, turn) in enumerate(zip(slots, running, strict=True)):
        tokens[i], positions[i] = slot.tokens[-1], slot.length
        words[i], offsets[i], limits[i] = turn.words, len(turn.recorder.tokens), turn.remaining
    places = [(slot.length, ends[slot]) for slot in slots]
    cache = rows_of(
        [slot.pages for slot in slots], places, width, length, config.steps_per_dispatch, config.page_tokens
    )
    return DecodeDispatch(tuple(slots), running, cache, tokens, positions, words, offsets, limits)
