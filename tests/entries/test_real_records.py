"""Real records of MATH, and records like those of TriviaQA and MBPP, through a step of training and scripted routers.

Questions are read from their sets' own schemas, Workers answer from a table over HTTP, and answers are judged by the
scorers and the sandbox of a real run.
"""

import ast
import asyncio
import json
import math
import pathlib
import subprocess
import sys
import threading

import pytest

from rw.data.prepared import read_queries, write_queries
from rw.data.source import load
from rw.errors import SandboxError
from rw.rollout.record import read_groups
from rw.scoring.sandbox import strongest_tier
from rw.workers.completion import Completion
from rw.workers.loopback import serve

DATA = pathlib.Path(__file__).parent.parent / "data"
WORKERS = ("worker_1", "worker_2", "worker_3", "worker_4", "worker_5", "worker_6")


def trivia(number, question, *aliases):
    answer = {"aliases": list(aliases), "normalized_aliases": [alias.lower() for alias in aliases], "value": aliases[0]}
    answer |= {"normalized_value": aliases[0].lower(), "matched_wiki_entity_name": "", "type": "WikipediaEntity"}
    return {"question": question, "question_id": f"tc_{number}", "question_source": "made up", "answer": answer}


def mbpp(number, text, code, *asserts):
    return {
        "task_id": number, "text": text, "code": code, "test_list": list(asserts), "test_setup_code": "",
        "challenge_test_list": [],
    }  # fmt: skip


TRIVIA = (
    trivia(1, "Which river flows through Cairo?", "Nile", "The Nile"),
    trivia(2, "Which planet has the Great Red Spot?", "Jupiter", "Planet Jupiter"),
    trivia(3, "How many strings has a violin?", "Four", "4"),
)
MBPP = (
    mbpp(1, "Write a function to add two numbers.", "def plus(a, b):\r\n    return a + b", "assert plus(2, 3) == 5"),
    mbpp(2, "Write a function to square a number.", "def square(x):\r\n\treturn x * x", "assert square(3) == 9"),
    mbpp(3, "Write a function to turn a list.", "def turned(xs):\r\n    return xs[::-1]", "assert turned([1]) == [1]"),
)  # fmt: skip
CODE = {f"mbpp/{row['task_id']}": row["code"] for row in MBPP}


@pytest.fixture(scope="module", autouse=True)
def sandbox():
    try:
        return strongest_tier()
    except SandboxError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def queries():
    maths = load("math", DATA / "sources" / "math.jsonl").queries
    shortest = sorted(maths, key=lambda query: len(query.prompt))[:4]
    return {"math": shortest, "trivia_qa": load("trivia_qa", TRIVIA).queries, "mbpp": load("mbpp", MBPP).queries}


def right_answer(query):
    if query.dataset == "mbpp":
        return f"```python\n{CODE[query.id]}\n```"
    return query.reference if isinstance(query.reference, str) else query.reference[-1]


@pytest.fixture(scope="module")
def base_url(queries):
    """Workers that know every answer; worker_2 is always wrong. Served by a thread, as another machine would be."""
    asked = {query.prompt: query for some in queries.values() for query in some}

    def handler(call):
        question = next(query for prompt, query in asked.items() if prompt in call.content)
        said = "I do not know" if call.model == "worker_2" else right_answer(question)
        return Completion(f"Let me see.\n<answer>{said}</answer>", 100, 20)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(serve(handler, models=WORKERS), loop).result(30)
    yield server.base_url
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def config(queries, base_url, tmp_path_factory):
    """The tiny config with real records: a mixture of three data sets, three Workers on loopback."""
    files, folder = [], tmp_path_factory.mktemp("prepared")
    for name, some in queries.items():
        files.append(str(folder / f"{name}.jsonl"))
        write_queries(files[-1], some, {"dataset": name, "split": "train", "dropped": {}, "sources": []})
    price = {"input_price": 1.0, "output_price": 1.0}
    endpoints = [{"id": name, "description": name, "model": name, "base_url": base_url, **price} for name in WORKERS]
    return [
        ("steps", "2"), ("schedule.cold_batches", "2"), 
        ("data.source", "files"), ("data.train_files", str(files)),
        ("data.quotas", "('math:3/2', 'trivia_qa:1/2', 'mbpp:2')"),
        ("workers.kind", "http"), ("workers.endpoints", str(endpoints)),
        ("init.source", "random"),
        ("protocol.prompt_limit", "120"), ("protocol.response_budget", "264"), ("protocol.observation_limit", "90"),
        ("evaluation.arms", "()"), ("evaluation.every", "0"), ("evaluation.test_queries", "0"),
    ]  # fmt: skip


def json_lines(path):
    return [json.loads(line) for line in path.read_text().split("\n") if line]


@pytest.fixture(scope="module")
def two_steps(config, environment, tmp_path_factory):
    """The directory of a run whose first step a scripted router took, and whose second one the tiny model."""
    path = tmp_path_factory.mktemp("real") / "run"
    script = pathlib.Path(__file__).parent / "scripted_step.py"
    command = [sys.executable, str(script), str(path), json.dumps(config)]
    done = subprocess.run(command, env=environment, cwd=path.parent, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return path


def test_scripted_routers_are_judged_by_real_scorers(two_steps):
    rollouts = json_lines(two_steps / "trajectories" / "step_000001.jsonl")
    assert {rollout["dataset"] for rollout in rollouts} == {"math", "trivia_qa", "mbpp"} and len(rollouts) == 24
    assert {rollout["status"] for rollout in rollouts} == {"answered"}
    assert all(rollout["correct"] == (rollout["rollout"] % 2 == 0) for rollout in rollouts)
    scorers = {rollout["dataset"]: rollout["verdict"]["scorer"].split("/")[0] for rollout in rollouts}
    assert scorers == {"math": "math", "trivia_qa": "trivia_qa", "mbpp": "program"}
    programs = [rollout for rollout in rollouts if rollout["dataset"] == "mbpp"]
    assert {rollout["verdict"]["tier"] for rollout in programs} == {str(strongest_tier())}
    assert programs[0]["reference"].keys() == {"kind", "tests", "public", "function", "sha256"}
    read = read_groups(two_steps / "trajectories" / "step_000001.jsonl")
    assert sorted(group.query.dataset for group in read) == ["math"] * 3 + ["mbpp"] * 2 + ["trivia_qa"]


def test_the_step_learns_from_the_verdicts_and_the_next_one_runs_the_model_itself(two_steps):
    first, second = json_lines(two_steps / "metrics.jsonl")
    assert first["accuracy"] == 0.5 and first["grad_norm"] > 0 and first["infra/excluded_frac"] == 0
    assert first["N_inner"] > 0 and second["sampler/sampled_tokens"] > 0 and math.isfinite(second["loss/total"])
    assert [second[f"data/passes/{name}"] for name in ("math", "trivia_qa", "mbpp")] == [5 / 4, 1.0, 4 / 3]


def test_scoring_is_reported_and_never_blocks_the_loop(two_steps):
    first, _ = json_lines(two_steps / "metrics.jsonl")
    for name in ("math", "trivia_qa", "mbpp"):
        assert first[f"scoring/{name}/answers"] >= 4 and first[f"scoring/{name}/faults"] == 0
        assert 0 < first[f"scoring/{name}/mean_s"] <= first[f"scoring/{name}/max_s"]
    assert first["perf/loop_lag_s"] < 1.0  # what is logged as a warning; a shared machine may be slow


def test_a_row_says_where_the_time_of_its_step_went(two_steps):
    first, second = json_lines(two_steps / "metrics.jsonl")
    assert first["perf/decode_s"] == 0 < second["perf/decode_s"] and second["perf/prefill_s"] > 0
    for row in (first, second):
        seconds = {name.removeprefix("perf/"): value for name, value in row.items() if name.startswith("perf/")}
        assert sum(seconds[name] for name in ("rollout_s", "train_s", "publish_s")) <= seconds["step_s"]
        idle = seconds["wait_s"] + seconds["score_s"] + seconds["host_s"]
        assert 0 < seconds["critical_path_s"] <= seconds["makespan_s"] <= seconds["rollout_s"] and 0 < idle
        assert idle + row["sampler/device_s"] < seconds["makespan_s"] + 0.1
        parts = sum(value for name, value in seconds.items() if name.startswith("critical_path/"))
        assert parts == pytest.approx(seconds["critical_path_s"]) and seconds["straggler_s"] >= 0
        assert 0 <= seconds["decode_idle_share"] <= 1 and 0 < seconds["learner_idle_share"] < 1
        assert {one["mode"] for one in seconds["slowest"]} == {
            name.split("/")[1] for name in seconds if name.startswith("episode_s/")
        }


@pytest.mark.full
def test_a_run_does_not_go_on_with_files_that_hold_other_questions(two_steps, config, run):
    path = pathlib.Path(ast.literal_eval(dict(config)["data.train_files"])[0])
    write_queries(path, read_queries(path).queries[1:], {"dataset": "math"})
    overrides = [f"--config.{key}={value}" for key, value in config]
    assert "questions.train" in run("train", two_steps, *overrides, expect=2).stderr
