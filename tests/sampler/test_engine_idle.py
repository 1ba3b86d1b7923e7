"""The device thread lent to other work while no turn is runnable."""

import asyncio
import threading
import time

import pytest

from rw.sampler.lending import Lending

EIGHT = [(query, rollout) for query in ("one", "two") for rollout in range(4)]


async def test_other_work_is_done_only_while_nothing_is_runnable(make_engine, episodes):
    engine = await make_engine()
    left, threads = 5, set()
    runnable = []

    def work():
        nonlocal left
        threads.add(threading.current_thread())
        runnable.append(len(engine._turns))
        left -= 1
        return left > 0

    await episodes.run_all(engine, EIGHT, max_tokens=4)
    engine.stats()
    engine.while_idle(work)
    while left:
        await asyncio.sleep(0.01)
    assert threading.current_thread() not in threads and len(threads) == 1
    assert set(runnable) == {0}
    assert engine.stats()["idle_work_s"] > 0


async def test_work_goes_on_when_it_is_woken_and_turns_are_sampled_beside_it(make_engine, episodes):
    engine = await make_engine()
    want = await episodes.run_all(await make_engine(), EIGHT, max_tokens=6)
    pieces, done = 0, 0

    def work():
        nonlocal done
        if done < pieces:
            done += 1
        return done < pieces

    engine.while_idle(work)
    for pieces in (3, 6):
        engine.wake()
        got = await episodes.run_all(engine, EIGHT, max_tokens=6)
        while done < pieces:
            await asyncio.sleep(0.01)
    for name, record in want.items():
        assert [list(turn.tokens) for _, turn in got[name].turns] == [list(turn.tokens) for _, turn in record.turns]


async def test_work_that_raises_is_logged_and_taken_back(make_engine, episodes, caplog):
    engine = await make_engine()

    def work():
        raise RuntimeError("of somebody else")

    engine.while_idle(work)
    got = await episodes.run_all(engine, EIGHT, max_tokens=4)
    while "of somebody else" not in caplog.text:
        await asyncio.sleep(0.01)
    assert len(got) == len(EIGHT)
    assert len(await episodes.run_all(engine, EIGHT, max_tokens=4)) == len(EIGHT)
    assert caplog.text.count("it is not called again") == 1


def test_work_pauses_while_turns_waited_too_long_for_its_pieces():
    lending = Lending(lambda: True)
    assert lending.pause_s() == 0
    lending.worked(work_s=2.0, delay_s=0.25)
    assert lending.pause_s() == 0  # one second would do
    lending.worked(work_s=1.0, delay_s=1.0)
    assert lending.pause_s() == pytest.approx(4 * 1.25 - 1.75)
    lending.idled(3.0)
    assert lending.pause_s() == pytest.approx(0.25)
    lending.worked(work_s=0.25, delay_s=0.0)
    assert lending.pause_s() == 0


async def test_pieces_that_turns_wait_for_are_few_where_idle_moments_are_short(make_engine, episodes):
    engine, pieces = await make_engine(), []

    def work():
        pieces.append(time.sleep(0.2))  # longer than the turns of a round, with next to nothing between two rounds
        return True

    await episodes.run_all(engine, EIGHT, max_tokens=2)
    engine.stats()
    engine.while_idle(work)
    for _ in range(8):
        await episodes.run_all(engine, EIGHT, max_tokens=2)
    engine.while_idle(None)
    assert 1 <= len(pieces) <= 4 and engine.stats()["idle_work_delay_s"] > 0
