"""Recorded runs: replayed without a Worker, a key or spend, what was lost too; what is missing stops the run."""

import json
import pathlib
import subprocess
import time

import pytest

from rw import cli, worker_pool
from rw.config import load_config
from rw.errors import CassetteError
from rw.evaluation.outcomes import outcomes
from rw.greedy import roll_out
from rw.parts import open_parts
from rw.sampler.scripted import ScriptedSampler
from rw.simulation.policies import BestPlans, script
from rw.types import Mode
from rw.workdir import Workdir

TINY = str(pathlib.Path(__file__).parent.parent / "data" / "configs" / "tiny.py")
LOSSY = [
    ("workers.fault_rate", "0.3"),
    ("client.retry.server_error", "1"),
    ("client.retry.backoff_s", "0.001"),
    ("rollout.max_lost", "1"),
]


def cassette(path, mode, questions=6, live=False):
    keys = [("workers.cassette", str(path)), ("workers.cassette_mode", mode), ("workers.allow_live", str(live))]
    return [*LOSSY, *keys, ("evaluation.every", "0"), ("evaluation.test_queries", str(questions))]


async def answered(workdir_path, overrides):
    """Outcomes of a scripted router in each mode, and the ledger's lines."""
    with Workdir(workdir_path) as workdir:
        async with open_parts(load_config(TINY, overrides), workdir) as run:
            by_id = {query.id: query for query in run.test}
            found = []
            for mode in Mode:
                sampler = ScriptedSampler(run.codec, script(BestPlans(mode), by_id.__getitem__))
                label = f"test_{mode.word}"
                found.append(outcomes(await roll_out(run, sampler, run.test, label, label)))
    lines = (workdir_path / "ledger.jsonl").read_text().splitlines()
    return found, [json.loads(line) for line in lines]


def of_kind(ledger, kind):
    return [line for line in ledger if line["kind"] == kind]


async def no_worker(*_, **__):
    raise AssertionError("a Worker was started")


async def test_a_run_is_replayed_with_its_losses_and_nothing_is_asked_or_spent(tmp_path, monkeypatch):
    path = tmp_path / "tape" / "calls.jsonl"
    found, booked = await answered(tmp_path / "recorded", cassette(path, "record"))
    whole = path.read_bytes()
    monkeypatch.setattr(worker_pool, "serve", no_worker)
    again, replayed = await answered(tmp_path / "replayed", cassette(path, "replay"))
    assert again == found
    statuses = {outcome.status for outcomes in found for outcome in outcomes}
    assert {"answered", "infrastructure_failure"} <= statuses
    assert {line["kind"] for line in replayed} == {"replayed"} and {line["source"] for line in replayed} == {"cassette"}
    accepted = [line["cost_usd"] for line in of_kind(booked, "call") if line["accepted"]]
    assert sorted(line["cost_usd"] for line in replayed if line["cost_usd"] is not None) == sorted(accepted)
    assert path.read_bytes() == whole


async def test_a_recording_that_goes_on_asks_only_for_what_is_new(tmp_path):
    path = tmp_path / "calls.jsonl"
    found, first = await answered(tmp_path / "a", cassette(path, "record", questions=4))
    more, second = await answered(tmp_path / "b", cassette(path, "record"))
    known = {identity(line) for line in of_kind(first, "call") if line["accepted"]}
    assert known and not known & {identity(line) for line in of_kind(second, "call")}
    assert {identity(line) for line in of_kind(second, "replayed")} <= known
    measured = [
        (was, now)
        for before, after in zip(found, more, strict=True)
        for was, now in zip(before, after, strict=False)
        if was.status == "answered"
    ]
    assert measured and all(was == now for was, now in measured)


def identity(line):
    return line["run"].partition("/")[2], *(line[name] for name in ("step", "group", "rollout", "turn", "call"))


async def test_a_missing_call_stops_the_run_unless_it_may_be_paid_for(tmp_path, monkeypatch):
    path = tmp_path / "calls.jsonl"
    found, _ = await answered(tmp_path / "a", cassette(path, "record", questions=4))
    with pytest.raises(CassetteError, match="has no reply of worker_. to test_single call 0/[45]/0/1/0 .*--allow-live"):
        await answered(tmp_path / "b", cassette(path, "replay"))
    more, ledger = await answered(tmp_path / "c", cassette(path, "replay", live=True))
    assert [outcomes[:4] for outcomes in more] == found
    assert {line["group"] for line in of_kind(ledger, "call")} == {4, 5}
    assert {line["group"] for line in of_kind(ledger, "replayed")} == {0, 1, 2, 3}
    once_more, ledger = await answered(tmp_path / "d", cassette(path, "replay"))
    assert once_more == more and of_kind(ledger, "call") == []  # what was paid for has been recorded


def test_the_flag_is_for_replays(tmp_path, capsys):
    assert cli.main(["train", "--config", TINY, "--workdir", str(tmp_path / "w"), "--allow-live"]) == 2
    assert "workers.allow_live (--allow-live) is for workers.cassette_mode='replay'" in capsys.readouterr().err


def train(workdir, warm, path, mode, *more):
    """Arguments of `rw train` for a run with losses and a cassette."""
    settings = [("init.path", str(warm)), ("evaluation.arms", "('trained','oracle')"), *LOSSY, *more]
    settings += [("workers.cassette", str(path)), ("workers.cassette_mode", mode)]
    return "train", workdir, *(f"--config.{key}={text}" for key, text in settings)


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_a_trained_run_that_was_killed_while_recording_is_replayed(run, warm, command, environment, tmp_path):
    path, recorded, replayed = tmp_path / "calls.jsonl", tmp_path / "recorded", tmp_path / "replayed"
    for calls in (20, 90, 150):  # in a validation, in steps
        slow = train(recorded, warm, path, "record", ("workers.latency_s", "0.3"))
        process = subprocess.Popen(command(*slow), env=environment, stdout=subprocess.DEVNULL, cwd=tmp_path)
        try:
            while not path.is_file() or path.read_bytes().count(b"\n") <= calls:
                assert process.poll() is None, "the run ended before it could be killed"
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()
    run(*train(recorded, warm, path, "record"))
    run(*train(replayed, warm, path, "replay"))
    for name in (f"trajectories/step_{step:06d}.jsonl" for step in (1, 2, 3, 4)):
        assert (replayed / name).read_bytes() == (recorded / name).read_bytes()
    books, saved = (
        [json.loads(line) for line in (workdir / "ledger.jsonl").read_text().splitlines()]
        for workdir in (recorded, replayed)
    )
    accepted = [identity(line) for line in of_kind(books, "call") if line["accepted"]]
    assert len(set(accepted)) == len(accepted)  # nothing was paid twice
    assert saved and {line["kind"] for line in saved} == {"replayed"}
    run(*train(tmp_path / "other", warm, path, "replay", ("seed", "5")), expect=2)
