"""Random histories of many episodes over few slots, against the plain sampler."""

import asyncio
import random

import jax
import numpy as np
import pytest

from rw.model.config import ModelConfig
from rw.model.logprobs import token_logprobs
from rw.model.qwen3 import hidden_states, unstack
from rw.sampler.engine import EngineConfig, SamplerEngine
from rw.sampler.interface import SamplingConfig
from rw.types import PublishedWeights

pytestmark = pytest.mark.full


@pytest.mark.parametrize("seed", range(6))
async def test_random_pauses_cancellations_and_lengths(make_engine, plain, episodes, seed):
    draw = random.Random(seed)
    shapes = {"lengths": (64, 128), "decode_widths": (2, 4), "steps_per_dispatch": 1 + seed % 4}
    budget = 30 * 8 * 384 if seed % 2 else None  # a page is 8 tokens of 384 bytes, a longest context 17 of them
    shapes["work_cache"] = "rows" if seed % 3 == 2 else "pages"
    engine = await make_engine(slots=5, episodes=60, kv_bytes=budget, **shapes)
    names = [(f"q{i % 7}", i) for i in range(60)]
    length = {f"q{i}": draw.choice((1, 2, 9, 17, 60)) for i in range(7)}

    async def wait(query, rollout, turn):
        await asyncio.sleep(draw.random() * 0.05)

    async def one(query, rollout):
        run = asyncio.create_task(episodes.run(engine, query, rollout, prompt_length=length[query], pause=wait))
        if draw.random() < 0.3:
            await asyncio.sleep(draw.random() * 0.2)
            run.cancel()
        try:
            return await run
        except asyncio.CancelledError:
            return None
        finally:
            await engine.release(episodes.request(query, rollout).episode)

    records = await asyncio.gather(*(one(*name) for name in names))
    assert not engine._table.slots
    finished = [(name, record) for name, record in zip(names, records, strict=True) if record is not None]
    assert len(finished) > 20
    stats = engine.stats()
    assert bool(stats["evictions"] + stats["requeued_turns"] + stats["reprefilled_tokens"]) <= bool(budget)
    assert engine._table.pages.in_use == sum(len(prompt.pages) for prompt in engine._table._prompts.values())
    for name, record in finished:
        want = await episodes.run(plain, *name, prompt_length=length[name[0]])
        np.testing.assert_array_equal(record.tokens, want.tokens)
        for (_, turn), (_, other) in zip(record.turns, want.turns, strict=True):
            np.testing.assert_allclose(turn.logprobs, other.logprobs, atol=1e-4)


async def test_half_precision_follows_the_learner_closely(byte_codec, model_config, stacked_params, device, episodes):
    config = ModelConfig(**{**vars(model_config), "compute_dtype": "bfloat16"})
    engine = SamplerEngine(byte_codec, config, SamplingConfig(), EngineConfig(slots=4, lengths=(128,)), device, 0)
    await engine.publish(PublishedWeights(1, unstack(stacked_params, config)))
    record = await episodes.run(engine, "half", 0, turns=2, max_tokens=40)
    await engine.close()
    tokens = jax.numpy.asarray(record.tokens)[None]
    hidden, _ = hidden_states(stacked_params, config, tokens, jax.numpy.arange(tokens.shape[1])[None])
    every = np.asarray(token_logprobs(stacked_params, config, hidden[:, :-1], tokens[:, 1:], 0.8)[0])
    for start, turn in record.turns:
        assert turn.logprobs.dtype == np.float32
        assert np.abs(turn.logprobs - every[start - 1 : start - 1 + len(turn.tokens)]).max() < 0.2


async def test_weights_replicated_over_a_mesh(make_engine, byte_codec, model_config, weights, device, episodes):
    if jax.device_count() < 2:
        pytest.skip("needs several devices")
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(weights.params, jax.sharding.NamedSharding(mesh, jax.P()))
    engine = await make_engine()
    want = await episodes.run_all(engine, [("one", k) for k in range(3)])
    await engine.close()
    await engine.publish(PublishedWeights(2, spread))
    got = await episodes.run_all(engine, [("one", k) for k in range(3)])
    for name, record in want.items():
        np.testing.assert_array_equal(got[name].tokens, record.tokens)
