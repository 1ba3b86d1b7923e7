"""What one tick of the engine computes: copies, then prefills, then decode steps, as arrays ready for the device.

Pure: reads the slot table and reports to it what the dispatches will have put into the caches. No jax, no clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rw.sampler.pages import SCRATCH, pages_for
from rw.sampler.prompts import Prompt
from rw.sampler.shapes import EngineConfig, length_bucket, split_rows
from rw.sampler.slots import Slot, SlotTable, Span
from rw.sampler.work import Pages, Rows, work_of


@dataclasses.dataclass(frozen=True)
class CopyDispatch:
    """Pages copied from `sources` to `targets`, both i32[N]; padding copies the scratch page onto itself."""

    slots: tuple[Slot, ...]
    sources: np.ndarray
    targets: np.ndarray


@dataclasses.dataclass(frozen=True)
class PrefillDispatch:
    """tokens, positions i32[R, C]; padding has position -1."""

    slots: tuple[Slot, ...]
    prompts: tuple[Prompt, ...]  # those that it computes a piece of, for whoever waits for them
    work: Rows | Pages
    tokens: np.ndarray
    positions: np.ndarray


@dataclasses.dataclass(frozen=True)
class DecodeDispatch:
    """One input token i32[W] for each row; padding has position -1."""

    slots: tuple[Slot, ...]
    turns: tuple[Any, ...]  # the running turn of each slot
    work: Rows | Pages
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
    for part, width in _parts(ready, ends.get, config.decode_widths, config):
        tick.dispatches.append(_decode_dispatch(part, ends, width, config, turns))
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
        for part, rows in _parts(spans, lambda span: span.end, config.prefill_rows, config):
            tick.dispatches.append(_prefill_dispatch(part, rows, config))
        for span in spans:
            tick.prefilled_tokens += span.end - span.start
            tick.reprefilled_tokens += max(0, min(span.end, span.slot.built) - span.start)
            table.filled(span)
            budget -= chunk


def _parts(
    items: Sequence[Any], need: Callable[[Any], int], widths: Sequence[int], config: EngineConfig
) -> list[tuple[list[Any], int]]:
    """Items for a dispatch each, with its width. In pages all go together, those of like length as neighbours;
    contiguous rows go with those of their own length, since all of a dispatch are as long as the longest."""
    groups: dict[int, list[Any]] = {}
    if config.work_cache == "pages":
        groups[config.longest] = sorted(items, key=need)
    else:
        for item in items:
            groups.setdefault(length_bucket(need(item), config.lengths), []).append(item)
    parts = []
    for _, group in sorted(groups.items()):
        start = 0
        for count, width in split_rows(len(group), widths):
            parts.append((group[start : start + count], width))
            start += count
    return parts


def _prefill_dispatch(spans: Sequence[Span], rows: int, config: EngineConfig) -> PrefillDispatch:
    tokens = np.zeros((rows, config.prefill_chunk), np.int32)
    positions = np.full((rows, config.prefill_chunk), -1, np.int32)
    for i, span in enumerate(spans):
        count = span.end - span.start
        tokens[i, :count] = span.slot.tokens[span.start : span.end]
        positions[i, :count] = np.arange(span.start, span.end)
    places = [(span.start, span.end) for span in spans]
    work = work_of([span.pages for span in spans], places, rows, config.prefill_chunk, config)
    prompts = tuple(span.slot.prompt for span in spans if span.in_prompt)
    return PrefillDispatch(tuple(span.slot for span in spans), prompts, work, tokens, positions)


def _decode_dispatch(
    slots: Sequence[Slot],
    ends: dict[Slot, int],
    width: int,
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
    work = work_of([slot.pages for slot in slots], places, width, config.steps_per_dispatch, config)
    return DecodeDispatch(tuple(slots), running, work, tokens, positions, words, offsets, limits)
