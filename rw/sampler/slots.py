"""Which episode holds which slot, what its keys and values cover, and what has to be computed next.

A pure state machine: no model, no device, no clock. The engine asks it what to do, does it, and reports back. Tokens
are the truth and a slot's cache is a copy that can be built again: everything follows from `tokens` and `length`.

    FREE -> PREFILLING -> DECODING -> PAUSED -> PREFILLING -> …     and from every state back to FREE

A context of T tokens is ready to decode when its first T-1 are in the cache: the last one is the decode step's input.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Sequence

import numpy as np

from rw.sampler.interface import EpisodeId


class SlotState(enum.StrEnum):
    """What a slot is doing."""

    FREE = "free"  # its cache may still serve as the source of a clone
    PREFILLING = "prefilling"
    DECODING = "decoding"
    PAUSED = "paused"  # its episode waits for Workers


@dataclasses.dataclass(eq=False)
class Slot:
    """One row of the cache."""

    index: int
    state: SlotState = SlotState.FREE
    episode: EpisodeId | None = None
    tokens: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int32))  # i32[T], the known context
    length: int = 0  # the leading tokens whose keys and values the cache holds
    prompt: bytes = b""  # the group's prompt; slots of equal prompts share its cache
    shared: int = 0  # leading tokens that siblings share: the prompt without its last token
    built: int = 0  # the longest length that this episode had before its cache was lost
    order: int = 0  # when it came into its state, as a count of events

    @property
    def ready_length(self) -> int:
        """Tokens that must be in the cache before the next one can be sampled."""
        return len(self.tokens) - 1


@dataclasses.dataclass(frozen=True)
class Span:
    """Tokens [start, end) of a slot, to be prefilled in one piece."""

    slot: Slot
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Clone:
    """The first `length` positions of `source`, to be copied to `target`."""

    source: Slot
    target: Slot
    length: int


class SlotTable:
    """All slots. `eviction` lets a new episode take the slot of the one that has been paused longest."""

    def __init__(self, count: int, eviction: bool):
        self.slots = [Slot(index) for index in range(count)]
        self.evictions = 0
        self._eviction = eviction
        self._by_episode: dict[EpisodeId, Slot] = {}
        self._lost: dict[EpisodeId, int] = {}  # evicted episode -> length that its cache had
        self._events = itertools.count(1)

    @property
    def held(self) -> int:
        """Slots that belong to an episode."""
        return len(self._by_episode)

    def slot_of(self, episode: EpisodeId) -> Slot | None:
        """The slot that an episode holds, if any."""
        return self._by_episode.get(episode)

    def admit(self, episode: EpisodeId, tokens: np.ndarray, prompt_length: int) -> Slot | None:
        """Begins a turn on the context `tokens` i32[T] and returns its slot, or None while every slot is in use.

        A paused episode goes on in its own slot and keeps the cache. Raises ValueError where the tokens do not extend
        those of its last turn, where the episode is in a turn already, or where the prompt is empty or longer than T.
        """
        if not 1 <= prompt_length <= len(tokens):
            raise ValueError(
                f"{episode}: prompt_length={prompt_length} must be from 1 to the {len(tokens)} tokens given"
            )
        tokens = np.array(tokens, np.int32)
        slot = self._by_episode.get(episode)
        if slot is None:
            prompt = tokens[:prompt_length].tobytes()
            slot = self._choose(prompt, prompt_length - 1)
            if slot is None:
                return None
            self._occupy(slot, episode, prompt, prompt_length - 1)
        elif slot.state is not SlotState.PAUSED:
            raise ValueError(f"{episode} is in a turn already")
        elif not np.array_equal(tokens[: len(slot.tokens)], slot.tokens):
            raise ValueError(f"{episode}: its tokens do not extend the {len(slot.tokens)} of its last turn")
        slot.tokens = tokens
        self._enter(slot, SlotState.PREFILLING)
        self._settle(slot)
        return slot

    def _choose(self, prompt: bytes, shared: int) -> Slot | None:
        """A free slot that holds the same prompt, else the one freed longest ago, else the one paused longest."""
        free = [slot for slot in self.slots if slot.state is SlotState.FREE]
        if free:
            return min(free, key=lambda slot: (not _holds(slot, prompt, shared), slot.order))
        paused = [slot for slot in self.slots if slot.state is SlotState.PAUSED]
        if not paused or not self._eviction:
            return None
        victim = min(paused, key=lambda slot: slot.order)
        episode, length = victim.episode, max(victim.length, victim.built)
        self.release(episode)
        self._lost[episode] = length
        self.evictions += 1
        return victim

    def _occupy(self, slot: Slot, episode: EpisodeId, prompt: bytes, shared: int) -> None:
        slot.length = shared if _holds(slot, prompt, shared) else 0
        slot.episode, slot.prompt, slot.shared = episode, prompt, shared
        slot.built = self._lost.pop(episode, 0)
        self._by_episode[episode] = slot

    def clones(self) -> list[Clone]:
        """Slots whose prompt lies complete in another slot, with that slot."""
        sources = self._sources()
        waiting = [slot for slot in self._in(SlotState.PREFILLING) if slot.length < slot.shared]
        return [Clone(sources[slot.prompt], slot, slot.shared) for slot in waiting if slot.prompt in sources]

    def _sources(self) -> dict[bytes, Slot]:
        """A slot that holds the whole shared part, for each prompt that lies in one."""
        return {slot.prompt: slot for slot in self.slots if slot.length >= slot.shared > 0}

    def spans(self, chunk: int) -> list[Span]:
        """What to prefill next, one piece of at most `chunk` tokens a slot, earliest turns first.

        Of the slots that share a prompt only one computes it, the others wait to clone it. No piece crosses the end of
        the shared part, so that a slot's pieces are the same whether it computed that part or cloned it: together with
        fixed shapes this makes its cache bitwise independent of who came first.
        """
        pending = self._in(SlotState.PREFILLING)
        sources = self._sources()
        leaders: dict[bytes, Slot] = {}
        for slot in sorted(pending, key=lambda slot: (-slot.length, slot.order)):
            if slot.length < slot.shared and slot.prompt not in sources:
                leaders.setdefault(slot.prompt, slot)
        spans = []
        for slot in pending:
            in_prompt = slot.length < slot.shared
            if not in_prompt or leaders.get(slot.prompt) is slot:
                limit = slot.shared if in_prompt else slot.ready_length
                spans.append(Span(slot, slot.length, min(slot.length + chunk, limit)))
        return spans

    def decoding(self) -> list[Slot]:
        """Slots that can sample their next token, earliest turns first."""
        return self._in(SlotState.DECODING)

    def _in(self, state: SlotState) -> list[Slot]:
        return sorted((slot for slot in self.slots if slot.state is state), key=lambda slot: slot.order)

    def filled(self, slot: Slot, length: int) -> None:
        """Reports that the cache of a slot now holds its first `length` tokens."""
        slot.length = length
        self._settle(slot)

    def _settle(self, slot: Slot) -> None:
        if slot.length == slot.ready_length:
            slot.state = SlotState.DECODING  # keeps its order: turns are served in the order they came

    def sampled(self, slot: Slot, ids: Sequence[int]) -> None:
        """Appends the sampled ids that were kept. The cache holds all but the last; what overshot is forgotten."""
        slot.tokens = np.concatenate([slot.tokens, np.asarray(ids, np.int32)])
        slot.length = slot.ready_length

    def pause(self, slot: Slot) -> None:
        """Ends a turn: the slot keeps its cache until the episode comes back, is released, or is evicted."""
        self._enter(slot, SlotState.PAUSED)

    def release(self, episode: EpisodeId) -> None:
        """Frees an episode's slot, whatever its state; unknown episodes are ignored. The cache stays until reused."""
        self._lost.pop(episode, None)
        slot = self._by_episode.pop(episode, None)
        if slot is not None:
            slot.episode, slot.built = None, 0
            self._enter(slot, SlotState.FREE)

    def forget_caches(self) -> None:
        """Every cache is void: other weights, or lost on the device. Episodes keep their slots and tokens."""
        for slot in self.slots:
            slot.built = max(slot.built, slot.length) if slot.episode else 0
            slot.length = 0
            if slot.state is SlotState.DECODING:
                slot.state = SlotState.PREFILLING
                self._settle(slot)

    def discard(self, slot: Slot) -> None:
        """Nothing is known of a slot's cache any more; frees the slot."""
        if slot.episode is not None:
            self.release(slot.episode)
        slot.length = 0

    def restart(self, slot: Slot, context_length: int) -> None:
        """Takes back what a running turn has sampled beyond its first `context_length` tokens."""
        slot.tokens = slot.tokens[:context_length]
        slot.length = min(slot.length, slot.ready_length)
        slot.state = SlotState.PREFILLING
        self._settle(slot)

    def _enter(self, slot: Slot, state: SlotState) -> None:
        slot.state, slot.order = state, next(self._events)


def _holds(slot: Slot, prompt: bytes, shared: int) -> bool:
    return slot.prompt == prompt and slot.length >= shared
