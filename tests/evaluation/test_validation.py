"""The numbers of a validation, which router counts as the best, and the files of outcomes."""

import dataclasses
import json

import pytest

from rw.errors import DataError
from rw.evaluation.outcomes import ArmResult, Outcome, arm_path, read_arm, read_arms, write_arm
from rw.evaluation.validation import best_validation, validation_metrics

RIGHT = Outcome("q1", "math", "multi", "answered", None, None, True, 2e-5, ("worker_1", "worker_2"))
WRONG = dataclasses.replace(RIGHT, query_id="q2", correct=False, cost_usd=4e-5)
BROKEN = Outcome("q3", "code", None, "terminal_invalid", "mode_grammar", None, False, 0.0, ())
LOST = Outcome("q4", "code", "single", "infrastructure_failure", None, "timeout", False, None, ("worker_3",))


def test_metrics_of_a_validation():
    row = validation_metrics([RIGHT, WRONG, BROKEN, LOST])
    assert row == {
        "eval/questions": 4.0,
        "eval/accuracy": 0.25,
        "eval/invalid": 0.25,
        "eval/excluded": 0.25,
        "eval/cost_usd": pytest.approx(2e-5),
        "eval/mode_share/single": 0.25,
        "eval/mode_share/multi": 0.5,
        "eval/mode_share/agentic": 0.0,
        "eval/mode_share/none": 0.25,
        "eval/accuracy/code": 0.0,
        "eval/mode_share/code/single": 0.5,
        "eval/mode_share/code/multi": 0.0,
        "eval/mode_share/code/agentic": 0.0,
        "eval/mode_share/code/none": 0.5,
        "eval/accuracy/math": 0.5,
        "eval/mode_share/math/single": 0.0,
        "eval/mode_share/math/multi": 1.0,
        "eval/mode_share/math/agentic": 0.0,
        "eval/mode_share/math/none": 0.0,
    }


def test_the_mean_cost_leaves_out_what_infrastructure_cut_short():
    cut_short = dataclasses.replace(LOST, cost_usd=0.0)
    assert validation_metrics([RIGHT, WRONG, cut_short])["eval/cost_usd"] == pytest.approx(3e-5)
    assert "eval/cost_usd" not in validation_metrics([cut_short])


def test_the_earliest_of_the_best_validations_counts():
    rows = [
        {"step": 0, "eval/accuracy": 0.1},
        {"step": 10, "eval/accuracy": 0.6},
        {"step": 15},
        {"step": 20, "eval/accuracy": 0.6},
        {"step": 30, "eval/accuracy": 0.5},
    ]
    assert best_validation(rows) == (10, 0.6)
    assert best_validation([{"step": 3}]) is None


def test_an_outage_does_not_choose_the_best_router():
    """Half of the second validation was lost: .4 of all is .8 of what was measured, which beats .6."""
    rows = [
        {"step": 0, "eval/accuracy": 0.6, "eval/excluded": 0.0},
        {"step": 10, "eval/accuracy": 0.4, "eval/excluded": 0.5},
        {"step": 20, "eval/accuracy": 0.0, "eval/excluded": 1.0},
    ]
    assert best_validation(rows) == (10, pytest.approx(0.8))
    assert best_validation(rows[2:]) is None


def test_an_arm_is_read_back_as_it_was_written(tmp_path):
    result = ArmResult("trained", {"split": "test", "step": 20}, (RIGHT, WRONG, BROKEN, LOST))
    path = write_arm(tmp_path, result)
    assert path == arm_path(tmp_path, "trained") and read_arm(path) == result
    assert read_arms(tmp_path) == {"trained": result} and read_arms(tmp_path / "nowhere") == {}


@pytest.mark.parametrize("spoil", ["{", '{"query_id": "q"}', "[]", "null"])
def test_a_damaged_arm_is_named_with_its_line(tmp_path, spoil):
    path = write_arm(tmp_path, ArmResult("trained", {}, (RIGHT,)))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, spoil]) + "\n")
    with pytest.raises(DataError, match=r"trained.jsonl line 3: not an evaluation"):
        read_arm(path)


def test_outcomes_are_plain_json_lines(tmp_path):
    path = write_arm(tmp_path, ArmResult("oracle", {"queries": 1}, (RIGHT,)))
    header, line = (json.loads(text) for text in path.read_text().splitlines())
    assert header == {"arm": "oracle", "queries": 1}
    assert line["query_id"] == "q1" and line["workers"] == ["worker_1", "worker_2"] and line["cost_usd"] == 2e-5
