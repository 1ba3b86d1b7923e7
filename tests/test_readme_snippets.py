"""What the README says about extending rw is run as it stands: modules are written from its blocks, commands given."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from rw import cli
from rw.core.advantage_contract import check_advantage
from rw.core.advantages import AdvantageConfig, comet, resolve
from rw.data.prepared import read_queries
from rw.evaluation.outcomes import read_arms
from rw.scoring.config import ScoringConfig
from rw.workers.endpoint_file import load_endpoints

ROOT = pathlib.Path(__file__).parent.parent
SECTION = re.search(r"^## Extending rw\n(.*?)^## ", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)[
    1
]
MODULES = ("my_sets", "my_scorers", "my_baselines", "my_advantages")
RIDDLES = [
    {"number": 1, "riddle": "What has hands but no arms?", "word": "clock"},
    {"number": 2, "riddle": "What has teeth and does not bite?", "word": "comb"},
]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)


def command(word):
    """The arguments of the README's command of that name, without what stands before `rw`."""
    (found,) = [block for block in blocks("bash") if f"rw {word} " in block]
    words = shlex.split(found.replace("\\\n", " "))
    return words[words.index("rw") + 1 :]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with the README's modules, and rows for its data set."""
    for block in (*blocks("python"), *blocks("yaml")):
        name = re.match(r"# (\S+)\n", block)[1]
        (tmp_path / name).write_text(block, encoding="utf-8")
    (tmp_path / "riddles.jsonl").write_text("".join(json.dumps(row) + "\n" for row in RIDDLES), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)


def test_every_module_of_the_section_is_there(place):
    assert {path.stem for path in place.glob("my_*.py")} == set(MODULES)
    (worker,) = load_endpoints(place / "my_workers.yaml")
    assert worker.id == "worker_1"


def test_a_data_set_is_prepared_and_its_scorer_judges(place):
    (example,) = re.findall(r'`(\{"number".*?\})`', SECTION)
    assert json.loads(example) == RIDDLES[0]
    assert cli.main(command("data")) == 0
    queries = read_queries("data/riddles.jsonl").queries
    assert [query.id for query in queries] == ["riddles/1", "riddles/2"]
    answers = [("riddles/1", "It is a clock"), ("riddles/2", "A saw")]
    lines = [json.dumps({"id": name, "response": text}) for name, text in answers]
    (place / "answers.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert cli.main([*command("score"), "--processes", "1"]) == 0
    verdicts = [json.loads(line) for line in (place / "verdicts.jsonl").read_text().splitlines()]
    assert [(one["id"], one["correct"]) for one in verdicts] == [("riddles/1", True), ("riddles/2", False)]
    (own,) = re.findall(r"`config.scoring.own = \((.*?),\)`", SECTION)
    assert ScoringConfig(own=(json.loads(own),)).own_functions == {"riddles": "my_scorers:names_it"}


def test_the_advantage_is_one(place):
    (name,) = [word.partition("=")[2] for word in command("train") if word.startswith("--config.advantage.function=")]
    function = resolve(name)
    config = AdvantageConfig(efficiency_weight=0.1)
    check_advantage(function, name, config)
    assert function is not comet


def run(place, arguments):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(place), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-m", "rw.cli", *arguments], cwd=place, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.full
def test_the_baseline_learns_from_recorded_scores(place):
    run(place, command("baselines"))
    arms = read_arms(place / "runs" / "centroids")
    mean = {name: sum(one.value for one in arm.outcomes) / len(arm.outcomes) for name, arm in arms.items()}
    assert {"baseline_centroids", "baseline_knn"} < mean.keys()
    fixed = [value for name, value in mean.items() if name.startswith("baseline_always_")]
    assert mean["baseline_centroids"] > sum(fixed) / len(fixed)


@pytest.mark.full
def test_a_run_trains_with_the_advantage(place):
    arguments = [str(ROOT / word) if word.startswith("configs/") else word for word in command("train")]
    small = [
        "steps=1",
        "evaluation.every=0",
        "evaluation.test_queries=0",
        "queries_per_batch=4",
        "rollouts_per_query=4",
    ]
    run(place, [*arguments, *(f"--config.{override}" for override in small)])
    recorded = json.loads((place / "runs" / "bold" / "config.json").read_text())
    assert recorded["advantage"]["function"].startswith("my_advantages:bold_modes")
