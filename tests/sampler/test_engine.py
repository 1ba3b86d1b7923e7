"""The engine against the plain sampler and the learner's log-probs, and its promises on pauses, keys and versions."""

import asyncio
import dataclasses
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rw.errors import ConfigError
from rw.model.logprobs import logits, token_logprobs
from rw.model.qwen3 import hidden_states, unstack
from rw.sampler.interface import EpisodeId, SamplingConfig, StopReason
from rw.types import PublishedWeights

EIGHT = [(query, rollout) for query in ("one", "two") for rollout in range(4)]


@partial(jax.jit, static_argnames="config")
def full_forward(params, tokens, positions, config):
    """(log-probs f32[T-1] at temperature 0.8 of each token after the first, argmax i32[T-1] of what predicts it)."""
    hidden, _ = hidden_states(params, config, tokens[None], positions[None])
    logprobs = token_logprobs(params, config, hidden[:, :-1], tokens[None, 1:], 0.8)
    return logprobs[0], jnp.argmax(logits(params, config, hidden[0, :-1])[:, :259], axis=-1)


def learner_view(params, config, record):
    """Log-probs and greedy choices at a record's sampled tokens, from one full forward over its context."""
    length = len(record.tokens)
    tokens, positions = np.zeros(80, np.int32), np.full(80, -1, np.int32)
    tokens[:length], positions[:length] = record.tokens, np.arange(length)
    every = full_forward(params, tokens, positions, config)
    places = np.concatenate([np.arange(start - 1, start - 1 + len(turn.tokens)) for start, turn in record.turns])
    return np.asarray(every[0])[places], np.asarray(every[1])[places]


def sampled(record):
    """(ids, log-probs) of all turns of a record."""
    turns = [turn for _, turn in record.turns]
    return np.concatenate([t.tokens for t in turns]), np.concatenate([t.logprobs for t in turns])


def assert_same(got, want, bitwise=False):
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(sampled(got[name])[0], sampled(want[name])[0], err_msg=str(name))
        assert [t.stop for _, t in got[name].turns] == [t.stop for _, t in want[name].turns]
        if bitwise:
            np.testing.assert_array_equal(sampled(got[name])[1], sampled(want[name])[1], err_msg=str(name))
        else:
            np.testing.assert_allclose(sampled(got[name])[1], sampled(want[name])[1], atol=1e-4)


@pytest.mark.parametrize("work_cache", ["pages", "rows"])
async def test_engine_equals_the_plain_sampler_and_the_learner(
    make_engine, plain, episodes, stacked_params, model_config, work_cache
):
    engine = await make_engine(work_cache=work_cache)
    got = await episodes.run_all(engine, EIGHT, max_tokens=12)
    assert_same(got, await episodes.run_all(plain, EIGHT, max_tokens=12))
    stops = {turn.stop for record in got.values() for _, turn in record.turns}
    assert {StopReason.TAG, StopReason.LENGTH} <= stops
    for record in got.values():
        want, _ = learner_view(stacked_params, model_config, record)
        np.testing.assert_allclose(sampled(record)[1], want, atol=1e-4)
        assert record.tokens.max() < 259


async def test_greedy_takes_what_the_learner_finds_most_probable(make_engine, episodes, stacked_params, model_config):
    got = await episodes.run_all(await make_engine(SamplingConfig(temperature=0.8, greedy=True)), EIGHT)
    for record in got.values():
        logprobs, best = learner_view(stacked_params, model_config, record)
        np.testing.assert_array_equal(sampled(record)[0], best)
        np.testing.assert_allclose(sampled(record)[1], logprobs, atol=1e-4)


async def test_turn_ends_with_its_last_sampled_token(make_engine, episodes, byte_codec):
    engine = await make_engine()
    names = [("stops", k) for k in range(64)]
    got = await episodes.run_all(engine, names, turns=1, max_tokens=40)
    ends = {StopReason.TAG: set(b"ABCDEF"), StopReason.END_TOKEN: byte_codec.end_tokens}
    for record in got.values():
        turn = record.turns[0][1]
        assert turn.tokens.dtype == np.int32 and turn.logprobs.dtype == np.float32
        assert len(turn.tokens) == len(turn.logprobs) <= 40 and np.all(turn.logprobs <= 0)
        stopping = [t for t in turn.tokens if t in ends[StopReason.TAG] or t in byte_codec.end_tokens]
        if turn.stop is StopReason.LENGTH:
            assert len(turn.tokens) == 40 and not stopping
        else:
            assert stopping == [turn.tokens[-1]] and turn.tokens[-1] in ends[turn.stop]
    assert {record.turns[0][1].stop for record in got.values()} == set(StopReason)


async def test_dispatch_ends_where_every_row_has(make_engine, episodes):
    engine = await make_engine()
    got = await episodes.run_all(engine, [("one", 0), ("two", 0)], turns=1, max_tokens=2)
    stats = engine.stats()
    assert 0 < stats["decode_steps"] <= 2 < engine.config.steps_per_dispatch
    assert stats["sampled_tokens"] == sum(len(sampled(record)[0]) for record in got.values())


async def test_paused_episode_keeps_its_cache_and_prompts_are_prefilled_once(make_engine, episodes):
    engine = await make_engine()
    got = await episodes.run_all(engine, EIGHT)
    stats = engine.stats()
    # Of each query the first rollout prefills the prompt but its last token, three clone it. Later turns prefill
    # their inserted tokens and the last sampled one, less the new last one, which the decode step reads.
    inserted = sum(
        start - (before + len(turn.tokens))
        for record in got.values()
        for (before, turn), (start, _) in zip(record.turns, record.turns[1:], strict=False)
    )
    assert stats["prefilled_tokens"] == 2 * 10 + inserted
    assert stats["cloned_tokens"] == 2 * 3 * 10
    assert stats["reprefilled_tokens"] == stats["evictions"] == 0
    assert stats["sampled_tokens"] == sum(len(sampled(record)[0]) for record in got.values())
    assert 0 < stats["prefill_s"] and 0 < stats["decode_s"]
    assert stats["prefill_s"] + stats["decode_s"] <= stats["device_s"]
    assert 0 < stats["active_row_share"] <= 1 and stats["kv_bytes"] > 0
    assert engine.stats()["sampled_tokens"] == 0


async def test_samples_do_not_depend_on_company_or_on_when_they_were_asked_for(make_engine, episodes):
    together = await episodes.run_all(await make_engine(), EIGHT)
    engine = await make_engine()
    for name in reversed(EIGHT):
        alone = await episodes.run_all(engine, [name])
        assert_same(alone, {name: together[name]})


async def test_another_seed_step_or_turn_samples_differently(make_engine, episodes):
    base = await (await make_engine()).generate(episodes.request("one"))
    engine = await make_engine(key_seed=6)
    assert (await engine.generate(episodes.request("one"))).tokens.tolist() != base.tokens.tolist()
    engine = await make_engine()
    later = dataclasses.replace(episodes.request("one"), turn=1)
    assert (await engine.generate(later)).tokens.tolist() != base.tokens.tolist()
    other_step = dataclasses.replace(episodes.request("one"), episode=EpisodeId(3, "one", 0))
    assert (await engine.generate(other_step)).tokens.tolist() != base.tokens.tolist()


async def test_more_episodes_than_slots_queue_and_keep_their_caches(make_engine, plain, episodes):
    engine = await make_engine(slots=3, episodes=8)

    async def wait(query, rollout, turn):
        await asyncio.sleep(0.01 * ((rollout + turn) % 3))

    got = await episodes.run_all(engine, EIGHT, pause=wait)
    assert_same(got, await episodes.run_all(plain, EIGHT))
    stats = engine.stats()
    assert stats["evictions"] == stats["reprefilled_tokens"] == 0 < stats["active_rows"]


async def test_waiting_episodes_get_slots_in_the_order_they_came(make_engine, episodes, monkeypatch):
    engine = await make_engine(slots=3, episodes=8)
    admit, order = engine._table.admit, []

    def noted(episode, *rest):
        slot = admit(episode, *rest)
        if slot is not None:
            order.append((episode.query_id, episode.rollout))
        return slot

    monkeypatch.setattr(engine._table, "admit", noted)
    got = await episodes.run_all(engine, EIGHT, turns=1)
    assert order == EIGHT
    waits = [got[episode].turns[0][1].queue_s for episode in EIGHT]
    assert 0 < max(waits[:3]) < min(waits[3:])  # the first three had a slot at once


async def test_pool_grows_with_what_is_cached_and_is_never_twice_as_large(make_engine, plain, episodes):
    engine = await make_engine(slots=12, page_tokens=2)
    found = []

    async def measure(query, rollout, turn):
        stats = engine.stats()
        found.append((stats["live_kv_bytes"], stats["allocated_kv_bytes"]))

    names = [(query, rollout) for query in ("one", "two", "six") for rollout in range(4)]
    got = await episodes.run_all(engine, names, prompt_length=23, max_tokens=7, pause=measure, release=False)
    assert_same(got, await episodes.run_all(plain, names, prompt_length=23, max_tokens=7))
    first = (engine._table.pages.sizes[0] + 1) * 2 * engine._token_bytes
    assert max(allocated for _, allocated in found) > 1.5 * first
    live = 0
    for now, allocated in found:  # in order; the pool keeps its size until it is dropped
        live = max(live, now)
        assert allocated <= max(2 * live, first)
    await engine.drop_caches()
    assert engine.stats()["kv_bytes"] == 0


async def test_budget_of_bytes_evicts_and_requeues_and_changes_no_sample(make_engine, plain, episodes):
    # Two longest contexts beside a scratch page, for eight episodes that come to half of one.
    engine = await make_engine(kv_bytes=19 * 8 * 384)
    names = [(query, rollout) for query in ("one", "two") for rollout in range(4)]

    async def wait(query, rollout, turn):
        await asyncio.sleep(0.01 * ((rollout + turn) % 3))

    options = {"prompt_length": 20, "max_tokens": 8}
    got = await episodes.run_all(engine, names, pause=wait, **options)
    assert_same(got, await episodes.run_all(plain, names, **options))
    stats = engine.stats()
    assert stats["evictions"] > 0 and stats["requeued_turns"] > 0 and stats["reprefilled_tokens"] > 0
    assert 0 < stats["live_kv_bytes"] <= stats["allocated_kv_bytes"] <= 19 * 8 * 384


async def test_context_may_fill_the_longest_length_to_the_last_position(make_engine, plain, episodes):
    engine = await make_engine()
    request = episodes.request("brim", prompt_length=40, max_tokens=24)
    got, want = await engine.generate(request), await plain.generate(request)
    assert got.tokens.tolist() == want.tokens.tolist()
    np.testing.assert_allclose(got.logprobs, want.logprobs, atol=1e-4)
    with pytest.raises(ConfigError, match=r"max_tokens=25 .*64.* at least 65"):
        await engine.generate(dataclasses.replace(request, max_tokens=25))


async def test_new_weights_void_every_cache(make_engine, plain, episodes, weights, stacked_params, model_config):
    other = {name: x * 0.7 if "embed" in name else x for name, x in stacked_params.items()}
    changed = PublishedWeights(2, unstack(other, model_config))
    engine = await make_engine()
    first = await episodes.run(engine, "one", 0, turns=1, release=False)
    await engine.publish(changed)
    await plain.publish(changed)
    # The paused episode's next turn, and the same prompt anew.
    tokens = np.append(first.tokens, 65)
    for request in (episodes.request("one", turn=1, tokens=tokens), episodes.request("one", rollout=1)):
        got, want = await engine.generate(request), await plain.generate(request)
        assert got.tokens.tolist() == want.tokens.tolist()
        np.testing.assert_allclose(got.logprobs, want.logprobs, atol=1e-5)
    assert engine.stats()["reprefilled_tokens"] == len(first.tokens) - 1


async def test_dropped_caches_are_built_again(make_engine, plain, episodes):
    engine = await make_engine()
    first = await episodes.run(engine, "one", 0, turns=1, release=False)
    assert engine.stats()["kv_bytes"] > 0
    await engine.drop_caches()
    assert engine.stats()["kv_bytes"] == 0
    request = episodes.request("one", turn=1, tokens=np.append(first.tokens, 65))
    assert (await engine.generate(request)).tokens.tolist() == (await plain.generate(request)).tokens.tolist()


@pytest.mark.parametrize("how", ["drop_caches", "publish"])
async def test_caches_are_forgotten_though_whoever_dropped_them_was_cancelled(
    make_engine, plain, episodes, weights, monkeypatch, how
):
    engine = await make_engine()
    first = await episodes.run(engine, "one", 0, turns=1, release=False)
    drop = engine._pool.drop
    monkeypatch.setattr(engine._pool, "drop", lambda: (time.sleep(0.2), drop()))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await (engine.drop_caches() if how == "drop_caches" else engine.publish(weights))
    request = episodes.request("one", turn=1, tokens=np.append(first.tokens, 65))
    assert (await engine.generate(request)).tokens.tolist() == (await plain.generate(request)).tokens.tolist()


async def test_turn_that_runs_while_weights_change_is_sampled_under_the_new_ones(
    make_engine, plain, episodes, stacked_params, model_config
):
    other = {name: x * 0.7 if "embed" in name else x for name, x in stacked_params.items()}
    changed = PublishedWeights(2, unstack(other, model_config))
    engine = await make_engine()
    running = asyncio.create_task(episodes.run_all(engine, EIGHT, turns=1, max_tokens=40))
    while not engine.stats()["sampled_tokens"]:
        await asyncio.sleep(0.001)
    await engine.publish(changed)
    finished = [name for name in EIGHT if EpisodeId(2, *name) not in engine._turns]
    await plain.publish(changed)
    got, want = await running, await episodes.run_all(plain, EIGHT, turns=1, max_tokens=40)
    unfinished = [name for name in EIGHT if name not in finished]
    assert unfinished
    assert_same({n: got[n] for n in unfinished}, {n: want[n] for n in unfinished})
