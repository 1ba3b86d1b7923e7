"""Evaluations in processes of their own: killed, of several processes, of the routers that a run left."""

import collections
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest

from rw import convert
from rw.evaluation.outcomes import arm_path
from rw.workers.ledger import read_ledger
from rw.workers.lines import read_lines

from .evaluations import answers, arguments, arm, arms, assert_same_arms, calls, main

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = pytest.mark.full


def started(given, environment, cwd):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "rw.cli", *map(str, given)]
    return subprocess.Popen(
        command, env=environment, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def journaled(workdir):
    """(label, its parts of a CallId…) of each answer in the journals of arms that are not whole."""
    return {
        (path.parent.name.rpartition("_")[0], *record["call"])
        for path in sorted(workdir.glob("journal/*/segment_*.jsonl"))
        for record in read_lines(path.read_bytes())[0]
        if record["kind"] == "response"
    }


def wait_for_answers(process, workdir, known, more):
    """Returns once the journals hold so many more answers than those known, or the process has ended."""
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline and len(journaled(workdir) - known) < more:
        time.sleep(0.01)


def counted(workdir, kind):
    """Lines of that kind in the ledger, by call; the last line may have been cut off by a kill."""
    records, _ = read_ledger(workdir / "ledger.jsonl")
    return collections.Counter(identity(line) for line in records if line["kind"] == kind)


def identity(line):
    return line["run"].partition("/")[2], *(line[name] for name in ("step", "group", "rollout", "turn", "call"))


def results(workdir):
    """The numbers of the results, but for what a clock measured and where they come from."""
    text = (workdir / "report" / "results.json").read_text(encoding="utf-8")
    return json.loads(text, object_hook=lambda found: {key: found[key] for key in found if not is_of_this_run(key)})


def is_of_this_run(key):
    return key == "about" or "latency" in key


def with_fingerprint_of(expected, found):
    """`expected` with the fingerprints of the other config, whose Workers take longer."""
    for name, (header, *_) in expected.items():
        if "config_fingerprint" in header:
            header["config_fingerprint"] = found[name][0]["config_fingerprint"]
    return expected


@pytest.mark.timeout(900)
def test_kills_at_any_time_change_nothing_and_nothing_is_paid_twice(environment, tmp_path):
    names, (whole, killed) = ("--arms", "trained,forced"), (tmp_path / name / "evaluation" for name in ("a", "b"))
    main(arguments(ROOT, whole, *names))
    alike = {**environment, "XLA_FLAGS": os.environ["XLA_FLAGS"]}  # compiled as in this process
    alive, known = 0, {}  # answers that were journaled when it was killed: how often they had been asked for
    for more in (2, 3, 7, 5):  # answers beyond those that were there
        process = started(arguments(ROOT, killed, *names, workers__latency_s=0.3), alike, tmp_path)
        wait_for_answers(process, killed, known.keys(), more)
        alive += process.poll() is None
        process.kill()
        process.communicate()
        asked = counted(killed, "sent")
        known = {call: asked[call] for call in journaled(killed)} | known
    assert alive == 4
    main(arguments(ROOT, killed, *names))
    assert answers(killed) == with_fingerprint_of(answers(whole), answers(killed))
    assert results(killed) == results(whole)
    asked = counted(killed, "sent")
    assert len(known) >= 15 and all(asked[call] == count for call, count in known.items())
    assert known.keys() <= counted(killed, "replayed").keys()


@pytest.fixture(scope="module")
def trained(run, warm, tmp_path_factory):
    """A run of the tiny config, with its own final evaluation."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    run("train", workdir, f"--config.init.path={warm}", "--config.steps=2")
    return workdir


def stamps(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


@pytest.mark.timeout(900)
def test_a_run_is_evaluated_as_it_evaluated_itself_and_is_only_read(trained, run, warm, tmp_path):
    before, workdir = stamps(trained), tmp_path / "evaluation"
    given = (f"--checkpoint={trained}", "--config.steps=2", "--config.init.path=")
    run("evaluate", workdir, *given, "--arms", "trained,forced,warm_start")
    assert stamps(trained) == before
    assert_same_arms(workdir, trained)
    for name in arms(workdir):
        ours, theirs = arm(workdir, name)[0], arm(trained, name)[0]
        assert ours["router"]["fingerprint"] == theirs["router"]["fingerprint"] and ours["step"] == theirs["step"]
    best = arm(workdir, "trained")[0]["step"]
    assert f"the best by validation, of step {best}" in arm(workdir, "trained")[0]["router"]["what"]
    other = next(step for step in (1, 2) if step != best)
    run("evaluate", workdir, *given, f"--step={other}", "--arms=trained")
    assert arm(workdir, "trained")[0]["step"] == other and arms(workdir) == ["trained", "warm_start"]
    failed = run("evaluate", workdir, *given, "--step=9", "--arms=trained", expect=2)
    assert "keeps only the routers of steps" in failed.stderr


@pytest.mark.timeout(900)
def test_a_router_of_hugging_faces_format_is_the_same_router(trained, run, tmp_path):
    exported, workdir = tmp_path / "hf", tmp_path / "evaluation"
    convert.export_hf(str(trained), str(exported), "float32")
    run("evaluate", workdir, f"--checkpoint={trained}", "--arms=trained")
    answered = arm_path(workdir, "trained").read_bytes()
    said = run("evaluate", workdir, f"--checkpoint={exported}", "--arms=trained").stdout
    assert "test:" not in said and arm_path(workdir, "trained").read_bytes() == answered
    other = run("evaluate", workdir, f"--checkpoint={exported}", "--config.model.rope_theta=5e4", expect=2)
    assert "config.model.rope_theta is 50000.0" in other.stderr


@pytest.mark.timeout(900)
def test_two_processes_answer_as_one(environment, tmp_path):
    main(arguments(ROOT, tmp_path / "one", "--arms", "forced"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = ("--processes", "2", "--coordinator", f"127.0.0.1:{free.getsockname()[1]}")
    given = arguments(ROOT, tmp_path / "two", "--arms", "forced", *place, mesh__fsdp=2)
    jobs = [started([*given, "--process", index], environment, tmp_path) for index in (0, 1)]
    try:
        said = [process.communicate(timeout=300)[0] for process in jobs]
    finally:
        for process in jobs:
            process.kill()
    assert [process.returncode for process in jobs] == [0, 0], said
    assert "results:" in said[0] and "test:" not in said[1]
    assert_same_arms(tmp_path / "two", tmp_path / "one")
    assert len(calls(tmp_path / "two" / "process_1")) > 0
