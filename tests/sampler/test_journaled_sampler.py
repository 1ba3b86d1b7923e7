"""A journaled sampler: sampled turns come back as they were, also where the sampler would now say something else."""

import numpy as np
import pytest

from rw.sampler.interface import EpisodeId, SampledTurn, StopReason, TurnRequest
from rw.sampler.journaled import JournaledSampler
from rw.workers.journal import Journal


class Sampler:
    """Says the next token each time it is asked."""

    def __init__(self, token=0):
        self.token, self.requests, self.released = token, [], []

    async def generate(self, request):
        self.requests.append(request)
        self.token += 1
        return SampledTurn(np.array([self.token], np.int32), np.array([-0.5], np.float32), StopReason.TAG)

    async def release(self, episode):
        self.released.append(episode)


def turn(number, *tokens):
    episode = EpisodeId(step=1, query_id="q1", rollout=2)
    return TurnRequest(episode, number, np.array(tokens, np.int32), 1, 64, ("</mode>",))


@pytest.mark.parametrize("decode_again", [False, True])
async def test_a_journaled_turn_is_the_one_that_counts(tmp_path, decode_again):
    sampler = Sampler()
    first = await JournaledSampler(sampler, Journal(tmp_path, {})).generate(turn(0, 7))
    restarted = JournaledSampler(sampler, Journal(tmp_path, {}), decode_again)
    kept = await restarted.generate(turn(0, 7))
    assert (kept.tokens.tolist(), kept.logprobs.tolist(), kept.stop) == ([1], [-0.5], StopReason.TAG)
    assert (first.tokens.tolist(), first.stop) == ([1], StopReason.TAG)
    assert (first.is_replayed, kept.is_replayed) == (False, True)
    assert len(sampler.requests) == 1 + decode_again
    assert len(sampler.released) == decode_again  # it decoded otherwise: its caches hold what nobody said


async def test_turns_that_decode_to_the_same_keep_their_caches(tmp_path):
    await JournaledSampler(Sampler(), Journal(tmp_path, {})).generate(turn(0, 7))
    again = Sampler()
    kept = await JournaledSampler(again, Journal(tmp_path, {}), decode_again=True).generate(turn(0, 7))
    assert kept.tokens.tolist() == [1] and len(again.requests) == 1 and not again.released and kept.is_replayed


async def test_another_context_is_sampled_anew(tmp_path):
    sampler = Sampler()
    journal = Journal(tmp_path, {})
    await JournaledSampler(sampler, journal).generate(turn(1, 7, 8))
    assert (await JournaledSampler(sampler, journal).generate(turn(1, 7, 9))).tokens.tolist() == [2]
    assert (await JournaledSampler(sampler, journal).generate(turn(1, 7, 9))).tokens.tolist() == [2]
