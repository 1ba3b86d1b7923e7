"""deterministic=True: the same bits whatever the order of arrival, the company and the number of slots."""

import asyncio
import random

import numpy as np
import pytest

from rw.errors import ConfigError

NAMES = [(query, rollout) for query in ("one", "two") for rollout in range(4)]


def bits(records):
    """Everything that was sampled, as bytes by episode."""
    return {
        name: [(t.tokens.tobytes(), t.logprobs.tobytes(), t.stop) for _, t in record.turns]
        for name, record in records.items()
    }


async def test_shuffled_arrival_gives_bitwise_equal_samples(make_engine, episodes):
    found = []
    for seed, slots in enumerate((8, 8, 3, 1)):
        draw = random.Random(seed)

        async def wait(query, rollout, turn, draw=draw):
            await asyncio.sleep(draw.random() * 0.03)

        engine = await make_engine(deterministic=True, slots=slots, episodes=8)
        names = draw.sample(NAMES, len(NAMES))
        found.append(bits(await episodes.run_all(engine, names, prompt_length=19, pause=wait)))
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.parametrize("work_cache, width", [("pages", 16), ("rows", 4)])
async def test_company_and_a_used_engine_change_no_bit(make_engine, episodes, work_cache, width):
    settings = {"deterministic": True, "work_cache": work_cache, "decode_widths": (width,)}
    engine = await make_engine(**settings)
    together = bits(await episodes.run_all(engine, NAMES))
    for name in NAMES[::3]:
        assert bits(await episodes.run_all(engine, [name]))[name] == together[name]
    fresh = await make_engine(**settings)
    assert bits(await episodes.run_all(fresh, NAMES[5:6]))[NAMES[5]] == together[NAMES[5]]


async def test_one_shape_is_used(make_engine):
    engine = await make_engine(deterministic=True, lengths=(64, 128), decode_widths=(2, 4), prefill_rows=(1, 2))
    config = engine.config
    assert (config.lengths, config.decode_widths, config.prefill_rows) == ((128,), (4,), (2,))


async def test_more_episodes_than_it_was_made_for_are_refused_with_the_number(make_engine, episodes):
    engine = await make_engine(deterministic=True, slots=3, episodes=8)
    held = await episodes.run_all(engine, NAMES, turns=1, release=False)
    with pytest.raises(ConfigError, match="keeps the caches of 8 concurrent episodes"):
        await engine.generate(episodes.request("three"))
    # Those that hold caches go on, and what is freed is taken again.
    name = NAMES[0]
    tokens = np.append(held[name].tokens, 66)
    assert len((await engine.generate(episodes.request(*name, turn=1, tokens=tokens))).tokens) > 0
    await engine.release(episodes.request(*name).episode)
    assert len((await engine.generate(episodes.request("three"))).tokens) > 0
