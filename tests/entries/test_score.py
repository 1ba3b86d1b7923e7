"""`rw score`: verdicts of anyone's answers, one line each, and going on where it was stopped."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from rw import cli, score
from rw.data.prepared import write_queries
from rw.errors import FailureCause, InfrastructureFailure, SandboxError
from rw.evaluation.judged import Judged, Response, Verdicts
from rw.scoring import SCORERS
from rw.scoring.config import ScoringConfig
from rw.scoring.sandbox import strongest_tier
from rw.types import ProgramTests, Query

ROOT = pathlib.Path(__file__).parent.parent.parent
SUMS = tuple(Query(f"math/{k}", "math", "math", f"What is {k} + {k}?", str(2 * k)) for k in range(5))


def lines(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().split("\n") if line]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_queries("queries.jsonl", SUMS, {"dataset": "math", "split": "test", "dropped": {}, "sources": []})
    return tmp_path


def respond(*pairs):
    rows = [json.dumps({"id": name, "response": text, "model": "any"}) for name, text in pairs]
    pathlib.Path("responses.jsonl").write_text("\n".join(rows) + "\n")


def rw_score(*extra, dataset="math", queries="queries.jsonl"):
    given = ["--queries", queries, "--responses", "responses.jsonl", "--output", "verdicts.jsonl", "--processes", "1"]
    return cli.main(["score", "--dataset", dataset, *given, *extra])


@pytest.fixture
def judged(monkeypatch):
    """What was judged, instead of judging it in processes: texts by order; `broken` ones fail."""
    asked = []

    class InProcess(score.Scorer):
        broken = ()

        async def ask(self, key, query, response):
            if response:
                asked.append(response)
            if response in self.broken:
                raise InfrastructureFailure(FailureCause.SCORER_FAULT, "it died")
            return SCORERS[key](response, query)

    monkeypatch.setattr(score, "Scorer", InProcess)
    asked_and = type("Judged", (), {"texts": asked, "scorer": InProcess})
    return asked_and


def test_each_answer_gets_a_line_and_the_summary_counts_them(place, judged, capsys):
    respond(("math/1", "2"), ("2", r"\boxed{4}"), ("math/2", "5"), ("math/9", "1"), ("math/0", ""))
    assert rw_score() == 0
    found = {(line["id"], line["index"]): line for line in lines("verdicts.jsonl")}
    assert {place: line["correct"] for place, line in found.items()} == {
        ("math/1", 0): True, ("math/2", 0): True, ("math/2", 1): False, ("math/0", 0): False
    }  # fmt: skip
    first = found["math/1", 0]
    assert (first["verdict"], first["tier"], first["scorer"].split("/")[0]) == ("pass", "", "math")
    assert len(first["response_sha256"]) == 64 and set(first) == {
        "id", "index", "verdict", "correct", "detail", "scorer", "tier", "response_sha256", "rules"
    }  # fmt: skip
    printed = capsys.readouterr().out
    for said in (
        "1 responses name no question of the file: math/9",
        "1 questions have several responses; each is judged: math/2",
        "2 of 5 questions have no response: math/3, math/4",
        "2 of 4 answers are right (50.0%)",
        "verdicts: pass 2, wrong 2",
    ):
        assert said in printed


def test_a_summary_over_several_scorers_tells_them_apart():
    def one(scorer, correct):
        return Judged("q", 0, "pass" if correct else "wrong", correct, "", scorer, "", "0" * 64, "")

    mixed = [one("math/1", True), one("program/1", False), one("math/1", False)]
    assert "right, by scorer: math/1 1 of 2, program/1 0 of 1" in score.summary(mixed)
    assert len(score.summary(mixed[:1])) == 2


def test_what_was_judged_is_kept_and_what_changed_is_judged_again(place, judged, capsys):
    respond(("math/1", "2"), ("math/2", "4"), ("math/3", "7"))
    assert rw_score() == 0
    respond(("math/1", "2"), ("math/2", "5"), ("math/3", "7"), ("math/4", "8"))
    judged.texts.clear()
    assert rw_score() == 0 and sorted(judged.texts) == ["5", "8"]
    assert "2 of 4 answers were judged before" in capsys.readouterr().out
    assert sorted((line["id"], line["correct"]) for line in lines("verdicts.jsonl")) == [
        ("math/1", True), ("math/2", False), ("math/3", False), ("math/4", True)
    ]  # fmt: skip
    judged.texts.clear()
    assert rw_score("--math-equality", "string") == 0 and len(judged.texts) == 4  # other rules
    write_queries("queries.jsonl", [*SUMS[:4], Query("math/4", "math", "math", "What?", "9")], {"dataset": "math"})
    judged.texts.clear()
    assert rw_score("--math-equality", "string") == 0 and judged.texts == ["8"]  # another question


def test_another_version_of_the_scorer_judges_again(place, judged, monkeypatch):
    respond(("math/1", "2"), ("math/2", "4"))
    assert rw_score() == 0
    text = pathlib.Path("verdicts.jsonl").read_text()
    assert '"scorer": "math/' in text
    pathlib.Path("verdicts.jsonl").write_text(text.replace('"scorer": "math/', '"scorer": "math/0', 1))
    judged.texts.clear()
    assert rw_score() == 0 and judged.texts == ["2"] and len(lines("verdicts.jsonl")) == 2


@pytest.mark.parametrize("cut", [1, 40])
def test_a_torn_last_line_is_judged_again(place, judged, cut):
    respond(("math/1", "2"), ("math/2", "4"), ("math/3", "6"))
    assert rw_score() == 0
    whole = pathlib.Path("verdicts.jsonl").read_bytes()
    pathlib.Path("verdicts.jsonl").write_bytes(whole[:-cut])
    judged.texts.clear()
    assert rw_score() == 0 and len(judged.texts) == 1
    assert sorted(line["id"] for line in lines("verdicts.jsonl")) == ["math/1", "math/2", "math/3"]


@pytest.mark.parametrize("text", ['{"my": "notes"}', "notes", '{"id": "math/1", "response": "2"}', '{"id": "math/1"}'])
def test_a_file_of_another_kind_is_not_taken_for_a_torn_line(place, judged, text, capsys):
    respond(("math/1", "2"))
    pathlib.Path("verdicts.jsonl").write_text(text)
    assert rw_score() == 2 and "is no file of verdicts of rw score" in capsys.readouterr().err
    assert pathlib.Path("verdicts.jsonl").read_text() == text


def test_a_line_with_fields_of_other_types_is_none_of_ours(place, judged, capsys):
    respond(("math/1", "2"))
    assert rw_score() == 0
    line = lines("verdicts.jsonl")[0]
    pathlib.Path("verdicts.jsonl").write_text(json.dumps({**line, "id": ["math/1"]}) + "\n")
    assert rw_score() == 2 and "line 1 is no verdict of rw score" in capsys.readouterr().err


@pytest.mark.parametrize("answers_again", ["2", "3"])
def test_two_commands_do_not_write_one_output(place, judged, capsys, answers_again):
    respond(("math/1", "2"))
    assert rw_score() == 0
    respond(("math/1", answers_again), ("math/2", "4"))
    in_file = pathlib.Path("verdicts.jsonl").read_text()
    with Verdicts("verdicts.jsonl", ScoringConfig(), {"math": "math/1"}) as other:
        other.open([Response("math/1", "3")] if answers_again == "3" else [])
        assert rw_score() == 2 and "another rw score writes verdicts.jsonl" in capsys.readouterr().err
    assert answers_again == "3" or pathlib.Path("verdicts.jsonl").read_text() == in_file
    assert rw_score() == 0 and len(lines("verdicts.jsonl")) == 2


def test_an_output_that_cannot_be_written_is_named(place, judged, capsys):
    respond(("math/1", "2"))
    assert rw_score("--output", "nowhere/verdicts.jsonl") == 2
    assert "cannot write nowhere/verdicts.jsonl: No such file or directory" in capsys.readouterr().err


def test_faults_are_not_wrong_answers_and_are_tried_again(place, judged, capsys):
    respond(("math/1", "2"), ("math/2", "4"))
    judged.scorer.broken = ("4",)
    assert rw_score() == 6
    assert [line["verdict"] for line in lines("verdicts.jsonl")] == ["pass", "scorer_fault"]
    assert "1 of 1 answers are right" in (printed := capsys.readouterr().out)
    assert "1 answers could not be judged and count as nothing" in printed
    judged.scorer.broken = ()
    judged.texts.clear()
    assert rw_score() == 0 and judged.texts == ["4"]
    assert [line["verdict"] for line in lines("verdicts.jsonl")] == ["pass", "pass"]


@pytest.mark.parametrize(
    "responses, message",
    [
        ('{"id": "math/1"}', "line 1 is not of the form"),
        ('{"id": "math/1", "response": "2"}\n{"id": 1', "line 2 is no JSON"),
        ('{"id": ["a"], "response": "2"}', "must be a text or whole number"),
        ('{"id": "1", "response": null}', "response a text"),
        ("\n\n", "holds no responses"),
        ('{"id": "gsm8k/7", "response": "2"}', "no response names a question of the file; its first is 'math/0'"),
    ],
)
def test_responses_that_cannot_be_used_are_refused(place, responses, message, capsys):
    pathlib.Path("responses.jsonl").write_text(responses)
    assert rw_score() == 2
    assert message in capsys.readouterr().err and not pathlib.Path("verdicts.jsonl").exists()


def test_line_separators_inside_a_response_end_no_line(place, judged):
    pathlib.Path("responses.jsonl").write_text('{"id": "math/1", "response": "so\u2028\u0085 2"}\n', encoding="utf-8")
    assert rw_score() == 0 and judged.texts == ["so\u2028\u0085 2"]


def test_files_that_are_not_what_they_should_be_are_refused(place, judged, capsys):
    respond(("math/1", "2"))
    assert rw_score(dataset="apps") == 2
    assert "queries.jsonl has no questions of 'apps'; it has those of math" in capsys.readouterr().err
    assert rw_score(queries="nowhere.jsonl") == 2
    pathlib.Path("verdicts.jsonl").write_text("a log\n")
    assert rw_score() == 2
    assert "verdicts.jsonl line 1 is no verdict of rw score" in capsys.readouterr().err
    assert pathlib.Path("verdicts.jsonl").read_text() == "a log\n"


def test_questions_in_their_sets_own_schema_are_read_too(place, judged):
    row = {"id": "7", "domain": "sums", "prompt": "1 + 1?", "answer": "2", "scorer": "math"}
    pathlib.Path("own.jsonl").write_text(json.dumps(row) + "\n")
    respond(("7", "2"))
    assert rw_score(dataset="custom", queries="own.jsonl") == 0
    assert [(line["id"], line["correct"]) for line in lines("verdicts.jsonl")] == [("custom/7", True)]


def test_programs_are_judged_in_a_sandbox_which_is_said(place, capsys):
    try:
        tier = strongest_tier()
    except SandboxError as error:
        pytest.skip(str(error))
    tests = ProgramTests("stdin", ("1\n", "2\n"), ("2\n", "4\n"))
    write_queries("queries.jsonl", [Query("apps/1", "apps", "code", "Double it.", tests)], {"dataset": "apps"})
    respond(("apps/1", "```python\nprint(2 * int(input()))\n```"), ("apps/1", "```python\nprint(2)\n```"))
    assert rw_score(dataset="apps") == 0
    found = {line["index"]: line for line in lines("verdicts.jsonl")}
    assert [(found[k]["verdict"], found[k]["tier"]) for k in (0, 1)] == [("pass", str(tier)), ("wrong", str(tier))]
    assert f"tier {tier}" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_a_stopped_run_says_how_to_go_on_and_goes_on(place, number):
    """Judging takes long here, so that the signal finds it at work."""
    respond(*[(f"math/{k % 5}", "x" * k) for k in range(400)])
    command = [sys.executable, "-m", "rw.cli", "score", "--dataset", "math", "--queries", "queries.jsonl"]
    command += ["--responses", "responses.jsonl", "--output", "verdicts.jsonl", "--processes", "1"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'data' / 'scorers'}"}
    slow = "import rw.score as s, functools; s.Scorer = functools.partial(s.Scorer, 'scorers_for_tests:SLOW'); "
    slow += "import rw.cli, sys; sys.exit(rw.cli.main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", slow, *command[3:]], env=environment, stdout=subprocess.PIPE, text=True
    )
    output = pathlib.Path("verdicts.jsonl")
    deadline = time.monotonic() + 60
    while not (output.exists() and output.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert f"stopped by {number.name}; the same command goes on from verdicts.jsonl" in said
    judged_before = len(lines("verdicts.jsonl"))
    assert 1 <= judged_before < 400
    # The file is whole: with nothing more to judge, all of it is kept.
    respond(*[(f"math/{k % 5}", "x" * k) for k in range(400)][:1])
    done = subprocess.run([sys.executable, "-c", slow, *command[3:]], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "1 of 1 answers were judged before" in done.stdout


def test_a_scorer_of_ones_own_judges_its_data_set(place, monkeypatch, capsys):
    (place / "own_scorers.py").write_text("def shorter(answer, query):\n    return len(answer) < 4\n")
    monkeypatch.syspath_prepend(place)
    questions = [Query(f"brief/{n}", "brief", "recall", "Say it.", "x") for n in range(2)]
    write_queries("queries.jsonl", questions, {"dataset": "brief", "split": "test", "dropped": {}, "sources": []})
    respond(("brief/0", "yes"), ("brief/1", "a lot"))
    assert rw_score(dataset="brief") == 2
    assert "no scorer is named 'brief'" in capsys.readouterr().err
    assert rw_score("--scorer", "brief=own_scorers:shorter", dataset="brief") == 0
    assert [line["correct"] for line in lines("verdicts.jsonl")] == [True, False]
