"""Shares, costs, margins and the summary, on a handful of outcomes counted by hand."""

import dataclasses
import json

import pytest

from rw.errors import DataError
from rw.evaluation.aggregate import (
    Identity,
    accuracy_by_kind,
    best_of,
    check_same_questions,
    difference,
    majority_mode,
    mean_cost,
    mode_shares,
    summary,
)
from rw.evaluation.intervals import paired_difference, wilson
from rw.evaluation.outcomes import ArmResult, Outcome
from rw.evaluation.table import before_after_table, cost_words

IDENTITY = Identity(
    "run", seed=7, source="simulated", steps=20, test_queries=4, arms=("trained",), config_fingerprint="ab"
)
FIELDS = {
    "accuracy_trained", "accuracy_warm_start", "accuracy_forced", "accuracy_scripted", "accuracy_best_scripted",
    "accuracy_random", "accuracy_oracle", "accuracy_knn", "accuracy_by_type", "mode_share", "mode_share_warm_start",
    "mode_share_by_arm", "majority_mode", "cost_usd_mean", "margins", "invalid", "infrastructure", "test_queries",
    "test_draw_seed", "source", "seed", "steps", "best_step", "config_fingerprint", "run", "finished",
}  # fmt: skip


def answered(query, kind, mode, correct, cost=1e-5, status="answered"):
    return Outcome(query, kind, mode, status, None, None, correct, cost, ())


def arm(name, outcomes, **about):
    return ArmResult(name, {"draw_seed": 11, "step": 16, **about}, tuple(outcomes))


TRAINED = arm(
    "trained",
    [
        answered("q1", "lookup", "single", True, 1e-5),
        answered("q2", "lookup", "single", False, 3e-5),
        answered("q3", "search", "agentic", True, 8e-5),
        answered("q4", "search", None, False, 0.0, "terminal_invalid"),
    ],
)
FORCED = arm(
    "forced_multi", [dataclasses.replace(o, mode="multi", correct=o.query_id == "q2") for o in TRAINED.outcomes]
)
LOST = arm(
    "warm_start",
    [answered(f"q{i}", "lookup", "multi", False, None, "infrastructure_failure") for i in (1, 2)]
    + [answered("q3", "search", "multi", True, 2e-5), answered("q4", "search", "single", False, None)],
)


def test_mode_shares_are_of_all_questions():
    assert mode_shares(TRAINED.outcomes) == {"single": 0.5, "multi": 0.0, "agentic": 0.25, "none": 0.25}
    assert mode_shares([]) == {}


def test_majority_mode_needs_a_declared_mode_and_takes_the_first_of_equals():
    assert majority_mode(TRAINED.outcomes) == "single"
    assert majority_mode(TRAINED.outcomes[3:]) is None
    assert majority_mode(TRAINED.outcomes[1:3]) == "single"  # one each


def test_accuracy_by_kind_counts_what_was_lost_as_wrong():
    assert accuracy_by_kind(LOST.outcomes) == {"lookup": wilson(0, 2), "search": wilson(1, 2)}


def test_mean_cost_leaves_out_what_is_unknown_or_cut_short():
    assert mean_cost(TRAINED.outcomes).mean == pytest.approx(3e-5) and mean_cost(TRAINED.outcomes).n == 4
    assert mean_cost(LOST.outcomes).mean == 2e-5 and mean_cost(LOST.outcomes).n == 1
    assert mean_cost(LOST.outcomes[:2]) is None


def test_difference_joins_by_question_not_by_place():
    shuffled = arm("forced_multi", FORCED.outcomes[::-1])
    expected = paired_difference([True, False, True, False], [False, True, False, False])
    assert difference(TRAINED, FORCED) == difference(TRAINED, shuffled) == expected
    assert expected.mean == 0.25


def test_other_questions_are_refused_with_both_names():
    other = arm("oracle", [*TRAINED.outcomes[:3], answered("q9", "search", "single", True)])
    with pytest.raises(
        DataError, match="'trained' and 'oracle' answer different questions .4 and 4, 3 in common; 'q4'"
    ):
        check_same_questions({"oracle": other, "trained": TRAINED})
    with pytest.raises(DataError, match="'oracle'"):
        summary({"trained": TRAINED, "oracle": other}, [], IDENTITY)


def test_the_same_places_in_another_draw_are_other_questions():
    other = dataclasses.replace(FORCED, about={**TRAINED.about, "draw_seed": 7})
    with pytest.raises(DataError, match="'trained' and 'forced_multi' answer questions of another draw_seed .* and 7"):
        summary({"trained": TRAINED, "forced_multi": other}, [], IDENTITY)


def test_a_question_answered_twice_is_refused():
    twice = arm("random", [*TRAINED.outcomes, TRAINED.outcomes[0]])
    with pytest.raises(DataError, match="'random' answers question 'q1' twice"):
        check_same_questions({"random": twice, "trained": TRAINED})


def test_the_best_arm_is_the_one_with_most_right_and_the_first_of_equals():
    arms = {"scripted_a": FORCED, "scripted_b": TRAINED, "scripted_c": TRAINED, "oracle": TRAINED}
    assert best_of(arms, "scripted_") == "scripted_b" and best_of(arms, "forced_") is None


def test_summary_by_hand():
    arms = {"trained": TRAINED, "forced_multi": FORCED, "warm_start": LOST, "scripted_worker_2": FORCED}
    rows = [{"step": 10}, {"step": 20, "eval/best_step": 10}]
    found = summary(arms, rows, IDENTITY)
    assert found.keys() == FIELDS
    assert found["accuracy_trained"] == wilson(2, 4).as_dict()
    assert found["accuracy_forced"] == {"single": None, "multi": wilson(1, 4).as_dict(), "agentic": None}
    assert found["accuracy_best_scripted"] == {**wilson(1, 4).as_dict(), "arm": "scripted_worker_2"}
    assert found["accuracy_scripted"] == {"scripted_worker_2": wilson(1, 4).as_dict()}
    assert (found["accuracy_random"], found["accuracy_oracle"], found["accuracy_knn"]) == (None, None, None)
    assert found["mode_share"]["by_type"]["search"] == {"single": 0, "multi": 0, "agentic": 0.5, "none": 0.5}
    assert found["mode_share_warm_start"]["overall"]["multi"] == 0.75
    assert found["majority_mode"] == {"lookup": "single", "search": "agentic"}
    assert found["margins"]["trained_minus_warm_start"]["mean"] == 0.25
    assert found["invalid"] == {"trained": 0.25, "forced_multi": 0.25, "warm_start": 0, "scripted_worker_2": 0.25}
    assert found["infrastructure"]["warm_start"] == 2
    assert (found["test_queries"], found["test_draw_seed"], found["best_step"], found["steps"]) == (4, 11, 16, 20)
    assert (found["run"], found["seed"], found["source"], found["config_fingerprint"]) == ("run", 7, "simulated", "ab")
    assert found["finished"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_summary_of_nothing_is_null_and_unfinished():
    found = summary({}, [], IDENTITY)
    assert found.keys() == FIELDS
    assert found["accuracy_trained"] is None and found["mode_share"] is None and found["majority_mode"] is None
    assert set(found["margins"].values()) == {None} and found["test_queries"] == 0 and found["best_step"] is None
    assert not found["finished"]


@pytest.mark.parametrize(
    ("arms", "steps", "test_queries", "finished"),
    [({}, 20, 0, True), ({}, 20, 4, False), ({"trained": TRAINED}, 20, 4, True), ({"trained": TRAINED}, 19, 4, False)],
)
def test_a_run_is_finished_with_its_last_step_and_its_test(arms, steps, test_queries, finished):
    identity = dataclasses.replace(IDENTITY, test_queries=test_queries)
    assert summary(arms, [{"step": steps}], identity)["finished"] is finished


@pytest.mark.parametrize(
    ("wanted", "there", "finished"),
    [
        (("trained", "forced"), ("trained", "forced_single", "forced_multi"), False),
        (("trained", "forced"), ("trained", "forced_single", "forced_multi", "forced_agentic"), True),
        (("trained", "scripted", "oracle"), ("trained", "scripted_worker_1"), False),
        (("trained", "scripted", "oracle"), ("trained", "scripted_worker_1", "oracle"), True),
    ],
)
def test_a_test_that_was_broken_off_is_not_finished(wanted, there, finished):
    arms = {name: arm(name, TRAINED.outcomes) for name in there}
    assert summary(arms, [{"step": 20}], dataclasses.replace(IDENTITY, arms=wanted))["finished"] is finished


def test_the_best_step_comes_from_the_last_validation_where_no_test_was_made():
    rows = [{"step": 0, "eval/best_step": 0}, {"step": 10, "eval/best_step": 10.0}, {"step": 11}]
    assert summary({}, rows, IDENTITY)["best_step"] == 10


def test_a_cost_that_is_not_known_of_all_questions_says_of_how_many():
    cost = {"mean": 1.74e-5, "low": 1.66e-5, "high": 1.82e-5, "n": 4}
    assert cost_words(cost, 1e6, 4) == "17.4 ± 0.8" and cost_words(cost, 1e6, 10) == "17.4 ± 0.8 (4 of 10)"
    rows = before_after_table(summary({"trained": TRAINED, "warm_start": LOST}, [], IDENTITY)).rows
    assert [row[3].rpartition(" (")[2] for row in rows] == ["1 of 4)", rows[1][3]]
