"""What one tick of the engine computes: clones, then prefills, then decode steps, as arrays ready for the device.

Pure: reads the slot table and reports to it what the dispatches will have put into the caches. No jax, no clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rw.sampler.shapes import EngineConfig, length_bucket, split_rows
from rw.sampler.slots import Clone, Slot, SlotTable, Span


@dataclasses.dataclass(frozen=True)
class CloneDispatch:
    """Rows copied from `sources` to `targets`, both i32[N]; padding copies the spare row onto itself."""

    length: int
    slots: tuple[Slot, ...]
    sources: np.ndarray
    targets: np.ndarray


@dataclasses.dataclass(frozen=True)
class PrefillDispatch:
    """tokens, positions i32[R, C] for the rows i32[R]; padding has position -1 and the spare row."""

    length: int
    slots: tuple[Slot, ...]
    rows: np.ndarray
    starts: np.ndarray  # i32[R], first position of each row
    tokens: np.ndarray
    positions: np.ndarray


@dataclasses.dataclass(frozen=True)
class DecodeDispatch:
    """One input token i32[W] for each of the rows i32[W]; padding has position -1 and the spare row."""

    length: int
    slots: tuple[Slot, ...]
    turns: tuple[Any, ...]  # the running turn of each slot
    rows: np.ndarray
    tokens: np.ndarray
    positions: np.ndarray
    words: np.ndarray  # u32[W, 4]
    offsets: np.ndarray  # i32[W]


Dispatch = CloneDispatch | PrefillDispatch | DecodeDispatch


@dataclasses.dataclass
class Tick:
    """Dispatches in the order in which they run, and what they amount to."""

    dispatches: list[Dispatch] = dataclasses.field(default_factory=list)
    cloned_tokens: int = 0
    prefilled_tokens: int = 0
    reprefilled_tokens: int = 0  # of them, tokens that the episode's lost cache had held


def plan_tick(table: SlotTable, config: EngineConfig, turns: dict[Any, Any]) -> Tick:
    """The next tick for the running turns by episode; empty where nothing is runnable.

    The slot table is told at once what clones and prefills will have filled, so that a slot decodes in the tick that
    completes its context. Whoever runs the tick must discard the slots of a dispatch that fails.
    """
    tick = Tick()
    clones = table.clones()
    for length, group in _by_length(clones, config.lengths, lambda clone: clone.length):
        for start in range(0, len(group), config.clone_rows):
            tick.dispatches.append(_clone_dispatch(group[start : start + config.clone_rows], length, table, config))
    for clone in clones:
        table.filled(clone.target, clone.length)
        tick.cloned_tokens += clone.length
    _plan_prefills(tick, table, config)
    ready = table.decoding()
    for length, group in _by_length(
        ready, config.lengths, lambda slot: len(slot.tokens) + config.steps_per_dispatch - 1
    ):
        for part, width in _parts(group, config.decode_widths):
            tick.dispatches.append(_decode_dispatch(part, width, length, table, turns))
    return tick


def _plan_prefills(tick: Tick, table: SlotTable, config: EngineConfig) -> None:
    """Fills up to `prefill_tokens` in whole pieces, the earliest turns first; a slot may get several, in order."""
    budget = config.prefill_tokens
    while budget > 0 and (spans := table.spans(config.prefill_chunk)[: -(-budget // config.prefill_chunk)]):
        for length, group in _by_length(spans, config.lengths, lambda span: span.end):
            for part, rows in _parts(group, config.prefill_rows):
                tick.dispatches.append(_prefill_dispatch(part, rows, length, table, config))
        for span in spans:
            tick.prefilled_tokens += span.end - span.start
            tick.reprefilled_tokens += max(0, min(span.end, span.slot.built) - span.start)
            table.filled(span.slot, span.end)
            budget -= config.prefill_chunk


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


def _rows(slots: Sequence[Slot], width: int, table: SlotTable) -> np.ndarray:
    """i32[width]: the slots' rows, filled up with the spare row."""
    spare = len(table.slots)
    return np.array([slot.index for slot in slots] + [spare] * (width - len(slots)), np.int32)


def _clone_dispatch(clones: Sequence[Clone], length: int, table: SlotTable, config: EngineConfig) -> CloneDispatch:
    targets = tuple(clone.target for clone in clones)
    sources = [clone.source for clone in clones]
    width = config.clone_rows
    return CloneDispatch(length, targets, _rows(sources, width, table), _rows(targets, width, table))


def _prefill_dispatch(
    spans: Sequence[Span], rows: int, length: int, table: SlotTable, config: EngineConfig
) -> PrefillDispatch:
    slots = tuple(span.slot for span in spans)
    tokens = np.zeros((rows, config.prefill_chunk), np.int32)
    positions = np.full((rows, config.prefill_chunk), -1, np.int32)
    starts = np.zeros(rows, np.int32)
    for i, span in enumerate(spans):
        count = span.end - span.start
        tokens[i, :count] = span.slot.tokens[span.start : span.end]
        positions[i, :count] = np.arange(span.start, span.end)
        starts[i] = span.start
    return PrefillDispatch(length, slots, _rows(slots, rows, table), starts, tokens, positions)


def _decode_dispatch(
    slots: Sequence[Slot], width: int, length: int, table: SlotTable, turns: dict[Any, Any]
) -> DecodeDispatch:
    running = tuple(turns[slot.episode] for slot in slots)
    tokens, positions = np.zeros(width, np.int32), np.full(width, -1, np.int32)
    words, offsets = np.zeros((width, 4), np.uint32), np.zeros(width, np.int32)
    for i, (slot, turn) in enumerate(zip(slots, running, strict=True)):
        tokens[i], positions[i] = slot.tokens[-1], slot.length
        words[i], offsets[i] = turn.words, len(turn.recorder.tokens)
    return DecodeDispatch(length, tuple(slots), running, _rows(slots, width, table), tokens, positions, words, offsets)
