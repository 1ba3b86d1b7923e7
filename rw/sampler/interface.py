"""The seam between rollouts and whatever samples router turns: a device engine, a plain batch sampler, or a script."""

from __future__ import annotations

import dataclasses
import enum
from typing import Protocol

import numpy as np

from rw.types import PublishedWeights


@dataclasses.dataclass(frozen=True)
class EpisodeId:
    """Identity of an episode: its slot, and with the turn its sampling key (folded from step, query, rollout, turn)."""

    step: int
    query_id: str
    rollout: int


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """Router decoding. The paper trains with temperature 0.8 and top-p 0.95 (Appendix C.3) and tests greedily."""

    temperature: float = 0.8
    top_p: float = 0.95
    greedy: bool = False


class StopReason(enum.StrEnum):
    """Why a router turn ended."""

    TAG = "tag"  # the last token completes a stop tag
    END_TOKEN = "end_token"  # the last token is <|im_end|> or <|endoftext|>
    LENGTH = "length"  # max_tokens reached without either


@dataclasses.dataclass(frozen=True)
class TurnRequest:
    """One router turn to sample. `tokens` is the whole context, always an extension of the episode's previous one."""

    episode: EpisodeId
    turn: int  # 0 is the mode turn, also where the mode is forced and the turn is not sampled
    tokens: np.ndarray  # i32[T]
    prompt_length: int  # the first tokens, shared by the rollouts of a query
    max_tokens: int
    stop_tags: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class SampledTurn:
    """The sampled ids as they are (a sampled end token included) with log-softmax(logits / T) of each, f32[n]."""

    tokens: np.ndarray  # i32[n]
    logprobs: np.ndarray  # f32[n]
    stop: StopReason
    queue_s: float = 0.0  # until the sampler took it up; 0 for samplers without a queue
    is_replayed: bool = False  # a journal had it


class Sampler(Protocol):
    """What an episode needs of a sampler."""

    async def generate(self, request: TurnRequest) -> SampledTurn:
        """Samples one turn; raises InfrastructureFailure(SAMPLER_FAULT) where the device failed. Safe to cancel."""

    async def release(self, episode: EpisodeId) -> None:
        """Forgets the episode's KV; unknown episodes are ignored."""

    async def publish(self, weights: PublishedWeights) -> None:
        """Switches to new weights and drops every cache of the old ones."""
