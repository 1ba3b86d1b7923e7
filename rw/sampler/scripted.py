"""A sampler that is told what to write: scripted routers run through the same episodes as a model. No jax."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from rw.protocol.chat import END_OF_TEXT, IM_END, TokenCodec
from rw.sampler.interface import EpisodeId, SampledTurn, StopReason, TurnRequest
from rw.sampler.turns import TurnRecorder
from rw.types import PublishedWeights


class ScriptView:
    """What a script may read of the context: its text, decoded when asked for, control tokens as their literals."""

    def __init__(self, codec: TokenCodec, request: TurnRequest):
        self._codec, self._request = codec, request

    @functools.cached_property
    def text(self) -> str:
        """The whole context."""
        return self._codec.decode(self._request.tokens)

    @functools.cached_property
    def prompt(self) -> str:
        """Turn 1's prompt: the selector and the query in their chat frame."""
        return self._codec.decode(self._request.tokens[: self._request.prompt_length])

    @functools.cached_property
    def response(self) -> str:
        """All that follows the prompt: the router's turns, rules, observations, routing states."""
        return self._codec.decode(self._request.tokens[self._request.prompt_length :])


Script = Callable[[TurnRequest, ScriptView], "str | np.ndarray"]


class ScriptedSampler:
    """The Sampler protocol over a function that writes each turn. Log-probs are 0: a script is sure of what it says.

    A script returns text or exact ids. Text is encoded as plain text; one that ends with the literal of an end token
    ends with that token, and one that runs out before a stop tag or `max_tokens` ends, as a router would, with
    `<|im_end|>`. Exact ids i32[n] are taken as they are, and count as cut (LENGTH) where they run out. Either is cut at
    the token that ends the turn, like sampled ones.
    """

    def __init__(self, codec: TokenCodec, script: Script):
        self._codec, self._script = codec, script

    async def generate(self, request: TurnRequest) -> SampledTurn:
        """Asks the script for the turn. What the script raises is raised."""
        written = self._script(request, ScriptView(self._codec, request))
        ids = self._encode(written) if isinstance(written, str) else np.asarray(written, np.int32)
        recorder = TurnRecorder(self._codec, request)
        recorder.take(ids, np.zeros(len(ids), np.float32))
        if recorder.stop is None:
            recorder.stop = StopReason.LENGTH
        return recorder.result()

    def _encode(self, text: str) -> np.ndarray:
        end = self._codec.im_end
        if text.endswith(IM_END):
            text = text.removesuffix(IM_END)
        elif text.endswith(END_OF_TEXT):
            text, end = text.removesuffix(END_OF_TEXT), self._codec.endoftext
        return np.append(self._codec.encode_text(text), np.int32(end)).astype(np.int32)

    async def release(self, episode: EpisodeId) -> None:
        """A script holds nothing."""

    async def publish(self, weights: PublishedWeights) -> None:
        """A script has no weights."""
