"""A router turn that is sampled, and where it ends: stop tags, end tokens and the length limit, settled on sampled ids.
No jax, no model."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np

from rw.protocol.chat import TokenCodec
from rw.protocol.stop import StopScanner
from rw.sampler.interface import SampledTurn, StopReason, TurnRequest


class TurnRecorder:
    """Collects the sampled tokens of one turn until it ends. The ids are kept as sampled; no end is ever made up."""

    def __init__(self, codec: TokenCodec, request: TurnRequest):
        if request.max_tokens < 1:
            raise ValueError(f"max_tokens={request.max_tokens} of {request.episode}: must be at least 1")
        self._end_tokens = codec.end_tokens
        self._scanner = StopScanner(codec, request.stop_tags)
        self._max_tokens = request.max_tokens
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.stop: StopReason | None = None

    def take(self, tokens: np.ndarray, logprobs: np.ndarray) -> int:
        """Takes i32[n], f32[n] in order up to the token that ends the turn; returns how many were taken."""
        taken = 0
        for token, logprob in zip(tokens.tolist(), logprobs.tolist(), strict=True):
            if self.stop is not None:
                break
            self.tokens.append(token)
            self.logprobs.append(logprob)
            taken += 1
            self.stop = self._reason(token)
        return taken

    def _reason(self, token: int) -> StopReason | None:
        if token in self._end_tokens:
            return StopReason.END_TOKEN
        if self._scanner.feed(token):
            return StopReason.TAG
        return StopReason.LENGTH if len(self.tokens) == self._max_tokens else None

    def result(self) -> SampledTurn:
        """The turn as it ended; RuntimeError while it goes on."""
        if self.stop is None:
            raise RuntimeError("the turn has not ended")
        return SampledTurn(np.array(self.tokens, np.int32), np.array(self.logprobs, np.float32), self.stop)


@dataclasses.dataclass(eq=False)
class Turn:
    """A turn that is being sampled."""

    request: TurnRequest
    recorder: TurnRecorder
    words: np.ndarray  # u32[4], what its key is folded from
    future: asyncio.Future[SampledTurn]
    asked_s: float  # by the monotonic clock
    queue_s: float | None = None  # until it first began

    @property
    def remaining(self) -> int:
        """Tokens that it may still sample."""
        return self.request.max_tokens - len(self.recorder.tokens)

    @property
    def context(self) -> np.ndarray:
        """i32[T]: all tokens so far, those that it has sampled included."""
        return np.concatenate([self.request.tokens, np.array(self.recorder.tokens, np.int32)])
