"""The policy loss of a micro-batch, as functions of the parameters for others to differentiate.

Knows no gradients, no groups and no step.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rw.core.losses import LossConfig, comet_loss, loss_sums
from rw.learner.batch import BatchConfig, MicroBatch
from rw.learner.diagnostics import TokenRecord
from rw.learner.programs import policy_logprobs
from rw.model.config import ModelConfig
from rw.types import Segment, TokenBatch, TokenCounts

LOSS_TERMS = ("loss/pg_mode", "loss/pg_inner", "loss/kl")  # of comet_loss, whose loss is (1, 1, β) times them
INNER_TERMS = LOSS_TERMS[1:]


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
    """All terms at one sampling temperature, which π_θ, π_old and π_ref share."""

    model_config: ModelConfig
    batch: BatchConfig
    loss: LossConfig
    temperature: float

    def logprobs(self, params: Any, micro: MicroBatch) -> jax.Array:
        """f32[B, P]: of the policy tokens."""
        return policy_logprobs(params, self.model_config, micro, self.temperature, self.batch.logprob_chunk)[0]

    def divided(self, params: Any, micro: MicroBatch, normalisers: TokenCounts, weights: jax.Array):
        """(weighted sum of the loss terms, (terms, record)). Weights are an argument: one program serves all."""
        logprobs, policy, record = self._judged(params, micro)
        by_segment = dataclasses.replace(self.loss, reduction="segment")  # one token mean is equal normalisers
        _, terms = comet_loss(logprobs, policy, normalisers, by_segment)
        return sum(weights[index] * terms[name] for index, name in enumerate(LOSS_TERMS)), (terms, record)

    def inner_sums(self, params: Any, micro: MicroBatch):
        """(undivided sums f32[2] of INNER_TERMS over inner tokens, (these by name, record))."""
        logprobs, policy, record = self._judged(params, micro)
        is_mode = policy.segments == int(Segment.MODE)
        inner = policy._replace(segments=jnp.where(is_mode, int(Segment.OBSERVATION), policy.segments))
        sums = loss_sums(logprobs, inner, self.loss)
        terms = dict(zip(INNER_TERMS, (sums.inner, sums.kl), strict=True))
        return jnp.stack(list(terms.values())), (terms, record)

    def _judged(self, params: Any, micro: MicroBatch) -> tuple[jax.Array, TokenBatch, TokenRecord]:
        """(log π_θ, the policy tokens with π_old as the config has it, what the diagnostics read)."""
        chunk = self.batch.logprob_chunk
        logprobs, entropy = policy_logprobs(params, self.model_config, micro, self.temperature, chunk)
        policy = micro.policy
        if self.batch.old_policy == "current":
            # One update from the policy that sampled: π_old is π_θ, and the sampler's rounding stays outside.
            policy = policy._replace(old_logprobs=jax.lax.stop_gradient(logprobs))
        return logprobs, policy, TokenRecord(policy, logprobs, micro.policy.old_logprobs, entropy)
