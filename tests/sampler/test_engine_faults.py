"""What goes wrong on the device or in a caller stays with the episodes it concerns."""

import asyncio
import dataclasses
import time

import jax
import numpy as np
import pytest

from rw.errors import ConfigError, FailureCause, InfrastructureFailure
from rw.model.config import ModelConfig
from rw.sampler import decode as programs
from rw.sampler import tick
from rw.sampler.engine import EngineConfig, SamplerEngine
from rw.sampler.interface import SamplingConfig
from rw.sampler.keys import query_word
from rw.sampler.pool import Samples
from rw.types import PublishedWeights

SMALL = {"slots": 8, "lengths": (64,), "prefill_chunk": 8, "page_tokens": 8}
NAMES = [(query, rollout) for query in ("one", "two") for rollout in range(4)]


def assert_idle(engine):
    """No slot, turn or place in the queue is left to anybody."""
    assert not engine._table.slots and not engine._turns and not engine._waiting


async def outcomes(engine, episodes, names, **options):
    """Record or exception of each episode, by name."""
    runs = [episodes.run(engine, query, rollout, **options) for query, rollout in names]
    return dict(zip(names, await asyncio.gather(*runs, return_exceptions=True), strict=True))


def assert_as_plain(record, want):
    np.testing.assert_array_equal(record.tokens, want.tokens)


async def test_failed_decode_fails_its_episodes_and_no_other(make_engine, plain, episodes, monkeypatch):
    engine = await make_engine()
    decode, poison = programs.decode, [query_word("two"), 3]  # one of the eight

    def sick(params, work, base_key, rows, *rest):
        if poison in np.asarray(rows.words)[:, 1:3].tolist():
            raise RuntimeError("out of memory")
        return decode(params, work, base_key, rows, *rest)

    monkeypatch.setattr(programs, "decode", sick)
    got = await outcomes(engine, episodes, NAMES)
    want = await episodes.run_all(plain, NAMES)
    failed = [name for name in NAMES if isinstance(got[name], Exception)]
    assert ("two", 3) in failed and len(failed) <= 4  # those that shared its dispatch
    for name in NAMES:
        if name in failed:
            assert isinstance(got[name], InfrastructureFailure) and got[name].cause is FailureCause.SAMPLER_FAULT
            assert "out of memory" in str(got[name])
            await engine.release(episodes.request(*name).episode)
        else:
            assert_as_plain(got[name], want[name])
    assert engine.stats()["failed_turns"] == len(failed)
    assert_idle(engine)
    monkeypatch.setattr(programs, "decode", decode)
    assert_as_plain(await episodes.run(engine, "two", 3), want["two", 3])


@pytest.mark.parametrize("program", ["gather", "prefill", "copy", "put"])
async def test_failure_anywhere_leaves_an_engine_that_works(make_engine, plain, episodes, monkeypatch, program):
    """`put` and `copy` take the pool with them, so that the others are built again from their tokens."""
    engine = await make_engine()
    healthy, calls = getattr(programs, program), 0

    def sick(cache_or_params, *rest):
        nonlocal calls
        calls += 1
        if calls == 2:
            if program in ("put", "copy"):
                for array in jax.tree.leaves(cache_or_params):
                    array.delete()
            raise RuntimeError("device lost")
        return healthy(cache_or_params, *rest)

    monkeypatch.setattr(programs, program, sick)
    got = await outcomes(engine, episodes, NAMES)
    want = await episodes.run_all(plain, NAMES)
    failed = [name for name in NAMES if isinstance(got[name], Exception)]
    assert 0 < len(failed) <= 4
    for name in NAMES:
        if name in failed:
            assert "device lost" in str(got[name])
            await engine.release(episodes.request(*name).episode)
        else:
            assert_as_plain(got[name], want[name])
    assert_idle(engine)
    assert_as_plain(await episodes.run(engine, *failed[0]), want[failed[0]])


async def test_nan_weights_fail_turns_and_good_ones_heal_the_engine(make_engine, episodes, weights):
    engine = await make_engine()
    broken = jax.tree.map(lambda x: x * np.nan, weights.params)
    await engine.publish(PublishedWeights(2, broken))
    got = await outcomes(engine, episodes, NAMES[:3])
    assert all(isinstance(e, InfrastructureFailure) and "not finite" in str(e) for e in got.values())
    assert_idle(engine)
    await engine.publish(weights._replace(version=3))
    assert len((await episodes.run(engine, "one", 0)).turns) == 3


async def test_what_is_spoilt_behind_a_turns_end_is_built_again(make_engine, plain, episodes, monkeypatch):
    """NaN that a row computed behind its stop tag is in nobody's turn, and in no later context."""
    engine = await make_engine()
    run, spoilt = engine._pool.run, set()

    def spoiling(params, tick):
        result = run(params, tick)
        for place, (dispatch, outcome) in enumerate(zip(tick.dispatches, result.outcomes, strict=True)):
            if not isinstance(outcome, Samples):
                continue
            logprobs = outcome.logprobs.copy()
            for row, slot in enumerate(dispatch.slots):
                ends = np.flatnonzero((65 <= outcome.ids[row]) & (outcome.ids[row] <= 70))  # of TAGS, from A to F
                if len(ends) and ends[0] + 1 < min(outcome.steps, dispatch.limits[row]):
                    logprobs[row, ends[0] + 1 :] = np.nan
                    spoilt.add(slot.episode)
            result.outcomes[place] = dataclasses.replace(outcome, logprobs=logprobs)
        return result

    monkeypatch.setattr(engine._pool, "run", spoiling)
    names = [("one", rollout) for rollout in range(24)]
    got = await episodes.run_all(engine, names, turns=1, release=False, max_tokens=20)
    assert 0 < len(spoilt) < len(names)
    for name in names:
        episode = episodes.request(*name).episode
        assert (engine._table.slot_of(episode) is None) == (episode in spoilt)
        request = episodes.request(*name, turn=1, tokens=np.append(got[name].tokens, 90))
        assert (await engine.generate(request)).tokens.tolist() == (await plain.generate(request)).tokens.tolist()
        await engine.release(episode)
    assert_idle(engine)


async def test_rows_that_were_not_finite_do_not_spoil_the_next_episode(make_engine, episodes, weights):
    """Long contexts leave NaN far beyond what the next, short ones overwrite."""
    engine = await make_engine()
    await engine.publish(PublishedWeights(2, jax.tree.map(lambda x: x * np.nan, weights.params)))
    await outcomes(engine, episodes, [("long", rollout) for rollout in range(8)], prompt_length=50, turns=1)
    engine._weights = weights  # without a publication, which empties the pool
    assert all(len(record.turns) == 3 for record in (await outcomes(engine, episodes, NAMES)).values())
    await engine.publish(PublishedWeights(3, jax.tree.map(lambda x: x * np.nan, weights.params)))
    waiting = [asyncio.create_task(engine.generate(episodes.request("long", k, prompt_length=50))) for k in range(8)]
    await asyncio.sleep(0)
    await engine.publish(weights._replace(version=4))
    await asyncio.gather(*waiting, return_exceptions=True)
    for rollout in range(8):
        await engine.release(episodes.request("long", rollout).episode)
    assert all(len(record.turns) == 3 for record in (await outcomes(engine, episodes, NAMES)).values())


@pytest.mark.parametrize("released", [True, False])
async def test_spoilt_pages_of_who_sleeps_are_cleaned_for_whoever_needs_them(make_engine, episodes, released):
    """The pool holds one longest context: a turn can wait for nothing else than the pages of the paused episode."""
    settings = {"lengths": (128,), "prefill_chunk": 64, "page_tokens": 16}
    engine = await make_engine(slots=4, episodes=8, **settings)
    token_bytes = engine._token_bytes
    engine = await make_engine(slots=4, episodes=8, kv_bytes=10 * 16 * token_bytes, **settings)
    paused = episodes.request("one", prompt_length=113, max_tokens=2)
    await engine.generate(paused)
    engine._table.pages.spoil(engine._table.slot_of(paused.episode).pages)
    if released:
        await engine.release(paused.episode)
    other = episodes.request("two", prompt_length=100)
    assert (await asyncio.wait_for(engine.generate(other), 30)).tokens.size
    assert not engine._table.pages.unclean


async def test_an_error_of_the_engine_itself_reaches_every_caller(make_engine, episodes, monkeypatch):
    engine = await make_engine()
    with monkeypatch.context() as patch:
        patch.setattr("rw.sampler.engine.plan_tick", lambda *_: 1 / 0)
        got = await asyncio.wait_for(outcomes(engine, episodes, NAMES[:3]), 10)
    assert all(isinstance(e, InfrastructureFailure) and "ZeroDivisionError" in str(e) for e in got.values())
    assert len((await episodes.run(engine, "one", 0)).turns) == 3
    assert_idle(engine)


async def test_cancelling_at_any_moment_leaves_no_slot_behind(make_engine, plain, episodes):
    engine = await make_engine(slots=3, episodes=8)
    want = await episodes.run_all(plain, NAMES[:2], max_tokens=12)
    for delay in np.linspace(0, 0.02, 15):
        running = {name: asyncio.create_task(episodes.run(engine, *name, max_tokens=12)) for name in NAMES}
        await asyncio.sleep(delay)
        for name in NAMES[2:]:
            running[name].cancel()
        await asyncio.wait_for(asyncio.gather(*running.values(), return_exceptions=True), 20)
        for name in NAMES[:2]:
            assert_as_plain(running[name].result(), want[name])
        for name in NAMES[2:]:  # those that were between turns hold a paused slot until released
            if running[name].cancelled():
                assert episodes.request(*name).episode not in engine._turns
            await engine.release(episodes.request(*name).episode)
        assert_idle(engine)


async def test_cancelled_turn_frees_its_slot_without_a_release(make_engine, episodes):
    engine = await make_engine(slots=3, episodes=8)
    tasks = [asyncio.create_task(engine.generate(episodes.request("one", k, max_tokens=40))) for k in range(6)]
    while not engine.stats()["sampled_tokens"]:
        await asyncio.sleep(0.001)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for k, task in enumerate(tasks):
        if not task.cancelled():
            await engine.release(episodes.request("one", k).episode)
    assert_idle(engine)


async def test_release_is_idempotent_and_ends_a_running_turn(make_engine, episodes):
    engine = await make_engine()
    request = episodes.request("one", max_tokens=40)
    await engine.release(request.episode)
    running = asyncio.create_task(engine.generate(request))
    await asyncio.sleep(0)
    await engine.release(request.episode)
    await engine.release(request.episode)
    with pytest.raises(InfrastructureFailure, match="released"):
        await running
    assert_idle(engine)


async def test_contradicting_requests_are_refused_and_harm_nobody(make_engine, episodes):
    engine = await make_engine()
    request = episodes.request("one", max_tokens=40)
    running = asyncio.create_task(engine.generate(request))
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="in a turn already"):
        await engine.generate(request)
    await running
    retokenised = np.append(request.tokens, [65, 65, 65])
    with pytest.raises(ValueError, match="do not extend"):
        await engine.generate(dataclasses.replace(request, turn=1, tokens=retokenised, max_tokens=5))
    with pytest.raises(ValueError, match="outside 0..258"):
        await engine.generate(episodes.request("two", tokens=[1, 2, 259], prompt_length=3))
    with pytest.raises(ValueError, match="prompt_length=4"):
        await engine.generate(episodes.request("two", tokens=[1, 2, 3], prompt_length=4))
    with pytest.raises(ValueError, match="max_tokens=0"):
        await engine.generate(episodes.request("two", max_tokens=0))
    await engine.release(request.episode)
    assert_idle(engine)


async def test_close_fails_what_runs_and_refuses_what_comes(make_engine, episodes):
    engine = await make_engine()
    running = asyncio.create_task(engine.generate(episodes.request("one", max_tokens=40)))
    await asyncio.sleep(0.005)
    await engine.close()
    with pytest.raises(InfrastructureFailure, match="closed"):
        await running
    with pytest.raises(RuntimeError, match="publish weights"):
        await engine.generate(episodes.request("one"))
    await engine.close()
    assert_idle(engine)


def test_settings_without_meaning_are_refused(byte_codec, model_config, device):
    def build(config=model_config, **sampling):
        SamplerEngine(byte_codec, config, SamplingConfig(**sampling), EngineConfig(), device, 0)

    with pytest.raises(ConfigError, match="temperature=0.0"):
        build(temperature=0.0)
    with pytest.raises(ConfigError, match="top_p=1.5"):
        build(top_p=1.5)
    with pytest.raises(ConfigError, match="kv_bytes=4096: a context of 64 tokens may take 30720;"):
        SamplerEngine(byte_codec, model_config, SamplingConfig(), EngineConfig(**SMALL, kv_bytes=4096), device, 0)
    with pytest.raises(ConfigError, match="kv_bytes=38400: 8 contexts of 64 tokens may take 224256;"):
        tight = EngineConfig(**SMALL, kv_bytes=38400, deterministic=True)
        SamplerEngine(byte_codec, model_config, SamplingConfig(), tight, device, 0)
    with pytest.raises(ConfigError, match="vocab_size=200 .* 259"):
        build(ModelConfig(200, 8, 1, 1, 1, 8, 8, 1e4))


async def test_event_loop_is_free_while_the_device_works(make_engine, episodes, monkeypatch):
    engine = await make_engine()
    decode = programs.decode

    def slow(*args):
        time.sleep(0.05)
        return decode(*args)

    monkeypatch.setattr(programs, "decode", slow)
    running = asyncio.create_task(engine.generate(episodes.request("one", max_tokens=40)))
    gaps, last = [], time.monotonic()
    while not running.done():
        await asyncio.sleep(0.002)
        gaps.append(time.monotonic() - last)
        last = time.monotonic()
    assert len(gaps) > 20 or sorted(gaps)[len(gaps) // 2] < 0.03


async def test_warm_up_compiles_every_bucket_and_nothing_is_compiled_later(make_engine, episodes):
    # A number of steps that no other test uses, so that nothing is compiled yet.
    greedy = SamplingConfig(greedy=True)
    engine = await make_engine(greedy, slots=3, lengths=(64, 128), steps_per_dispatch=3)
    assert await engine.warm_up() > 0
    assert await engine.warm_up() == 0
    assert engine.stats()["compiled"] > 0
    await episodes.run_all(engine, NAMES)
    await episodes.run_all(engine, [("long", 0), ("long", 1)], prompt_length=76)
    await episodes.run_all(engine, NAMES)
    assert engine.stats()["compiled"] == 0


async def test_a_pool_that_must_grow_by_several_sizes_at_once_compiles_nothing_for_it(make_engine, episodes):
    settings = {"lengths": (16, 128), "decode_widths": (4,), "prefill_chunk": 16, "page_tokens": 16}
    engine = await make_engine(slots=32, episodes=32, prefill_tokens=4096, **settings)
    await engine.warm_up()
    await episodes.run(engine, "short", 0, turns=1, prompt_length=12, max_tokens=3, release=False)
    before = engine._table.pages.capacity
    engine.stats()
    names = [(f"q{i}", i) for i in range(20)]
    await episodes.run_all(engine, names, turns=1, prompt_length=100)
    sizes = engine._table.pages.sizes
    assert sizes.index(engine._table.pages.capacity) > sizes.index(before) + 1
    assert engine.stats()["compiled"] == 0


def failing(function, call):
    """The function, which raises at its `call`th call, counted from 1, and at no other."""
    calls = []

    def sick(*args):
        calls.append(args)
        if len(calls) == call:
            raise RuntimeError("RESOURCE_EXHAUSTED")
        return function(*args)

    return sick


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("work_cache", ["pages", "rows"])
async def test_pool_whose_layers_could_not_all_grow_is_given_up(
    make_engine, plain, episodes, monkeypatch, call, work_cache
):
    names = [(f"q{i}", i) for i in range(12)]
    options = {"turns": 1, "prompt_length": 30, "max_tokens": 20}
    engine = await make_engine(slots=12, page_tokens=2, decode_widths=(1, 4), episodes=12, work_cache=work_cache)
    monkeypatch.setattr(programs, "grow", failing(programs.grow, call))
    got, want = await outcomes(engine, episodes, names, **options), await episodes.run_all(plain, names, **options)
    failed = [name for name in names if isinstance(got[name], Exception)]
    assert 0 < len(failed) < len(names)
    for name in names:
        if name not in failed:
            assert_as_plain(got[name], want[name])
    later = [(f"later{i}", i) for i in range(4)]
    got, want = await episodes.run_all(engine, later, **options), await episodes.run_all(plain, later, **options)
    for name in later:
        assert_as_plain(got[name], want[name])


async def test_warm_up_that_fails_leaves_nothing_behind(make_engine, plain, episodes, monkeypatch):
    names = [(f"q{i}", i) for i in range(12)]
    options = {"turns": 1, "prompt_length": 30, "max_tokens": 20}
    engine = await make_engine(slots=12, page_tokens=2, decode_widths=(1, 4), episodes=12)
    with monkeypatch.context() as patch:
        patch.setattr(programs, "grow", failing(programs.grow, 2))
        with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
            await engine.warm_up()
    got, want = await episodes.run_all(engine, names, **options), await episodes.run_all(plain, names, **options)
    for name in names:
        assert_as_plain(got[name], want[name])


async def test_engine_goes_on_after_an_error_of_our_own_that_met_a_turn_set_back(
    make_engine, plain, episodes, monkeypatch
):
    engine = await make_engine(kv_bytes=19 * 8 * 384)
    healthy, broken = tick._decode_dispatch, []

    def sick(*args):
        if engine._table.set_back and not broken:
            broken.append(engine._table.set_back[0])
            raise MemoryError
        return healthy(*args)

    monkeypatch.setattr(tick, "_decode_dispatch", sick)
    got = await outcomes(engine, episodes, NAMES, prompt_length=20, max_tokens=8)
    assert broken and any(isinstance(record, InfrastructureFailure) for record in got.values())
    for name in NAMES:
        await engine.release(episodes.request(*name).episode)
    later = [("three", 0), ("three", 1)]
    got, want = await episodes.run_all(engine, later), await episodes.run_all(plain, later)
    for name in later:
        assert_as_plain(got[name], want[name])
