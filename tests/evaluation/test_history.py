"""Reading a run's directory: torn lines, missing files, numbers that are not finite, phases."""

import json

import numpy as np
import pytest

from rw.errors import WorkdirError
from rw.evaluation.history import read_history
from rw.learner.checkpoint import config_fingerprint


def lines(workdir, *rows, name="metrics.jsonl", tail=""):
    (workdir / name).write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)


def test_rows_of_two_files_become_one_a_step_and_a_torn_line_is_counted(made, tmp_path):
    workdir = made.write_config(tmp_path / "run")
    lines(workdir, {"step": 1, "a": 1.0}, {"step": 2, "a": 2.0}, tail='{"step": 3, "a"')
    lines(workdir, {"step": 0, "eval/accuracy": 0.1}, {"step": 2, "eval/accuracy": 0.3}, name="validation.jsonl")
    history = read_history(workdir)
    assert [row["step"] for row in history.rows] == [0, 1, 2] and history.unreadable == 1 and history.steps == 2
    assert history.rows[2] == {"step": 2, "a": 2.0, "eval/accuracy": 0.3}


def test_series_hold_finite_numbers_only(made, tmp_path):
    workdir = made.write_config(tmp_path / "run")
    values = [0.5, "nan", "inf", None, "words", [1.0], 0.25]
    lines(workdir, *({"step": step, "x": value} for step, value in enumerate(values, 1)), {"step": 9})
    steps, found = read_history(workdir).series("x")
    assert steps.tolist() == [1, 7] and found.tolist() == [0.5, 0.25]
    assert [len(part) for part in read_history(workdir).series("absent")] == [0, 0]


def test_phases_follow_the_rows(made, tmp_path):
    workdir = made.write_config(tmp_path / "run")
    shares = [1, 1, 1, 0.5, 0, 0]
    lines(
        workdir, *({"step": s, "rho_b": r, "cold_start": float(s <= 2)} for s, r in enumerate(shares, 1)), {"step": 7}
    )
    assert read_history(workdir).phases() == [("cold", 0.5, 2.5), ("transition", 2.5, 4.5), ("free", 4.5, 6.5)]


def test_one_phase_throughout_is_none_worth_showing(made, tmp_path):
    workdir = made.write_config(tmp_path / "run")
    lines(workdir, *({"step": step, "rho_b": 0.0, "cold_start": 0.0} for step in (1, 2)))
    assert read_history(workdir).phases() == []


def test_identity_comes_from_the_config(made, tmp_path):
    workdir = made.write_config(tmp_path / "some_run", seed=5)
    history = read_history(workdir)
    identity = history.identity
    assert (identity.run, identity.seed, identity.source, identity.steps) == ("some_run", 5, "simulated", 60)
    assert identity.test_queries == 60 and identity.arms == ("trained",) and history.steps == 0
    assert identity.config_fingerprint == config_fingerprint(history.config)  # as checkpoints and arms have it


def test_what_is_no_run_is_refused_in_one_line(tmp_path):
    with pytest.raises(WorkdirError, match="no run in .*nowhere.*no config.json"):
        read_history(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WorkdirError, match="cannot read"):
        read_history(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(WorkdirError, match="holds no config"):
        read_history(tmp_path)


def test_a_made_run_reads_as_it_was_written(made, tmp_path):
    history = read_history(made.whole_run(tmp_path / "run"))
    assert history.steps == 60 and history.unreadable == 0 and len(history.arms) == 10
    assert np.array_equal(history.series("eval/accuracy")[0], np.arange(0, 61, 10))
