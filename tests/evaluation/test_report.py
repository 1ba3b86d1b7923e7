"""Reports of whole, unfinished, empty and damaged runs, and the command that makes them."""

import json
import pathlib
import subprocess
import sys

import jax
import pytest
from rich.console import Console

from rw import cli
from rw.evaluation import report
from rw.evaluation.description import parameter_count
from rw.evaluation.outcomes import read_arm, write_arm
from rw.evaluation.plots import PLOTS
from rw.model.config import ModelConfig
from rw.model.qwen3 import init_params

ROOT = pathlib.Path(__file__).parent.parent.parent
NAMES = {plot.name for plot in PLOTS}


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    workdir = made.whole_run(tmp_path_factory.mktemp("runs") / "whole")
    return workdir, report.write_report(workdir)


def pngs(folder):
    return {path.stem for path in folder.glob("*.png") if not path.stem.startswith("results_")}  # of its results


def test_a_finished_run_has_summary_text_and_every_plot(whole):
    workdir, path = whole
    assert path == workdir / "report" / "report.md"
    assert pngs(path.parent) == NAMES and not list(path.parent.glob("*.part"))
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in path.parent.glob("*.png"))
    text = path.read_text()
    for words in ("Finished: step 60 of 60", "SIMULATED", "| trained (after) |", "| recall_lookup |", "warm start |"):
        assert words in text, words
    for name in NAMES:
        assert f"![{name}]({name}.png)" in text
    for link in ("../metrics.jsonl", "../evaluation", "../validation.jsonl"):
        assert f"({link})" in text and (path.parent / link).exists()


def test_the_summary_is_that_of_the_files(whole):
    workdir, path = whole
    found = report.read_summary(path)
    outcomes = read_arm(workdir / "evaluation" / "trained.jsonl").outcomes
    assert found["accuracy_trained"]["mean"] == sum(o.correct for o in outcomes) / len(outcomes)
    assert found["test_queries"] == 60 and found["finished"] and found["best_step"] == 50


def test_the_report_says_where_the_time_went(whole):
    text = whole[1].read_text()
    _, _, section = text.partition("## Where the time went\n")
    for words in (
        "0.25 s of them waiting",
        "25 % of the rollouts' time, the learner for 38 % of a step",
        "3 turns were",
    ):
        assert words in section, words
    rows = [json.loads(line) for line in (whole[0] / "metrics.jsonl").read_text().splitlines()]
    warm = [row["perf/slowest"][2] | {"step": row["step"]} for row in rows if not row["sampler/compiled"]]
    slowest = max(warm, key=lambda episode: episode["duration_s"])
    cells = (
        f"| agentic | {slowest['step']} | q{slowest['step']} / 3 | {slowest['duration_s']:.2f} | 0.05 | 0.12 | 0.25 |"
    )
    assert cells in section and section.index("| single |") < section.index("| multi |") < section.index("| agentic |")


def test_a_report_made_again_is_the_same(whole, tmp_path, unpainted):
    workdir, path = whole
    again = report.write_report(workdir, tmp_path / "elsewhere")
    assert (again.parent / "summary.json").read_bytes() == (path.parent / "summary.json").read_bytes()
    assert pngs(again.parent) == NAMES
    linked = [line.split("](")[1].split(")")[0] for line in again.read_text().split("\n") if line.startswith("- [`")]
    assert linked and all((again.parent / link).exists() for link in linked)


def test_tables_are_printed_with_the_path(whole):
    console = Console(width=150, record=True, file=open("/dev/null", "w"))
    report.print_report(whole[1], console)
    assert "The Workers were SIMULATED" in console.export_text(clear=False)
    text = console.export_text()
    summary = report.read_summary(whole[1])
    assert f"{100 * summary['accuracy_trained']['mean']:.1f}" in text and "oracle" in text
    assert "best scripted router" in text and str(whole[1]) in text.replace("\n", "")


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_an_unfinished_run_says_what_is_not_there(made, tmp_path, steps):
    workdir = made.write_config(tmp_path / "run")
    if steps:
        made.write_rows(workdir, steps)
    path = report.write_report(workdir)
    text = path.read_text()
    assert ("no step yet" in text) == (steps == 0) and "Not finished" in text
    assert "No test question has been answered yet: 60" in text
    assert "arms" not in pngs(path.parent) and ("accuracy" in pngs(path.parent)) == (steps > 0)
    assert report.read_summary(path)["accuracy_trained"] is None


def test_a_run_without_validation_or_arms_or_schedule(made, tmp_path, unpainted):
    workdir = made.write_config(tmp_path / "run", evaluation={"every": 0, "test_queries": 0}, schedule={}, steps=12)
    made.write_rows(workdir, 12)
    text = report.write_report(workdir).read_text()
    assert "Finished: step 12 of 12. Nothing was validated." in text and "no final evaluation" in text


def test_a_validated_run_without_training_rows(made, tmp_path):
    workdir = made.write_config(tmp_path / "run")
    made.write_validations(workdir, 0)
    assert pngs(report.write_report(workdir).parent) == {"accuracy", "cost", "modes"}


def test_torn_lines_numbers_that_are_not_finite_and_missing_metrics(made, tmp_path):
    workdir = made.write_config(tmp_path / "run")
    made.write_rows(workdir, 12)
    file = workdir / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[3] |= {name: "nan" for name, value in rows[3].items() if isinstance(value, float)}
    rows[5] = {"step": 6, "time_s": 1.0}
    rows[7] |= {"perf/step_s": None, "accuracy": "inf", "cost/total": "-inf"}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 13, "acc')
    text = report.write_report(workdir).read_text()
    assert "cannot be read and are left out: 1." in text and "step 12 of 60" in text


def test_a_run_with_efficiency_reward_shows_the_mix(made, tmp_path):
    workdir = made.write_config(tmp_path / "run", reward={"reference_cost_usd": 3.3e-5, "efficiency_weight": 0.25})
    made.write_rows(workdir, 12)
    assert "rewards" in pngs(report.write_report(workdir).parent)


def test_arms_of_recorded_answers(made, tmp_path, unpainted):
    workdir = made.whole_run(tmp_path / "run")
    made.write_config(workdir, workers={"kind": "replay"}, data={"source": "nq6"})
    for name, new in (
        ("scripted_single", "scripted_worker_1"),
        ("scripted_multi", "scripted_worker_2"),
        ("random", "knn"),
    ):
        arm = read_arm(workdir / "evaluation" / f"{name}.jsonl")
        (workdir / "evaluation" / f"{name}.jsonl").unlink()
        write_arm(workdir, type(arm)(new, arm.about, arm.outcomes))
    path = report.write_report(workdir)
    text = path.read_text()
    assert "RECORDED" in text and "| always worker_1 |" in text and "| k nearest neighbours |" in text
    assert report.read_summary(path)["accuracy_random"] is None


def test_plots_that_lost_their_data_go(made, tmp_path, unpainted):
    workdir = made.whole_run(tmp_path / "run", count=10)
    folder = report.write_report(workdir).parent
    for path in (workdir / "evaluation").iterdir():
        path.unlink()
    assert "arms" in pngs(folder)
    report.write_report(workdir)
    assert "arms" not in pngs(folder)


def test_the_command_reports_and_refuses_in_one_line(made, tmp_path, capsys, unpainted):
    workdir = made.whole_run(tmp_path / "run", count=10)
    assert cli.main(["report", str(workdir), "--out", str(tmp_path / "out")]) == 0
    assert "report:" in capsys.readouterr().out and (tmp_path / "out" / "summary.json").exists()
    assert cli.main(["report", str(tmp_path / "absent")]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("rw report: error: no run in") and said.err.count("\n") == 1
    (tmp_path / "file").write_text("")
    assert cli.main(["report", str(workdir), "--out", str(tmp_path / "file" / "x")]) == 2
    assert "cannot write a report" in capsys.readouterr().err


def test_what_cannot_be_read_or_written_ends_the_command_in_one_line(made, tmp_path, capsys, unpainted):
    workdir = made.whole_run(tmp_path / "run", count=10)
    (workdir / "report" / "report.md").mkdir(parents=True)
    assert cli.main(["report", str(workdir)]) == 2
    assert "cannot write a report to" in capsys.readouterr().err
    (workdir / "metrics.jsonl").unlink()
    (workdir / "metrics.jsonl").mkdir()
    assert cli.main(["report", str(workdir)]) == 2
    assert "metrics.jsonl: Is a directory" in capsys.readouterr().err
    (workdir / "config.json").write_text('{"data": 5}')
    assert cli.main(["report", str(workdir)]) == 2
    assert "config.json holds no config" in capsys.readouterr().err


def test_arms_of_other_questions_end_the_command_in_one_line(made, tmp_path, capsys):
    workdir = made.whole_run(tmp_path / "run", count=10)
    arm = read_arm(workdir / "evaluation" / "oracle.jsonl")
    write_arm(workdir, type(arm)(arm.arm, {**arm.about, "queries": 9}, arm.outcomes[:-1]))
    assert cli.main(["report", str(workdir)]) == 2
    assert "'trained' and 'oracle' answer different questions" in capsys.readouterr().err


@pytest.mark.parametrize("tied", [True, False])
def test_the_size_of_a_router_is_what_it_really_has(tied):
    model = {"vocab_size": 40, "d_model": 12, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "d_ff": 20}
    config = ModelConfig(**model, rope_theta=1e4, tied=tied)
    params = jax.eval_shape(lambda: init_params(jax.random.key(0), config))
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert parameter_count({**model, "tied": tied, "qk_norm": True}) == count
    assert parameter_count({}) is None


def test_drawing_is_loaded_only_when_something_is_drawn():
    """`rw train` imports reports: it should not wait for what it needs at its end alone."""
    code = "import sys, rw.evaluation.report, rw.evaluation.comparison; print({'matplotlib', 'jax'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_router_that_declared_no_mode_was_evaluated():
    assert report.majority_words({"majority_mode": {"math": None}}) == "The trained router declared no mode."
    assert report.majority_words({"majority_mode": None}) == "The trained router was not evaluated."
