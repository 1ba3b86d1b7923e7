"""`rw baselines`: a matrix through real episodes, paid for once; arms that compare; what is refused before it costs."""

import json
import pathlib

import pytest

from rw import cli
from rw.baselines import Options, baselines, train_questions
from rw.config import load_config
from rw.errors import BudgetExhaustedError, ConfigError, DataError
from rw.evaluation.baselines import choose_names
from rw.evaluation.outcomes import read_arm, read_arms, trajectories_path
from rw.evaluation.response_matrix import matrix_path, read_matrix, write_matrix
from rw.questions import held_out_queries
from rw.workers.ledger import read_ledger

ROOT = pathlib.Path(__file__).parent.parent.parent
TINY = str(ROOT / "tests" / "data" / "configs" / "tiny.py")
QUICK = choose_names(("always", "oracle", "vote", "cascade", "knn", "svm", "knn_multi"), ())


@pytest.fixture(autouse=True)
def without_report(monkeypatch):
    """Reports take most of the time of a small run, and have tests of their own."""
    for name in ("write_results", "print_results"):
        monkeypatch.setattr(f"rw.baselines.{name}", lambda path: path)


def tiny(*overrides):
    return load_config(TINY, list(overrides))


def asked(workdir):
    """Calls that were sent, as (run, Worker, question)."""
    records = read_ledger(workdir / "ledger.jsonl")[0] if (workdir / "ledger.jsonl").exists() else []
    calls = [record for record in records if record["kind"] == "call"]
    return [(call["run"], call["worker"], call["group"], call["rollout"], call["turn"]) for call in calls]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("baselines") / "run"
    assert baselines(tiny(), str(workdir), Options(QUICK, train_queries=20)) == 0
    return workdir


def test_every_worker_is_asked_every_question_once(done):
    calls = asked(done)
    by_label = {label: [call for call in calls if call[0].endswith(label)] for label in ("train", "test", "knn_multi")}
    assert {label: len(some) for label, some in by_label.items()} == {"train": 120, "test": 60, "knn_multi": 20}
    assert len(set(calls)) == len(calls) == 200
    assert not list((done / "journal").glob("matrix_*"))
    matrix = read_matrix(matrix_path(done, "test"))
    assert matrix.lost == 0 and len(matrix.workers) == 6 and matrix.has_answers
    assert all(
        cell.cost_usd > 0 and cell.latency_s >= 0 and cell.output_tokens > 0 for row in matrix.cells for cell in row
    )


def test_arms_answer_the_test_questions_in_their_order(done):
    arms = read_arms(done)
    _, test = held_out_queries(tiny())
    assert {"baseline_always_worker_1", "baseline_vote", "baseline_knn", "baseline_knn_multi"} < set(arms)
    assert len(arms) == 12
    for arm in arms.values():
        assert [one.query_id for one in arm.outcomes] == [query.id for query in test]
        assert (arm.about["split"], arm.about["queries"], arm.about["step"]) == ("test", 10, None)
    right = {name: sum(one.correct for one in arm.outcomes) for name, arm in arms.items()}
    assert right["baseline_oracle"] == max(right.values())
    assert arms["baseline_knn"].about["trained_on"]["questions"] == 20
    assert "trained_on" not in arms["baseline_vote"].about


def test_what_two_neighbours_choices_say_can_be_read(done):
    lines = trajectories_path(done, "baseline_knn_multi").read_text().splitlines()
    said = [json.loads(line) for line in lines]
    arm = read_arm(done / "evaluation" / "baseline_knn_multi.jsonl")
    assert [one["mode"] for one in said] == ["multi"] * 10 == [one.mode for one in arm.outcomes]
    assert all(len(one["calls"]) == 2 and one["calls"][0]["worker_id"] != one["calls"][1]["worker_id"] for one in said)
    firsts = read_arm(done / "evaluation" / "baseline_knn.jsonl").outcomes
    assert [one["calls"][0]["worker_id"] for one in said] == [one.workers[0] for one in firsts]
    assert (done / "report" / "results.html").is_file()


def test_the_same_command_again_asks_nobody_and_gives_the_same(done):
    before = {path: path.read_bytes() for path in (done / "evaluation").rglob("*.jsonl")}
    calls = asked(done)
    assert baselines(tiny(), str(done), Options(QUICK, train_queries=20)) == 0
    assert asked(done) == calls
    assert {path: path.read_bytes() for path in (done / "evaluation").rglob("*.jsonl")} == before


def test_an_arm_of_a_router_that_was_learnt_otherwise_is_written_anew(done):
    path = done / "evaluation" / "baseline_svm.jsonl"
    before = path.read_bytes()
    for changed in (before.replace(b'"worker_', b'"old_', 1), b"no arm"):
        path.write_bytes(changed)
        assert baselines(tiny(), str(done), Options(("svm",), train_queries=20)) == 0
        assert path.read_bytes() == before


def test_fewer_training_questions_are_a_part_of_the_matrix(done):
    calls = asked(done)
    assert baselines(tiny(), str(done), Options(("svm",), train_queries=10)) == 0
    assert asked(done) == calls
    assert read_arm(done / "evaluation" / "baseline_svm.jsonl").about["trained_on"]["questions"] == 10
    with pytest.raises(DataError, match="lacks 10 of the 30 questions"):
        baselines(tiny(), str(done), Options(("svm",), train_queries=30))


def test_a_matrix_of_another_workdir_serves_without_a_call(done, tmp_path):
    workdir = tmp_path / "other"
    assert baselines(tiny(), str(workdir), Options(("vote", "knn"), 20, matrix=str(done))) == 0
    assert asked(workdir) == [] and not (workdir / "matrix").exists()
    for arm in ("baseline_vote", "baseline_knn"):
        assert read_arm(workdir / "evaluation" / f"{arm}.jsonl") == read_arm(done / "evaluation" / f"{arm}.jsonl")
    with pytest.raises(ConfigError, match="--matrix .* is not there"):
        baselines(tiny(), str(workdir), Options(("vote",), matrix=str(tmp_path / "nowhere")))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (("workers.world_seed", "5"), "Worker worker_1 has another model or other settings"),
        (
            ("protocol.observation_limit", "40"),
            "protocol.observation_limit was 32 when the Workers were asked and is 40",
        ),
        (("evaluation.test_queries", "12"), "lacks 2 of the 12 questions"),
    ],
)
def test_a_matrix_of_another_setting_is_refused(done, override, said):
    calls = asked(done)
    with pytest.raises(DataError, match=said):
        baselines(tiny(override), str(done), Options(("vote",)))
    assert asked(done) == calls


def test_a_run_that_a_cap_stopped_pays_for_no_answer_twice(tmp_path):
    workdir = tmp_path / "run"
    with pytest.raises(BudgetExhaustedError):
        baselines(tiny(("budget.run_usd", "0.003"), ("workers.latency_s", "0.01")), str(workdir), Options(("vote",)))
    first = asked(workdir)
    assert 0 < len(first) < 60 and not matrix_path(workdir, "test").exists()
    assert baselines(tiny(), str(workdir), Options(("vote",))) == 0
    assert len(asked(workdir)) == len(set(asked(workdir))) == 60
    assert set(first) < set(asked(workdir))


def test_lost_calls_are_asked_again_and_the_others_are_not(tmp_path, capsys):
    workdir = tmp_path / "run"
    config = [("deterministic", "False"), ("client.retry.max_attempts", "1")]
    assert baselines(tiny(*config, ("workers.lost_call_rate", "0.2")), str(workdir), Options(("vote", "always"))) == 0
    path = matrix_path(workdir, "test")
    lost = read_matrix(path).lost
    assert lost > 0 and f"{lost} of its cells were lost to infrastructure" in capsys.readouterr().out
    assert any(one.status == "infrastructure_failure" for arm in read_arms(workdir).values() for one in arm.outcomes)
    path.unlink()
    assert baselines(tiny(*config), str(workdir), Options(("vote",))) == 0
    assert read_matrix(path).lost == 0
    answered = [
        call for call in read_ledger(workdir / "ledger.jsonl")[0] if call["kind"] == "call" and call["accepted"]
    ]
    assert len(answered) == 60


def test_a_dry_run_estimates_and_leaves_nothing(tmp_path, capsys):
    workdir = tmp_path / "run"
    given = ["--config", TINY, "--workdir", str(workdir), "--dry-run", "--train-queries", "20"]
    assert cli.main(["baselines", *given]) == 0
    said = capsys.readouterr().out
    assert "matrix of train questions" in said and "prompt_agentic" in said and "Nothing was sent" in said
    assert not workdir.exists()
    assert cli.main(["baselines", *given, "--config.budget.run_usd=1e-6"]) == 2


def test_of_a_matrix_that_is_there_nothing_is_estimated(done, capsys):
    given = ["--config", TINY, "--workdir", str(done), "--dry-run", "--train-queries", "20", "--only"]
    assert cli.main(["baselines", *given, ",".join(QUICK)]) == 0
    said = capsys.readouterr().out
    assert "matrix of" not in said and "knn_multi" not in said
    given[given.index("20")] = "19"  # neighbours that know another question may ask other Workers
    assert cli.main(["baselines", *given, ",".join(QUICK)]) == 0
    said = capsys.readouterr().out
    assert "matrix of" not in said and "knn_multi" in said


def test_without_config_or_outcomes_both_ways_are_named(capsys):
    assert cli.main(["baselines"]) == 2
    said = capsys.readouterr().err
    assert "--config FILE" in said and "--outcomes llmrouter9" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--only", "knm"], "unknown baseline 'knm'; did you mean 'knn'"),
        (["--only", "vote", "--without", "vote"], "no baseline is left"),
        (["--train-queries", "0"], "must be at least 1"),
        (["--train-queries", "100000"], "different train questions"),
        (["--config.evaluation.test_queries=0"], "test questions"),
        (["--outcomes", "llmrouter8"], "'llmrouter8' is not one of llmrouter9"),
        (["--outcomes", "llmrouter9"], "takes the place of --config"),
        (["--encoder", "/nowhere/at/all"], "--encoder"),
        (["--matrix", "/nowhere"], "is not there"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_asked(tmp_path, capsys, given, said):
    assert cli.main(["baselines", "--config", TINY, "--workdir", str(tmp_path / "run"), *given]) == 2
    assert said in capsys.readouterr().err
    assert asked(tmp_path / "run") == []


def test_training_questions_are_none_of_the_test():
    config = tiny()
    _, test = held_out_queries(config)
    train = train_questions(config, 50)
    assert len(train) == 50 and not {query.prompt for query in train} & {query.prompt for query in test}


def test_recorded_scores_need_no_config_and_no_call(tmp_path, capsys):
    workdir = tmp_path / "nine"
    names = "always,oracle,knn"
    assert cli.main(["baselines", "--outcomes", "llmrouter9", "--workdir", str(workdir), "--only", names]) == 0
    said = capsys.readouterr().out
    assert "costs are modelled" in said
    arms = read_arms(workdir)
    assert len(arms) == 11 and {len(arm.outcomes) for arm in arms.values()} == {240}
    assert all(arm.about["modelled_cost"] for arm in arms.values())
    means = {name: sum(one.value for one in arm.outcomes) / 240 for name, arm in arms.items()}
    assert max(means, key=means.get) == "baseline_oracle" and means["baseline_oracle"] > 0.8
    assert means["baseline_knn"] > means["baseline_always_gemma-2-9b-it"]
    assert cli.main(["baselines", "--outcomes", "llmrouter9", "--workdir", str(workdir), "--only", "vote"]) == 2
    assert "'vote' cannot be had of these records" in capsys.readouterr().err


def test_a_damaged_matrix_is_refused_and_not_made_anew(done, tmp_path):
    path = write_matrix(matrix_path(tmp_path, "test"), read_matrix(matrix_path(done, "test")))
    path.write_text(path.read_text()[:-30])
    with pytest.raises(DataError, match="not as it was written"):
        baselines(tiny(), str(tmp_path), Options(("vote",)))
    assert path.exists() and asked(tmp_path) == []


def test_a_training_run_keeps_its_own_evaluation(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").touch()
    for given in (["--config", TINY, "--only", "always"], ["--outcomes", "llmrouter9", "--only", "always"]):
        assert cli.main(["baselines", *given, "--workdir", str(tmp_path)]) == 2
        assert "is the working directory of a training run; take another --workdir" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
