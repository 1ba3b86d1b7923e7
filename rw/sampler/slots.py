"""Which episodes hold a cache, what its keys and values cover, and what has to be computed next.

A pure state machine: no model, no device, no clock. The engine asks it what to do, does it, and reports back. Tokens
are the truth and pages hold a copy that can be built again: everything follows from `tokens` and `length`.

    PREFILLING -> DECODING -> PAUSED -> PREFILLING -> …     and from every state to GONE

A context of T tokens is ready to decode when its first T-1 are in the cache: the last one is the decode step's input.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Container, Iterable, Sequence

import numpy as np

from rw.sampler.interface import EpisodeId
from rw.sampler.pages import PageBook, pages_for
from rw.sampler.prompts import Prompt


class SlotState(enum.StrEnum):
    """What a slot is doing."""

    PREFILLING = "prefilling"
    DECODING = "decoding"
    PAUSED = "paused"  # its episode waits for Workers, or for its next turn to begin
    GONE = "gone"  # released, or its cache was lost: a new one is made if the episode comes back


@dataclasses.dataclass(eq=False)
class Slot:
    """An episode's place among those that hold a cache. It is at work while a turn is prefilled or decoded."""

    episode: EpisodeId
    tokens: np.ndarray  # i32[T], the known context
    state: SlotState = SlotState.PREFILLING
    length: int = 0  # the leading tokens whose keys and values the pages hold
    pages: list[int] = dataclasses.field(default_factory=list)  # page i holds positions from i · page_tokens on
    prompt: Prompt | None = None  # None where nothing can be shared
    built: int = 0  # the longest length that this episode had before its cache was lost
    order: int = 0  # when it came into its state, as a count of events

    @property
    def ready_length(self) -> int:
        """Tokens that must be in the cache before the next one can be sampled."""
        return len(self.tokens) - 1

    @property
    def waits_for_prompt(self) -> bool:
        """Whether it has yet to begin with its prompt, by itself or when a sibling has computed it."""
        return self.prompt is not None and not self.pages


@dataclasses.dataclass(frozen=True)
class Span:
    """Tokens [start, end) of a slot, or of its prompt, to be prefilled in one piece."""

    slot: Slot
    start: int
    end: int
    in_prompt: bool

    @property
    def pages(self) -> list[int]:
        """Where it goes."""
        return self.slot.prompt.pages if self.in_prompt else self.slot.pages


@dataclasses.dataclass(frozen=True)
class Attached:
    """A slot that has begun with its prompt, and the page to be copied for it: (from, to), or None."""

    slot: Slot
    page: tuple[int, int] | None
    is_first: bool  # of those that begin with what was computed


class SlotTable:
    """All slots over one pool of pages, of which `at_work` may be at work at a time; those that pause keep their pages.

    Who needs a page takes it, in this order: from prompts that no episode uses any more, from the pool as it grows,
    and, with `eviction`, from the episode that has been paused longest, from the youngest running turn, which has to
    queue again. Paused episodes in `coming`, whose next turn waits already, go after the others and the latest first.
    """

    def __init__(
        self,
        at_work: int,
        pages: PageBook,
        page_tokens: int,
        eviction: bool,
        coming: Container[EpisodeId] = (),
    ):
        self.pages, self.page_tokens = pages, page_tokens
        self.evictions = 0
        self.set_back: list[EpisodeId] = []  # lost their slots in mid-turn, latest first; the engine empties it
        self._at_work, self._eviction, self._coming = at_work, eviction, coming
        self._by_episode: dict[EpisodeId, Slot] = {}
        self._prompts: dict[bytes, Prompt] = {}
        self._lost: dict[EpisodeId, int] = {}  # evicted episode -> length that its cache had
        self._events = itertools.count(1)

    @property
    def slots(self) -> list[Slot]:
        """Those of all episodes that hold one, in the order in which they got it."""
        return list(self._by_episode.values())

    @property
    def cached_tokens(self) -> int:
        """Tokens whose keys and values are kept, those that several episodes share counted once."""
        shared = {id(slot.prompt): slot.prompt for slot in self.slots if slot.prompt is not None}
        shared |= {id(prompt): prompt for prompt in self._prompts.values()}
        own = sum(slot.length - self._shared_tokens(slot) for slot in self.slots if slot.pages)
        return own + sum(prompt.length for prompt in shared.values())

    def slot_of(self, episode: EpisodeId) -> Slot | None:
        """The slot that an episode holds, if any."""
        return self._by_episode.get(episode)

    def admit(self, episode: EpisodeId, tokens: np.ndarray, prompt_length: int) -> Slot | None:
        """Begins a turn on the context `tokens` i32[T] and returns its slot, or None while there is no room for it.

        A paused episode goes on in its own slot and keeps the cache. Raises ValueError where the tokens do not extend
        those of its last turn, where the episode is in a turn already, or where the prompt is empty or longer than T.
        """
        if not 1 <= prompt_length <= len(tokens):
            raise ValueError(
                f"{episode}: prompt_length={prompt_length} must be from 1 to the {len(tokens)} tokens given"
            )
        tokens = np.array(tokens, np.int32)
        slot = self._by_episode.get(episode)
        if slot is not None and slot.state is not SlotState.PAUSED:
            raise ValueError(f"{episode} is in a turn already")
        if slot is not None and not np.array_equal(tokens[: len(slot.tokens)], slot.tokens):
            raise ValueError(f"{episode}: its tokens do not extend the {len(slot.tokens)} of its last turn")
        shared = tokens[: prompt_length - 1]
        if not self._has_room(slot, len(tokens), shared):
            return None
        if slot is None:
            slot = self._occupy(episode, shared)
        slot.tokens = tokens
        self._enter(slot, SlotState.PREFILLING)
        self._settle(slot)
        return slot

    def _has_room(self, slot: Slot | None, length: int, shared: np.ndarray) -> bool:
        """Whether a turn may begin on `length` tokens: where its context would not fit beside those that run, it would
        be set back at once. A turn alone always may."""
        running = self._running()
        if not running:
            return True
        if len(running) >= self._at_work:
            return False
        if not self._eviction:
            return True
        kept = {page for other in running for page in self._pages_of(other)} | set(self.pages.unclean)
        if slot is not None and slot.pages:
            own, also = slot.pages, self._pages_of(slot)
        else:
            prompt = self._prompts.get(shared.tobytes())
            own = also = prompt.pages if prompt is not None else []
        needed = pages_for(length, self.page_tokens) + 1 - len(own)
        return needed + len(kept.union(also)) <= self.pages.limit

    def _pages_of(self, slot: Slot) -> list[int]:
        return slot.pages + (slot.prompt.pages if slot.prompt is not None else [])

    def _running(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.state in (SlotState.PREFILLING, SlotState.DECODING)]

    def _evict(self) -> bool:
        """Takes the cache of a paused episode, if one holds any page or keeps its prompt's from being dropped."""
        paused = [slot for slot in self._in(SlotState.PAUSED) if self._pages_of(slot)]
        resting = [slot for slot in paused if slot.episode not in self._coming]
        if paused:
            self._lose(resting[0] if resting else paused[-1])
            self.evictions += 1
        return bool(paused)

    def _lose(self, slot: Slot) -> None:
        episode, length = slot.episode, max(slot.length, slot.built)
        self.release(episode)
        self._lost[episode] = length

    def _occupy(self, episode: EpisodeId, shared: np.ndarray) -> Slot:
        slot = Slot(episode, shared, built=self._lost.pop(episode, 0))
        if len(shared):
            slot.prompt = self._prompts.setdefault(shared.tobytes(), Prompt(shared))
            slot.prompt.users += 1
        self._by_episode[episode] = slot
        return slot

    def attach(self) -> list[Attached]:
        """Has every slot whose prompt is complete begin with it, as far as there are pages."""
        done = []
        for slot in self._in(SlotState.PREFILLING):
            if slot.state is not SlotState.PREFILLING or not slot.waits_for_prompt or not slot.prompt.is_complete:
                continue  # or it was just set back
            prompt, copied = slot.prompt, None
            whole = len(prompt.tokens) // self.page_tokens
            if len(prompt.tokens) % self.page_tokens:
                if not self._reserve(slot, 1):
                    continue
                copied = (prompt.pages[-1], slot.pages[0])
            self.pages.share(prompt.pages[:whole])
            slot.pages = prompt.pages[:whole] + slot.pages
            slot.length = len(prompt.tokens)
            done.append(Attached(slot, copied, not prompt.was_taken))
            prompt.was_taken = True
            self._settle(slot)
        return done

    def spans(self, chunk: int, count: int) -> list[Span]:
        """What to prefill next: up to `count` pieces of at most `chunk` tokens, one a slot, earliest turns first; the
        pages that they go to are reserved.

        Of the slots that share a prompt the first computes it, the others wait. No piece crosses the end of a prompt:
        together with fixed shapes this makes a cache bitwise independent of who came first.
        """
        spans: list[Span] = []
        leading: set[int] = set()
        for slot in self._in(SlotState.PREFILLING):
            if len(spans) == count:
                break
            span = self._next_span(slot, chunk, leading)
            if span is not None and self._reserve(slot, pages_for(span.end, self.page_tokens), span.in_prompt):
                spans.append(span)
        return spans

    def _next_span(self, slot: Slot, chunk: int, leading: set[int]) -> Span | None:
        """A slot's next piece, if it has one; `leading` are the prompts that an earlier slot computes."""
        if slot.state is not SlotState.PREFILLING:  # it was just set back
            return None
        if not slot.waits_for_prompt:
            return Span(slot, slot.length, min(slot.length + chunk, slot.ready_length), False)
        prompt = slot.prompt
        if prompt.is_complete or id(prompt) in leading:
            return None
        leading.add(id(prompt))
        return Span(slot, prompt.length, min(prompt.length + chunk, len(prompt.tokens)), True)

    def decoding(self) -> list[Slot]:
        """Slots that can sample their next token, earliest turns first."""
        return self._in(SlotState.DECODING)

    def make_room(self, slot: Slot, positions: int) -> bool:
        """Reserves pages for the first `positions` of a slot; False where it was set back instead."""
        return self._reserve(slot, pages_for(positions, self.page_tokens))

    def _in(self, state: SlotState) -> list[Slot]:
        return sorted((slot for slot in self.slots if slot.state is state), key=lambda slot: slot.order)

    def _reserve(self, slot: Slot, count: int, in_prompt: bool = False) -> bool:
        """Fills the slot's pages, or its prompt's, up to `count`; False where the slot lost its place instead."""
        while slot.state is not SlotState.GONE:
            pages = slot.prompt.pages if in_prompt else slot.pages
            missing = max(0, count - len(pages))
            taken = self.pages.take(missing, may_grow=False)
            if taken is None and self._drop_idle_prompt():
                continue
            if taken is None:
                taken = self.pages.take(missing)
            if taken is not None:
                pages.extend(taken)
                return True
            if not self._eviction:
                raise RuntimeError(f"no page is left of {self.pages.limit}, and nobody may lose one")
            if not self._evict():
                self._set_back(slot)
        return False

    def _drop_idle_prompt(self) -> bool:
        idle = [(prompt.order, key) for key, prompt in self._prompts.items() if not prompt.users]
        if idle:
            self.pages.give(self._prompts.pop(min(idle)[1]).void())
        return bool(idle)

    def _set_back(self, slot: Slot) -> None:
        """Takes its place from the youngest running turn that holds pages, from `slot` where there is none younger."""
        others = [other for other in self._running() if self._pages_of(other) and other.order > slot.order]
        victim = max(others, key=lambda other: other.order, default=slot)
        self._lose(victim)
        self.set_back.append(victim.episode)

    def filled(self, span: Span) -> None:
        """Reports that a piece was computed."""
        if span.in_prompt:
            span.slot.prompt.length = span.end
        else:
            span.slot.length = span.end
            self._settle(span.slot)

    def _settle(self, slot: Slot) -> None:
        if slot.length == slot.ready_length:
            slot.state = SlotState.DECODING  # keeps its order: turns are served in the order they came

    def sampled(self, slot: Slot, ids: Sequence[int]) -> None:
        """Appends the sampled ids that were kept. The cache holds all but the last; what overshot is forgotten."""
        slot.tokens = np.concatenate([slot.tokens, np.asarray(ids, np.int32)])
        slot.length = slot.ready_length

    def pause(self, slot: Slot) -> None:
        """Ends a turn: the slot is no longer at work and keeps its cache until its episode is released or evicted."""
        self._give_beyond(slot)
        self._enter(slot, SlotState.PAUSED)

    def release(self, episode: EpisodeId) -> None:
        """Frees an episode's pages, whatever its state; unknown episodes are ignored. Its prompt stays until the pages
        are needed."""
        self._lost.pop(episode, None)
        self.set_back = [other for other in self.set_back if other != episode]
        slot = self._by_episode.pop(episode, None)
        if slot is None:
            return
        self.pages.give(slot.pages)
        if slot.prompt is not None:
            slot.prompt.users -= 1
            slot.prompt.order = next(self._events)
            key = slot.prompt.tokens.tobytes()
            if not slot.prompt.users and (not slot.prompt.pages or self._prompts.get(key) is not slot.prompt):
                self._forget_prompt(slot.prompt)
        slot.state, slot.length, slot.pages, slot.prompt = SlotState.GONE, 0, [], None

    def _forget_prompt(self, prompt: Prompt) -> None:
        key = prompt.tokens.tobytes()
        if self._prompts.get(key) is prompt:
            del self._prompts[key]
        self.pages.give(prompt.void())

    def _give_beyond(self, slot: Slot) -> None:
        """Gives back pages that were reserved for tokens that did not come."""
        needed = pages_for(slot.length, self.page_tokens)
        self.pages.give(slot.pages[needed:])
        del slot.pages[needed:]

    def forget_caches(self) -> None:
        """Every cache is void: other weights, or lost on the device. Episodes keep their slots and tokens."""
        self.pages.clear()
        for slot in self.slots:
            slot.built = max(slot.built, slot.length)
            slot.length, slot.pages = 0, []
            if slot.prompt is not None:
                slot.prompt.void()
            if slot.state is SlotState.DECODING:
                slot.state = SlotState.PREFILLING
                self._settle(slot)
        for key, prompt in list(self._prompts.items()):
            prompt.void()
            if not prompt.users:
                del self._prompts[key]

    def discard(self, slot: Slot) -> None:
        """What lies in the pages of a slot and of its prompt cannot be trusted; frees them. Siblings keep theirs, and
        new ones compute the prompt again."""
        if slot.state is SlotState.GONE:
            return
        self.pages.spoil(slot.pages)
        prompt = slot.prompt
        self.release(slot.episode)
        if prompt is not None:
            self.discard_prompts([prompt])

    def discard_prompts(self, prompts: Iterable[Prompt]) -> None:
        """What lies in the pages of these prompts cannot be trusted, and is computed again."""
        for prompt in prompts:
            self.pages.spoil(prompt.pages)
            self._forget_prompt(prompt)

    def restart(self, slot: Slot, context_length: int) -> None:
        """Takes back what a running turn has sampled beyond its first `context_length` tokens."""
        slot.tokens = slot.tokens[:context_length]
        slot.length = min(slot.length, slot.ready_length)
        slot.state = SlotState.PREFILLING
        self._settle(slot)

    def _enter(self, slot: Slot, state: SlotState) -> None:
        slot.state, slot.order = state, next(self._events)

    def _shared_tokens(self, slot: Slot) -> int:
        if slot.prompt is None:
            return 0
        return len(slot.prompt.tokens) // self.page_tokens * self.page_tokens
