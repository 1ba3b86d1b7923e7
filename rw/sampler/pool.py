"""The cache pool and the running of a tick on it. Used on the device thread only; knows pages, not episodes."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rw.model import cache as kv
from rw.model.config import ModelConfig
from rw.model.qwen3 import UnstackedParams
from rw.sampler import decode as programs
from rw.sampler.interface import SamplingConfig
from rw.sampler.pages import SCRATCH
from rw.sampler.shapes import EngineConfig
from rw.sampler.tick import CopyDispatch, DecodeDispatch, Dispatch, PrefillDispatch, Tick
from rw.sampler.work import Pages, Rows, work_of

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Failure:
    """A dispatch that did not run to its end."""

    error: Exception


@dataclasses.dataclass(frozen=True)
class Samples:
    """ids i32[W, steps] and log-probs f32[W, steps] of a decode dispatch, of which so many steps were computed."""

    ids: np.ndarray
    logprobs: np.ndarray
    steps: int


@dataclasses.dataclass
class TickResult:
    """One outcome per dispatch that was begun: Samples, Failure, or None where a copy or prefill was issued."""

    outcomes: list[Any]
    prefill_s: float  # until copies and prefills were done
    decode_s: float  # from then on
    cache_lost: bool  # a failure took the pool with it: every slot is empty, and dispatches may be missing at the end


class CachePool:
    """Pages and a scratch page before them, in one array a layer and kind."""

    def __init__(
        self,
        model_config: ModelConfig,
        sampling: SamplingConfig,
        config: EngineConfig,
        sizes: Sequence[int],
        vocab_size: int,
        end_tokens: Sequence[int],
        base_key: np.ndarray,
    ):
        """`sizes`: the pages that it may have, ascending, the scratch page not counted."""
        self._model_config, self._sampling, self._config = model_config, sampling, config
        self._sizes = tuple(sizes)
        self._vocab_size, self._end_tokens, self._base_key = vocab_size, tuple(sorted(end_tokens)), base_key
        self._cache: kv.Cache | None = None
        self.nbytes = 0

    def drop(self) -> None:
        """Gives the memory back; the next tick starts with an empty pool."""
        self._cache, self.nbytes = None, 0

    def clean(self, pages: Sequence[int]) -> None:
        """Empties pages in which keys or values may not be finite: what attention masks is multiplied by 0, and NaN
        stays NaN, so they would spoil whoever comes next. The scratch page, which is always zero, is copied."""
        if self._cache is None:
            return
        width = self._config.clone_rows
        for start in range(0, len(pages), width):
            part = list(pages[start : start + width])
            targets = np.array(part + [SCRATCH] * (width - len(part)), np.int32)
            self._copy(np.full(width, SCRATCH, np.int32), targets)

    def run(self, params: UnstackedParams, tick: Tick) -> TickResult:
        """Issues all dispatches, then fetches what they sampled. A failure concerns its own dispatch alone, unless it
        took the pool with it."""
        start = time.monotonic()
        decodes = sum(isinstance(dispatch, DecodeDispatch) for dispatch in tick.dispatches)  # behind all others
        fills = len(tick.dispatches) - decodes
        handles: list[Any] = []
        filled = start
        for place, dispatch in enumerate(tick.dispatches):
            handles.append(self._guarded(self._issue, params, dispatch, tick.pages))
            if isinstance(handles[-1], Failure) and not self._intact():
                break
            if place + 1 == fills:  # waited for, so that each kind's time is known
                self._guarded(jax.block_until_ready, self._cache)
                filled = time.monotonic()
        outcomes = [self._guarded(_fetch, handle) for handle in handles]
        lost = any(isinstance(outcome, Failure) for outcome in outcomes) and not self._intact()
        if lost:
            self.drop()
        return TickResult(outcomes, filled - start, time.monotonic() - filled, lost)

    @staticmethod
    def _guarded(function, *args) -> Any:
        try:
            return function(*args)
        except Exception as error:  # whatever a device or compiler may raise; the episodes concerned are told
            log.warning("the device failed the sampler: %s: %s", type(error).__name__, error)
            return Failure(error)

    def _reserve(self, params: UnstackedParams, pages: int) -> None:
        """Sees to it that the pool has so many pages besides the scratch page. It grows from one of its sizes to the
        next, whose programs are known, however far it has to."""
        if self._cache is None:
            self._cache = _placed_like(kv.init_cache(self._model_config, pages + 1, self._config.page_tokens), params)
        for size in self._sizes:
            if self._cache[0][0].shape[0] - 1 < size <= pages:
                for i, layer in enumerate(self._cache):  # one by one: only one layer lies there twice
                    self._cache[i] = programs.grow(layer, size + 1)
        self.nbytes = sum(array.nbytes for array in jax.tree.leaves(self._cache))

    def _intact(self) -> bool:
        arrays = jax.tree.leaves(self._cache)  # none where it could not even be made
        if any(array.is_deleted() for array in arrays):  # given to a program that then failed
            return False
        if len({array.shape[0] for array in arrays}) > 1:  # it failed to grow: some layers lack pages that others have
            return False
        try:
            jax.block_until_ready(arrays)
        except jax.errors.JaxRuntimeError:
            return False
        return True

    def _issue(self, params: UnstackedParams, dispatch: Dispatch, pages: int) -> Any:
        self._reserve(params, pages)
        if isinstance(dispatch, CopyDispatch):
            self._copy(dispatch.sources, dispatch.targets)
            return None
        new, sampled = self._compute(params, dispatch)
        for i, (layer, written) in enumerate(zip(self._cache, new, strict=True)):
            self._cache[i] = programs.put(layer, written, dispatch.work.written.reshape(-1))
        return sampled

    def _compute(self, params: UnstackedParams, dispatch: PrefillDispatch | DecodeDispatch) -> tuple[kv.Cache, Any]:
        """The pages that a dispatch wrote to, not yet in the pool, and what it sampled, or None."""
        work = [programs.gather(layer, dispatch.work.pages) for layer in self._cache]
        page, count = self._config.page_tokens, dispatch.work.written.shape[1]
        places = _places(dispatch.work)
        if isinstance(dispatch, PrefillDispatch):
            arrays = dispatch.tokens, dispatch.positions, places
            return programs.prefill(params, work, *arrays, self._model_config, page, count)[1], None
        rows = programs.DecodeRows(
            dispatch.tokens, dispatch.positions, dispatch.words, dispatch.offsets, dispatch.limits
        )
        how = self._model_config, self._sampling, self._vocab_size, self._end_tokens
        steps = self._config.steps_per_dispatch
        _, new, *sampled = programs.decode(params, work, self._base_key, rows, places, *how, steps, page, count)
        return new, sampled

    def _copy(self, sources: np.ndarray, targets: np.ndarray) -> None:
        for i, layer in enumerate(self._cache):
            self._cache[i] = programs.copy(layer, sources, targets)

    def warm_up(self, params: UnstackedParams) -> int:
        """Runs every program in every shape once, on padding alone; returns how many were compiled.

        The pool takes its largest size on the way: where that does not fit, it is better known now.
        """
        before = programs.compiled_programs()
        self.drop()
        try:
            self._run_every_shape(params)
        finally:
            self.drop()
        return programs.compiled_programs() - before

    def _run_every_shape(self, params: UnstackedParams) -> None:
        dispatches = self._padding_dispatches()
        self._reserve(params, self._sizes[0])
        # What a dispatch computes does not depend on the pool's size; how it is gathered and put back does.
        new = [self._compute(params, dispatch)[0][0] for dispatch in dispatches]
        scratch = np.full(self._config.clone_rows, SCRATCH, np.int32)
        for size in self._sizes:
            self._reserve(params, size)
            self._cache[0] = programs.copy(self._cache[0], scratch, scratch)
            for dispatch, written in zip(dispatches, new, strict=True):
                jax.block_until_ready(programs.gather(self._cache[0], dispatch.work.pages))
                self._cache[0] = programs.put(self._cache[0], written, dispatch.work.written.reshape(-1))
        jax.block_until_ready(self._cache)

    def _padding_dispatches(self) -> list[PrefillDispatch | DecodeDispatch]:
        config, dispatches = self._config, []
        for place in range(len(config.lengths)):
            lengths = config.lengths[place:]
            for width in config.prefill_rows:
                tokens = np.zeros((width, config.prefill_chunk), np.int32)
                work = work_of((), (), width, config.prefill_chunk, config, lengths)
                dispatches.append(PrefillDispatch((), (), work, tokens, np.full_like(tokens, -1)))
            for width in config.decode_widths:
                empty, nothing = np.zeros(width, np.int32), np.full(width, -1, np.int32)
                words = np.zeros((width, 4), np.uint32)
                work = work_of((), (), width, config.steps_per_dispatch, config, lengths)
                dispatches.append(DecodeDispatch((), (), work, empty, nothing, words, empty, empty))
        return dispatches


def _places(work: Rows | Pages) -> programs.InRows | programs.InPages:
    return programs.InRows(work.firsts) if isinstance(work, Rows) else programs.InPages(work.tables, work.places)


def _fetch(handle: Any) -> Any:
    if handle is None or isinstance(handle, Failure):
        return handle
    ids, logprobs, steps = handle
    return Samples(np.asarray(ids), np.asarray(logprobs), int(steps))


def _placed_like(cache: kv.Cache, params: UnstackedParams) -> kv.Cache:
    """The cache on the devices of the weights, so that the first call of a program has the arguments of all others.

    Where weights are split over `tensor`, so are the key/value heads: a whole cache would not fit beside them.
    """
    weight = jax.tree.leaves(params)[0]
    if not weight.committed:
        return cache
    sharding = weight.sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        heads = "tensor" if "tensor" in sharding.mesh.axis_names else None
        sharding = jax.sharding.NamedSharding(sharding.mesh, jax.P(None, heads))
    return jax.device_put(cache, sharding)
