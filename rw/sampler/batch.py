"""The plain sampler: every turn prefills its whole context into a cache of its own and decodes token by token.

Slow and simple. It keeps nothing between turns, so nothing could be stale: the engine is tested against it.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rw.errors import FailureCause, InfrastructureFailure
from rw.model.cache import Cache, init_cache
from rw.model.config import ModelConfig
from rw.model.logprobs import logits
from rw.model.qwen3 import UnstackedParams, hidden_states
from rw.protocol.chat import TokenCodec
from rw.sampler.device import DeviceThread
from rw.sampler.interface import EpisodeId, SampledTurn, SamplingConfig, TurnRequest
from rw.sampler.keys import base_key, token_key, turn_key
from rw.sampler.sampling import check_sampling, sample
from rw.sampler.turns import TurnRecorder
from rw.types import PublishedWeights

SMALLEST_CAPACITY = 64


class BatchSampler:
    """The Sampler protocol, one turn at a time."""

    def __init__(
        self,
        codec: TokenCodec,
        model_config: ModelConfig,
        sampling: SamplingConfig,
        device: DeviceThread,
        key_seed: int,
    ):
        check_sampling(sampling)
        self._codec, self._config, self._sampling, self._device = codec, model_config, sampling, device
        self._base_key = base_key(key_seed)
        self._weights: PublishedWeights | None = None

    async def publish(self, weights: PublishedWeights) -> None:
        """Samples later turns with these weights."""
        self._weights = weights

    async def release(self, episode: EpisodeId) -> None:
        """Nothing is kept between turns."""

    async def generate(self, request: TurnRequest) -> SampledTurn:
        """Samples one turn; RuntimeError before weights are published."""
        if self._weights is None:
            raise RuntimeError("publish weights before sampling")
        recorder = TurnRecorder(self._codec, request)
        try:
            return await self._device.run(self._sample_turn, self._weights.params, request, recorder)
        except jax.errors.JaxRuntimeError as error:
            raise InfrastructureFailure(FailureCause.SAMPLER_FAULT, str(error)) from error

    def _sample_turn(self, params: UnstackedParams, request: TurnRequest, recorder: TurnRecorder) -> SampledTurn:
        known = len(request.tokens) - 1
        capacity = max(SMALLEST_CAPACITY, 1 << (known + request.max_tokens).bit_length())
        cache = init_cache(self._config, 1, capacity)
        tokens, positions = np.zeros((1, capacity), np.int32), np.full((1, capacity), -1, np.int32)
        tokens[0, :known], positions[0, :known] = request.tokens[:-1], np.arange(known)
        width = max(SMALLEST_CAPACITY, 1 << known.bit_length())
        cache = _prefill(params, cache, tokens[:, :width], positions[:, :width], self._config)
        episode = request.episode
        key = turn_key(self._base_key, episode.step, episode.query_id, episode.rollout, request.turn)
        token = request.tokens[-1:]
        while recorder.stop is None:
            index = len(recorder.tokens)
            cache, token, logprob = _step(
                params,
                cache,
                jnp.asarray(token),
                jnp.int32(known + index),
                token_key(key, index),
                self._config,
                self._sampling,
                self._codec.vocab_size,
            )
            recorder.take(np.asarray(token), np.asarray(logprob))
        return recorder.result()


@partial(jax.jit, static_argnames="config", donate_argnames="cache")
def _prefill(
    params: UnstackedParams, cache: Cache, tokens: jax.Array, positions: jax.Array, config: ModelConfig
) -> Cache:
    return hidden_states(params, config, tokens, positions, cache)[1]


@partial(jax.jit, static_argnames=("config", "sampling", "vocab_size"), donate_argnames="cache")
def _step(
    params: UnstackedParams,
    cache: Cache,
    token: jax.Array,
    position: jax.Array,
    key: jax.Array,
    config: ModelConfig,
    sampling: SamplingConfig,
    vocab_size: int,
) -> tuple[Cache, jax.Array, jax.Array]:
    """One token: (cache, id i32[1], log-prob f32[1])."""
    hidden, cache = hidden_states(params, config, token[:, None], position[None, None], cache)
    row_logits = logits(params, config, hidden[:, 0])
    ids, logprobs = sample(row_logits, key[None], sampling.temperature, sampling.top_p, sampling.greedy, vocab_size)
    return cache, ids, logprobs
