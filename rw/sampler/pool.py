"""The cache pool and the running of a tick on it. Used on the device thread only; knows rows, not episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rw.model import cache as kv
from rw.model.config import ModelConfig
from rw.model.qwen3 import UnstackedParams
from rw.sampler import decode as programs
from rw.sampler.interface import SamplingConfig
from rw.sampler.shapes import EngineConfig
from rw.sampler.tick import CloneDispatch, DecodeDispatch, Dispatch, PrefillDispatch, Tick


@dataclasses.dataclass(frozen=True)
class Failure:
    """A dispatch that did not run to its end."""

    error: Exception


@dataclasses.dataclass(frozen=True)
class Samples:
    """ids i32[W, steps] and log-probs f32[W, steps] of a decode dispatch."""

    ids: np.ndarray
    logprobs: np.ndarray


@dataclasses.dataclass
class TickResult:
    """One outcome per dispatch that was begun: Samples, Failure, or None where a clone or prefill was issued."""

    outcomes: list[Any]
    cache_lost: bool  # a failure took the pool with it: every slot is empty, and dispatches may be missing at the end


class CachePool:
    """One cache row per slot and a spare one, in one array a layer and kind."""

    def __init__(
        self,
        model_config: ModelConfig,
        sampling: SamplingConfig,
        config: EngineConfig,
        vocab_size: int,
        base_key: np.ndarray,
    ):
        self._model_config, self._sampling, self._config = model_config, sampling, config
        self._vocab_size, self._base_key = vocab_size, base_key
        self._cache: kv.Cache | None = None
        self.nbytes = 0

    def drop(self) -> None:
        """Gives the memory back; the next tick starts with an empty pool."""
        self._cache, self.nbytes = None, 0

    def clear(self, rows: Sequence[int]) -> None:
        """Empties rows in which keys or values may not be finite: what attention masks is multiplied by 0, and NaN
        stays NaN, so they would spoil whoever comes next. The spare row, which nothing is ever stored in, is copied."""
        if self._cache is None:
            return
        width, spare = self._config.clone_rows, self._config.slots
        for start in range(0, len(rows), width):
            part = rows[start : start + width]
            targets = np.array([*part, *[spare] * (width - len(part))], np.int32)
            sources = np.full(width, spare, np.int32)
            self._cache = programs.clone(self._cache, sources, targets, kv.capacity(self._cache))

    def run(self, params: UnstackedParams, tick: Tick) -> TickResult:
        """Issues all dispatches, then fetches what they sampled. A failure concerns its own dispatch alone, unless it
        took the pool with it."""
        handles: list[Any] = []
        for dispatch in tick.dispatches:
            handles.append(self._guarded(self._issue, params, dispatch))
            if isinstance(handles[-1], Failure) and not self._intact():
                break
        outcomes = [self._guarded(_fetch, handle) for handle in handles]
        lost = any(isinstance(outcome, Failure) for outcome in outcomes) and not self._intact()
        if lost:
            self.drop()
        return TickResult(outcomes, lost)

    @staticmethod
    def _guarded(function, *args) -> Any:
        try:
            return function(*args)
        except Exception as error:  # whatever a device or compiler may raise; the episodes concerned are told
            return Failure(error)

    def _reserve(self, params: UnstackedParams, capacity: int) -> None:
        if self._cache is None:
            rows = self._config.slots + 1
            cache = kv.init_cache(self._model_config, rows, max(capacity, self._config.lengths[0]))
            self._cache = _placed_like(cache, params)
        elif kv.capacity(self._cache) < capacity:
            self._cache = programs.grow(self._cache, capacity)
        self.nbytes = sum(array.nbytes for array in jax.tree.leaves(self._cache))

    def _intact(self) -> bool:
        arrays = jax.tree.leaves(self._cache)  # none where it could not even be made
        if any(array.is_deleted() for array in arrays):  # given to a program that then failed
            return False
        try:
            jax.block_until_ready(arrays)
        except jax.errors.JaxRuntimeError:
            return False
        return True

    def _issue(self, params: UnstackedParams, dispatch: Dispatch) -> Any:
        self._reserve(params, dispatch.length)
        if isinstance(dispatch, CloneDispatch):
            self._cache = programs.clone(self._cache, dispatch.sources, dispatch.targets, dispatch.length)
            return None
        work = programs.gather(self._cache, dispatch.rows, dispatch.length)
        if isinstance(dispatch, PrefillDispatch):
            work = programs.prefill(params, work, dispatch.tokens, dispatch.positions, self._model_config)
            count = dispatch.tokens.shape[1]
            self._cache = programs.store(self._cache, work, dispatch.rows, dispatch.starts, count)
            return None
        return self._issue_decode(params, dispatch, work)

    def _issue_decode(self, params: UnstackedParams, dispatch: DecodeDispatch, work: kv.Cache) -> Any:
        rows = programs.DecodeRows(dispatch.tokens, dispatch.positions, dispatch.words, dispatch.offsets)
        steps = self._config.steps_per_dispatch
        work, ids, logprobs = programs.decode(
            params, work, self._base_key, rows, self._model_config, self._sampling, self._vocab_size, steps
        )
        self._cache = programs.store(self._cache, work, dispatch.rows, dispatch.positions, steps)
        return ids, logprobs

    def warm_up(self, params: UnstackedParams) -> int:
        """Runs every program in every shape once, on padding alone; returns how many were compiled.

        The pool takes its largest size on the way: where that does not fit, it is better known now.
        """
        before = programs.compiled_programs()
        lengths = self._config.lengths
        self.drop()
        for place, capacity in enumerate(lengths):
            self._reserve(params, capacity)
            for length in lengths[: place + 1]:
                for dispatch in self._padding_dispatches(length):
                    jax.block_until_ready(self._issue(params, dispatch))
        jax.block_until_ready(self._cache)
        self.drop()
        return programs.compiled_programs() - before

    def _padding_dispatches(self, length: int) -> list[Dispatch]:
        config = self._config

        def spare(width):
            return np.full(width, config.slots, np.int32)

        def empty(width):
            return np.zeros(width, np.int32)

        dispatches: list[Dispatch] = [CloneDispatch(length, (), spare(config.clone_rows), spare(config.clone_rows))]
        for rows in config.prefill_rows:
            tokens = np.zeros((rows, config.prefill_chunk), np.int32)
            dispatches.append(PrefillDispatch(length, (), spare(rows), empty(rows), tokens, np.full_like(tokens, -1)))
        for width in config.decode_widths:
            words = np.zeros((width, 4), np.uint32)
            nothing = np.full(width, -1, np.int32)
            dispatches.append(DecodeDispatch(length, (), (), spare(width), empty(width), nothing, words, empty(width)))
        return dispatches


def _fetch(handle: Any) -> Any:
    if handle is None or isinstance(handle, Failure):
        return handle
    ids, logprobs = handle
    return Samples(np.asarray(ids), np.asarray(logprobs))


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
