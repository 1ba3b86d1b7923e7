"""A sampler that journals: a turn that was sampled once is never sampled otherwise."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np

from rw.sampler.interface import EpisodeId, SampledTurn, Sampler, StopReason, TurnRequest
from rw.types import PublishedWeights
from rw.workers.journal import Journal, JournaledTurn, context_digest

_LOG = logging.getLogger(__name__)


class JournaledSampler:
    """The turns of one scope through another sampler.

    Args:
        decode_again: decodes journaled turns again, so that caches become what they were, bit for bit, and so the turns
            after them. For samplers that promise equal results; where one differs all the same, the journaled turn is
            the one that counts.
    """

    def __init__(self, sampler: Sampler, journal: Journal, decode_again: bool = False):
        self._sampler, self._journal, self._decode_again = sampler, journal, decode_again

    async def generate(self, request: TurnRequest) -> SampledTurn:
        """One turn, from the journal where it has one that was sampled on this very context."""
        place = (request.episode.query_id, request.episode.rollout, request.turn, context_digest(request.tokens))
        kept = self._journal.turn(*place)
        if kept is None:
            sampled = await self._sampler.generate(request)
            self._journal.write_turn(*place, JournaledTurn(sampled.tokens, sampled.logprobs, sampled.stop.value))
            return sampled
        if self._decode_again:
            sampled = await self._sampler.generate(request)
            if np.array_equal(sampled.tokens, kept.tokens) and np.array_equal(sampled.logprobs, kept.logprobs):
                return dataclasses.replace(sampled, is_replayed=True)
            _LOG.warning("%s: rollout %d, turn %d came out otherwise; the journaled one counts", *place[:3])
            await self._sampler.release(request.episode)
        return SampledTurn(kept.tokens, kept.logprobs, StopReason(kept.stop), is_replayed=True)

    async def release(self, episode: EpisodeId) -> None:
        """Forgets the episode's KV."""
        await self._sampler.release(episode)

    async def publish(self, weights: PublishedWeights) -> None:
        """Switches to new weights."""
        await self._sampler.publish(weights)
