"""Scorers in processes of their own: verdicts come back, faults become typed failures, nothing hangs."""

import asyncio
import os
import pathlib
import signal
import time

import pytest

from rw.errors import ConfigError, FailureCause, InfrastructureFailure
from rw.rollout.scorer import Scorer
from rw.types import Query, Verdict

SCORERS = "scorers_for_tests:SCORERS"


@pytest.fixture(autouse=True)
def scorers_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parent.parent / "data" / "scorers"))


def query(dataset):
    return Query(id="q1", dataset=dataset, domain="recall", prompt="Capital of Peru?", reference="Lima")


async def test_verdicts_of_many_answers_come_back_to_their_own_callers():
    async with Scorer(SCORERS, processes=2) as score:
        answers = ["Lima", "Quito", "Lima", "", "Lima"]
        verdicts = await asyncio.gather(*[score(query("exact"), answer) for answer in answers])
    assert verdicts == [Verdict(correct=answer == "Lima", detail="exact") for answer in answers]


async def test_a_process_serves_many_answers_whatever_scorers_print():
    async with Scorer(SCORERS, processes=1) as score:
        first = await score(query("process_id"), "x")
        assert (await score(query("noisy"), "x")).correct
        assert await score(query("process_id"), "x") == first


async def test_a_signal_to_the_whole_process_group_leaves_scoring_to_the_parent():
    async with Scorer(SCORERS, processes=1) as score:
        child = await score(query("process_id"), "x")
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(int(child.detail), number)
        assert await score(query("process_id"), "x") == child


async def test_scorer_processes_do_not_load_jax():
    async with Scorer(SCORERS, processes=1) as score:
        verdict = await score(query("loaded_modules"), "x")
    assert verdict.correct and "rw.types" in verdict.detail.split()


async def test_own_scorers_can_be_loaded_in_a_process():
    async with Scorer(processes=1) as score:
        with pytest.raises(InfrastructureFailure, match="KeyError: 'no_such_dataset'"):
            await score(query("no_such_dataset"), "x")


@pytest.mark.parametrize(
    "dataset, message",
    [("raising", "ArithmeticError: cannot weigh 7"), ("dying", "died"), ("hanging", "more than 0.5 s")],
)
async def test_scorer_faults_are_failures_and_the_next_answer_is_scored(dataset, message):
    async with Scorer(SCORERS, processes=1, timeout_s=5.0 if dataset != "hanging" else 0.5) as score:
        with pytest.raises(InfrastructureFailure, match=message) as caught:
            await score(query(dataset), "7")
        assert caught.value.cause is FailureCause.SCORER_FAULT
        score.timeout_s = 20.0
        assert (await score(query("exact"), "Lima")).correct


async def test_process_that_died_while_idle_costs_no_verdict():
    async with Scorer(SCORERS, processes=1) as score:
        assert (await score(query("exact"), "Lima")).correct
        (idle,) = score._idle
        idle.kill()
        await idle.wait()
        assert (await score(query("exact"), "Lima")).correct


async def test_no_process_outlives_its_scorer_or_its_time_limit():
    started = []
    async with Scorer(SCORERS, processes=2, timeout_s=20.0) as score:
        start = score._start

        async def start_and_note():
            started.append(await start())
            return started[-1]

        score._start = start_and_note
        await asyncio.gather(score(query("exact"), "Lima"), score(query("exact"), "Lima"))
        score.timeout_s = 0.2
        with pytest.raises(InfrastructureFailure):
            await score(query("hanging"), "x")
        assert sorted(process.returncode is None for process in started) == [False, True]
    assert [process.returncode for process in started] == [-9, -9]


async def test_cancelling_a_caller_ends_a_hanging_scorer_at_once():
    async with Scorer(SCORERS, processes=1) as score:
        await score(query("exact"), "Lima")
        hanging = asyncio.create_task(score(query("hanging"), "x"))
        await asyncio.sleep(0.1)
        started = time.monotonic()
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert time.monotonic() - started < 1.0
        assert (await score(query("exact"), "Lima")).correct


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match="module:attribute"):
        Scorer("rw.scoring")
    with pytest.raises(ConfigError, match="at least 1"):
        Scorer(SCORERS, processes=0)
