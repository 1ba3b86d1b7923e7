"""Scorers in processes of their own: verdicts come back, faults become typed failures, nothing hangs."""

import asyncio
import dataclasses
import os
import pathlib
import signal
import time

import pytest

from rw.errors import ConfigError, FailureCause, InfrastructureFailure
from rw.rollout.lag import LoopLag
from rw.rollout.scorer import ENVIRONMENT, Scorer
from rw.scoring.config import ScoringConfig
from rw.types import ProgramTests, Query, Verdict

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


async def test_a_sandbox_fault_is_a_failure_of_its_own_cause():
    async with Scorer(SCORERS, processes=1) as score:
        with pytest.raises(InfrastructureFailure, match="no sandbox here") as caught:
            await score(query("faulty_sandbox"), "x")
        assert caught.value.cause is FailureCause.SANDBOX_FAULT
        assert score.take_metrics()["scoring/faulty_sandbox/faults"] == 1


async def test_scorers_are_made_by_a_function_of_the_config():
    async with Scorer("scorers_for_tests:of_config", ScoringConfig(test_s=2.5), processes=1) as score:
        assert (await score(query("limits"), "x")).detail == "2.5"


async def test_no_key_of_the_environment_reaches_a_scorer(monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", "sk-secret")
    async with Scorer(SCORERS, processes=1) as score:
        verdict = await score(query("environment"), "x")
    names = set(verdict.detail.split())
    assert "PATH" in names and not names - {*ENVIRONMENT, "PYTHONPATH", "PYTHONHASHSEED"}


async def test_signals_do_not_stay_ignored_in_what_a_scorer_starts():
    async with Scorer(SCORERS, processes=1) as score:
        assert (await score(query("signals_of_a_child"), "x")).correct


async def test_the_limit_of_a_scorer_itself_comes_first():
    async with Scorer(SCORERS, processes=1, timeout_s=20.0, own_limit_s=lambda query: 30.0) as score:
        await score(query("exact"), "Lima")
        score.timeout_s = 0.1  # beyond its own limit, which no answer here comes near
        assert (await score(query("slow"), "0.4")).correct
    async with Scorer(SCORERS, processes=1, timeout_s=20.0) as score:
        await score(query("exact"), "Lima")
        score.timeout_s = 0.1
        with pytest.raises(InfrastructureFailure, match="scorer slow took more than 0.1 s"):
            await score(query("slow"), "0.4")


async def test_metrics_tell_of_each_data_set_how_long_it_took_and_waited():
    async with Scorer(SCORERS, processes=1) as score:
        await asyncio.gather(*[score(query("slow"), "0.2") for _ in range(3)], score(query("exact"), "Lima"))
        found = score.take_metrics()
        assert score.take_metrics() == {}
    assert {name.split("/")[1] for name in found} == {"slow", "exact"}
    assert found["scoring/slow/answers"] == 3 and found["scoring/slow/faults"] == 0
    assert 0.2 <= found["scoring/slow/mean_s"] <= found["scoring/slow/max_s"]
    assert found["scoring/slow/waiting_s"] >= 0.1  # in turn: 0, 0.2 and 0.4 s, and the start of the process


async def test_answers_to_questions_with_large_tests_never_block_the_loop():
    values = [list(range(40_000))]  # 270 KB as JSON
    tests = ProgramTests("function", (tuple(values),), ([1],), "solve")
    large = [dataclasses.replace(query("exact"), id=f"q{k}", reference=tests) for k in range(7)]
    async with Scorer(SCORERS, processes=2) as score, LoopLag(interval_s=0.01) as lag:
        verdicts = await asyncio.gather(*[score(one, "x") for one in large for _ in range(8)])
    assert len(verdicts) == 56 and lag.longest_s < 0.5
