"""The sampler engine: continuous batching of router turns over one pool of pages for their caches.

Episodes come, pause and go at any time. The engine's one task repeats a tick: let waiting turns begin, run what is
runnable on the device thread, settle what was sampled. It sleeps while nothing is runnable. What a turn may say, and
what follows it, is not known here.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable

import jax
import numpy as np

from rw.errors import ConfigError, FailureCause, InfrastructureFailure
from rw.model.cache import token_bytes
from rw.model.config import ModelConfig
from rw.protocol.chat import TokenCodec
from rw.sampler.counters import EngineCounters
from rw.sampler.decode import compiled_programs
from rw.sampler.device import DeviceThread
from rw.sampler.interface import EpisodeId, SampledTurn, SamplingConfig, StopReason, TurnRequest
from rw.sampler.keys import base_key, turn_words
from rw.sampler.lending import Lending
from rw.sampler.pages import PageBook
from rw.sampler.pool import CachePool, Failure, Samples, TickResult
from rw.sampler.sampling import check_sampling
from rw.sampler.shapes import EngineConfig
from rw.sampler.slots import Slot, SlotState, SlotTable
from rw.sampler.tick import DecodeDispatch, PrefillDispatch, Tick, plan_tick
from rw.sampler.turns import Turn, TurnRecorder
from rw.types import PublishedWeights

__all__ = ["EngineConfig", "SamplerEngine"]

log = logging.getLogger(__name__)


class SamplerEngine:
    """The Sampler protocol over slots. Belongs to one event loop; all device work goes through `device`.

    A turn is sampled under one version of the weights: one that is running while new weights are published starts over.
    """

    def __init__(
        self,
        codec: TokenCodec,
        model_config: ModelConfig,
        sampling: SamplingConfig,
        engine_config: EngineConfig,
        device: DeviceThread,
        key_seed: int,
        episodes: int | None = None,
    ):
        """Of `episodes` at once the pool may hold the longest contexts; None: of as many as there are slots.

        Raises ConfigError where the tokenizer has more ids than the model, `sampling` makes no sense, or
        `engine.kv_bytes` is too little.
        """
        check_sampling(sampling)
        if codec.vocab_size > model_config.vocab_size:
            raise ConfigError(
                f"model.vocab_size={model_config.vocab_size} is below the tokenizer's {codec.vocab_size} token ids"
            )
        config = engine_config.single_shapes() if engine_config.deterministic else engine_config
        self.config = config.for_platform(jax.default_backend())
        self._codec, self._device = codec, device
        self._token_bytes, page_tokens = token_bytes(model_config), self.config.page_tokens
        self._episodes = self.config.slots if episodes is None else episodes
        pages = PageBook(*self.config.pool_pages(self._token_bytes * page_tokens, self._episodes))
        vocabulary = codec.vocab_size, codec.end_tokens
        self._pool = CachePool(model_config, sampling, self.config, pages.sizes, *vocabulary, base_key(key_seed))
        self._turns: dict[EpisodeId, Turn] = {}  # running and waiting ones
        evicts = not self.config.deterministic
        self._table = SlotTable(self.config.slots, pages, page_tokens, evicts, coming=self._turns)
        self._waiting: collections.deque[Turn] = collections.deque()
        self._weights: PublishedWeights | None = None
        self._between_ticks = asyncio.Lock()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._lending: Lending | None = None
        self._counters = EngineCounters()
        self._evictions_read, self._compiled_read = 0, compiled_programs()

    async def warm_up(self) -> int:
        """Compiles every shape bucket, before the first turn; returns how many programs were compiled."""
        async with self._between_ticks:
            if self._turns:
                raise RuntimeError("warm up before sampling")
            self._table.forget_caches()
            return await self._device.run(self._pool.warm_up, self._params())

    async def publish(self, weights: PublishedWeights) -> None:
        """Switches to new weights between two ticks and drops every cache of the old ones."""
        async with self._between_ticks:
            await self._drop_caches()
            self._weights = weights
            for turn in self._turns.values():
                turn.recorder = TurnRecorder(self._codec, turn.request)
                slot = self._table.slot_of(turn.request.episode)
                if slot is not None and turn not in self._waiting:
                    self._table.restart(slot, len(turn.request.tokens))

    async def drop_caches(self) -> None:
        """Gives the caches' memory back. Running and paused turns go on: what they need is prefilled again."""
        async with self._between_ticks:
            await self._drop_caches()

    async def withdraw(self) -> None:
        """Gives back the memory of caches and weights; `publish` comes before the next turn. RuntimeError while turns
        are being sampled."""
        async with self._between_ticks:
            if self._turns:
                raise RuntimeError("withdraw weights only when no turn is being sampled")
            self._weights = None
            await self._drop_caches()

    async def _drop_caches(self) -> None:
        """Forgets them first: the device goes on with it where the caller is cancelled, and works in order."""
        self._table.forget_caches()
        await asyncio.shield(self._device.run(self._pool.drop))

    def while_idle(self, work: Callable[[], bool] | None) -> None:
        """Lends the device thread to `work` whenever no turn is runnable; None takes it back.

        A call does one bounded piece, since a turn that becomes runnable waits for its end, and returns False where
        there is none now; `wake` says that there may be one again. Where turns wait much for such pieces (lending.py)
        some idle moments stay idle. It keeps its own errors: one that it raises ends the lending and is only logged.
        """
        self._lending = None if work is None else Lending(work)
        self.wake()

    def wake(self) -> None:
        """Has the engine look again for something to do."""
        self._wake.set()

    async def release(self, episode: EpisodeId) -> None:
        """Frees the episode's cache and ends its running turn, if any; unknown episodes are ignored."""
        turn = self._turns.get(episode)
        if turn is not None:
            self._fail(turn, "released while it was sampled")
        self._table.release(episode)
        self._wake.set()

    async def generate(self, request: TurnRequest) -> SampledTurn:
        """Samples one turn, on the episode's own cache where it still has one, when those before it leave room.

        Cancelling it frees the cache. Raises InfrastructureFailure(SAMPLER_FAULT) where the device failed, ConfigError
        where the context cannot fit or a deterministic engine holds all the episodes that it was made for, ValueError
        for a request that contradicts the episode's earlier ones, RuntimeError before weights are published or after
        `close`.
        """
        self._check(request)
        future = asyncio.get_running_loop().create_future()
        turn = Turn(request, TurnRecorder(self._codec, request), turn_words(request), future, time.monotonic())
        self._turns[request.episode] = turn
        self._waiting.append(turn)
        if self._task is None:
            self._task = asyncio.create_task(self._serve(), name="sampler-engine")
        self._wake.set()
        try:
            return await future
        except asyncio.CancelledError:
            self._forget(turn)
            self._table.release(request.episode)
            self._wake.set()
            raise

    def _check(self, request: TurnRequest) -> None:
        self._params()
        need = len(request.tokens) + request.max_tokens
        if need > self.config.longest:
            raise ConfigError(
                f"{request.episode}: {len(request.tokens)} tokens and max_tokens={request.max_tokens} exceed the last "
                f"of engine.lengths={self.config.lengths}: raise it to at least {need}"
            )
        low, high = request.tokens.min(initial=0), request.tokens.max(initial=0)
        if low < 0 or high >= self._codec.vocab_size:
            raise ValueError(f"{request.episode}: token ids {low}..{high} are outside 0..{self._codec.vocab_size - 1}")
        if request.episode in self._turns:
            raise ValueError(f"{request.episode} is in a turn already")

    def _params(self):
        if self._weights is None:
            raise RuntimeError("publish weights before sampling, and do not sample after close")
        return self._weights.params

    async def close(self) -> None:
        """Ends the engine's task and fails turns that still run; the caches are given back."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        for turn in list(self._turns.values()):
            self._fail(turn, "the sampler was closed")
        self._weights = None
        try:
            await self._device.run(self._pool.drop)  # behind a tick that still runs there
        except RuntimeError:  # the thread was closed first, so nothing runs there
            self._pool.drop()

    def stats(self) -> dict[str, float]:
        """Counters since the last call, then reset; `kv_bytes` is what the pool holds now.

        `active_row_share` is the batch occupancy of decode dispatches; `compiled` should stay 0 after `warm_up`.
        """
        counters, self._counters = self._counters, EngineCounters()
        counters.evictions = self._table.evictions - self._evictions_read
        self._evictions_read = self._table.evictions
        compiled, self._compiled_read = compiled_programs() - self._compiled_read, compiled_programs()
        share = counters.active_rows / counters.decode_rows if counters.decode_rows else 0.0
        return vars(counters) | {"active_row_share": share, "kv_bytes": self._pool.nbytes, "compiled": compiled}

    async def _serve(self) -> None:
        """Ticks until cancelled. An error of our own fails the turns at hand: they must not wait for ever."""
        while True:
            self._wake.clear()
            try:
                async with self._between_ticks:
                    worked = await self._tick()
            except Exception as error:  # whatever it was, the callers must hear of it; the engine goes on empty
                log.exception("the sampler engine failed its turns")
                for turn in list(self._turns.values()):
                    self._fail(turn, f"engine: {error!r}")
                self._table.forget_caches()
                self._pool.drop()
                worked = False
            if not worked and not await self._work_while_idle():
                await self._idle()

    async def _work_while_idle(self) -> bool:
        """Has one piece of other work done, where some was lent the device; whether it was."""
        lending = self._lending
        if lending is None or self._wake.is_set():  # a turn has come meanwhile, and goes first
            return self._wake.is_set()
        if lending.pause_s():
            return False
        start = time.monotonic()
        try:
            return await self._device.run(lending.work)
        except Exception:
            log.exception("work that was lent the device failed; it is not called again")
            self._lending = None
            return False
        finally:
            end = time.monotonic()
            delay = max((end - turn.asked_s for turn in self._waiting), default=0.0)  # none came before the start
            lending.worked(end - start, delay)
            self._counters.idle_work_s += end - start
            self._counters.idle_work_delay_s += delay

    async def _idle(self) -> None:
        """Sleeps until something may be runnable again, or until work that pauses may go on."""
        start = time.monotonic()
        pause_s = self._lending.pause_s() if self._lending is not None else 0.0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s or None):
                await self._wake.wait()
        idle_s = time.monotonic() - start
        self._counters.idle_s += idle_s
        if self._lending is not None:
            self._lending.idled(idle_s)

    async def _tick(self) -> bool:
        """Admits, runs and settles once; False where nothing was runnable."""
        await self._clean()
        self._admit()
        tick = plan_tick(self._table, self.config, self._turns)
        self._queue_again()
        if not tick.dispatches:
            return bool(self._table.pages.unclean)  # of an eviction, perhaps all that a turn waits for
        self._count_memory()
        start = time.monotonic()
        result = await self._device.run(self._pool.run, self._params(), tick)
        self._counters.device_s += time.monotonic() - start
        self._counters.prefill_s += result.prefill_s
        self._counters.decode_s += result.decode_s
        self._settle(tick, result)
        self._count_memory()
        return True

    async def _clean(self) -> None:
        """Zeroes what may not be finite; pages that are given back meanwhile wait for the next tick."""
        if pages := tuple(self._table.pages.unclean):
            await self._device.run(self._pool.clean, pages)
            self._table.pages.cleaned(pages)

    def _queue_again(self) -> None:
        """Turns that lost their place wait before all others, the earliest first."""
        for episode in self._table.set_back:
            self._waiting.appendleft(self._turns[episode])
            self._counters.requeued_turns += 1
        self._table.set_back.clear()

    def _count_memory(self) -> None:
        counters = self._counters
        counters.live_kv_bytes = max(counters.live_kv_bytes, self._table.cached_tokens * self._token_bytes)
        counters.allocated_kv_bytes = max(counters.allocated_kv_bytes, self._pool.nbytes)

    def _admit(self) -> None:
        """Lets waiting turns begin in the order they came, until one has to wait."""
        while self._waiting:
            turn = self._waiting[0]
            try:
                self._check_held(turn.request.episode)
                if self._table.admit(turn.request.episode, turn.context, turn.request.prompt_length) is None:
                    break
            except (ValueError, ConfigError) as error:
                self._forget(turn)
                _reject(turn, error)
                continue
            self._waiting.popleft()
            if turn.queue_s is None:
                turn.queue_s = time.monotonic() - turn.asked_s

    def _check_held(self, episode: EpisodeId) -> None:
        held = len(self._table.slots)
        if self.config.deterministic and held >= self._episodes and self._table.slot_of(episode) is None:
            raise ConfigError(
                f"{episode}: deterministic=True keeps the caches of {self._episodes} concurrent episodes, and so many "
                "are held: release one, or make the engine for more episodes"
            )

    def _settle(self, tick: Tick, result: TickResult) -> None:
        """Books a tick."""
        counters = self._counters
        counters.cloned_tokens += tick.cloned_tokens
        counters.prefilled_tokens += tick.prefilled_tokens
        counters.reprefilled_tokens += tick.reprefilled_tokens
        for dispatch, outcome in zip(tick.dispatches, result.outcomes, strict=False):
            if isinstance(outcome, Failure):
                if isinstance(dispatch, PrefillDispatch):
                    self._table.discard_prompts(dispatch.prompts)
                for slot in dispatch.slots:
                    self._discard(slot, repr(outcome.error))
            elif isinstance(outcome, Samples):
                self._settle_decode(dispatch, outcome)
        if result.cache_lost:
            self._table.forget_caches()

    def _settle_decode(self, dispatch: DecodeDispatch, samples: Samples) -> None:
        self._counters.decode_steps += samples.steps
        self._counters.decode_rows += samples.steps * len(dispatch.tokens)
        for row, (slot, turn) in enumerate(zip(dispatch.slots, dispatch.turns, strict=True)):
            computed = min(samples.steps, turn.remaining)  # by this row, unless an end token stopped it
            ids, logprobs = samples.ids[row, :computed], samples.logprobs[row, :computed]
            running = self._turns.get(turn.request.episode) is turn  # or cancelled, released or failed meanwhile
            kept = turn.recorder.take(ids, logprobs)
            self._counters.active_rows += kept
            finite = np.isfinite(logprobs)
            if not finite.all():  # and so perhaps keys and values
                self._table.pages.spoil(dispatch.work.of_row(row))
            if running and not finite[:kept].all():
                self._discard(slot, "log-probs are not finite")
                continue
            if not running:
                continue
            self._counters.sampled_tokens += kept
            if turn.recorder.stop is StopReason.TAG:
                self._counters.discarded_tokens += computed - kept
            self._table.sampled(slot, ids[:kept])
            if turn.recorder.stop is not None:
                (self._table.pause if finite.all() else self._table.discard)(slot)  # spoilt behind its end, perhaps
                self._forget(turn)
                if not turn.future.done():  # its caller may just have been cancelled
                    turn.future.set_result(dataclasses.replace(turn.recorder.result(), queue_s=turn.queue_s))

    def _discard(self, slot: Slot, reason: str) -> None:
        """The slot's cache cannot be trusted: it is freed, and its turn fails."""
        if slot.state is SlotState.GONE:
            return
        turn = self._turns.get(slot.episode)
        self._table.discard(slot)
        if turn is not None:
            self._fail(turn, reason)

    def _fail(self, turn: Turn, reason: str) -> None:
        self._forget(turn)
        self._table.release(turn.request.episode)
        self._counters.failed_turns += 1
        message = f"turn {turn.request.turn} of {turn.request.episode}: {reason}"
        _reject(turn, InfrastructureFailure(FailureCause.SAMPLER_FAULT, message))

    def _forget(self, turn: Turn) -> None:
        """Takes a turn out of the books."""
        if self._turns.get(turn.request.episode) is turn:
            del self._turns[turn.request.episode]
        if turn in self._waiting:
            self._waiting.remove(turn)


def _reject(turn: Turn, error: Exception) -> None:
    if not turn.future.done():  # its caller may just have been cancelled
        turn.future.set_exception(error)
