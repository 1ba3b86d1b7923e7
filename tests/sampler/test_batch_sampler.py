"""The plain sampler by itself; what it samples is compared in the engine's tests."""

import jax
import numpy as np
import pytest

from rw.errors import FailureCause, InfrastructureFailure
from rw.sampler import batch
from rw.sampler.batch import BatchSampler
from rw.sampler.interface import SamplingConfig


async def test_the_same_request_gives_the_same_turn(plain, episodes):
    request = episodes.request("one")
    first = await plain.generate(request)
    await plain.release(request.episode)
    again = await plain.generate(request)
    assert again.tokens.tolist() == first.tokens.tolist() and again.stop is first.stop
    np.testing.assert_array_equal(again.logprobs, first.logprobs)


async def test_one_token_prompt_is_sampled_from(plain, episodes):
    turn = await plain.generate(episodes.request("one", prompt_length=1, max_tokens=1))
    assert len(turn.tokens) == len(turn.logprobs) == 1


async def test_weights_come_first(byte_codec, model_config, device, episodes):
    sampler = BatchSampler(byte_codec, model_config, SamplingConfig(), device, key_seed=0)
    with pytest.raises(RuntimeError, match="publish weights"):
        await sampler.generate(episodes.request("one"))


async def test_device_error_is_a_failure_of_the_turn(plain, episodes, monkeypatch):
    def lost(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(batch, "_step", lost)
    with pytest.raises(InfrastructureFailure, match="RESOURCE_EXHAUSTED") as caught:
        await plain.generate(episodes.request("one"))
    assert caught.value.cause is FailureCause.SAMPLER_FAULT
