"""`rw evaluate` on prepared files: test questions and sets that are held out altogether, Workers at an address."""

import asyncio
import collections
import dataclasses
import pathlib
import threading

import pytest

from rw import evaluate
from rw.data.prepared import write_queries
from rw.rollout.credit import answer_of
from rw.simulation.queries import distinct
from rw.simulation.skills import WORKER_IDS, endpoints
from rw.workers.completion import Completion
from rw.workers.loopback import serve

from .evaluations import arguments, arm, json_lines, main

ROOT = pathlib.Path(__file__).parents[2]
SETS = {"train": ("trivia_qa",), "test": ("trivia_qa", "sat_bench"), "held_out": ("bbh",)}
ANSWER = {"trivia_qa": "7", "sat_bench": "SAT", "bbh": "(B)"}


@pytest.fixture(scope="module")
def asked():
    """What the Workers were asked, in order; the server runs in a thread, as on another machine."""
    return []


@pytest.fixture(scope="module")
def base_url(asked):
    def handler(call):
        asked.append(call)
        return Completion("<answer>7</answer>", 10, 3)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(serve(handler, models=WORKER_IDS), loop).result(30)
    yield server.base_url
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def files(base_url, tmp_path_factory):
    """Config keys: questions of the simulated world, which the router knows how to take up, as those of other sets."""
    folder, drawn = tmp_path_factory.mktemp("prepared"), iter(distinct(0, 40, "test", 0))
    keys = collections.defaultdict(list)
    for split, names in SETS.items():
        for name in names:
            count = 16 if split == "train" else 3
            queries = [
                dataclasses.replace(next(drawn), id=f"{name}/{split}/{k}", dataset=name, reference=ANSWER[name])
                for k in range(count)
            ]
            keys[f"data__{split}_files"].append(str(folder / f"{name}.{split}.jsonl"))
            write_queries(keys[f"data__{split}_files"][-1], queries, {"dataset": name, "split": split})
    workers = {"workers__kind": "http", "workers__endpoints": list(map(dataclasses.asdict, endpoints(base_url)))}
    keys |= {"data__source": "files", "evaluation__test_queries": 4, "evaluation__every": 0, "evaluation__arms": "()"}
    return {**keys, **workers}


def test_held_out_sets_are_asked_whole_beside_the_test_questions(files, asked, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "write_results", lambda path, against: path)
    monkeypatch.setattr(evaluate, "print_results", lambda path: None)
    workdir = tmp_path / "evaluation"
    main(arguments(ROOT, workdir, "--arms", "trained,forced_single", **files))
    header, outcomes = arm(workdir, "trained")
    assert collections.Counter(outcome["dataset"] for outcome in outcomes) == {"trivia_qa": 2, "sat_bench": 2, "bbh": 3}
    assert header["queries"] == 7 and len(header["files"]) == len(header["held_out_files"]) == 64
    _, forced = arm(workdir, "forced_single")
    right = [outcome for outcome in forced if outcome["correct"]]
    assert {outcome["dataset"] for outcome in right} == {"trivia_qa"} and right[0]["answer"] == answer_of("7")
    # The request log: what training asks of Workers, too.
    assert asked and {(call.temperature, call.seed, call.max_tokens) for call in asked} == {(0.2, 42, 4096)}
    booked = [line for line in json_lines(workdir / "ledger.jsonl") if line["kind"] == "call"]
    assert len(booked) == len(asked)


def test_a_held_out_set_alone_is_enough(files, tmp_path, capsys):
    given = arguments(ROOT, tmp_path / "evaluation", "--dry-run", **files | {"evaluation__test_queries": 0})
    main(given)
    assert "evaluation          │        3" in capsys.readouterr().out
    none = files | {"evaluation__test_queries": 0, "data__held_out_files": "()"}
    main(arguments(ROOT, tmp_path / "evaluation", **none), expect=2)
    assert "set evaluation.test_queries, and data.test_files or data.held_out_files" in capsys.readouterr().err
