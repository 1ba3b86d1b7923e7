"""Two arms on the questions that both answered."""

import dataclasses

import pytest

from rw.errors import DataError
from rw.evaluation.outcomes import ArmResult, Outcome
from rw.evaluation.pairs import check_texts, difference

ABOUT = {"source": "simulated", "split": "test", "draw_seed": 7}


def outcome(place, right, dataset="math", domain="math", cost=1e-5, status="answered", score=None):
    return Outcome(
        query_id=f"{dataset}/{place}", kind=domain, mode="single", status=status, violation=None, cause=None,
        correct=right, cost_usd=cost, workers=("worker_1",), dataset=dataset, domain=domain, score=score,
    )  # fmt: skip


def arm(name, rights, about=ABOUT, **more):
    return ArmResult(name, about, tuple(outcome(place, right, **more) for place, right in enumerate(rights)))


def test_the_difference_is_paired_and_weighs_sets_alike():
    first = [outcome(i, True) for i in range(4)] + [outcome(i, i == 0, "omni_math") for i in range(2)]
    second = [outcome(i, i < 2) for i in range(4)] + [outcome(i, False, "omni_math") for i in range(2)]
    found = difference(ArmResult("a", ABOUT, tuple(first)), ArmResult("b", ABOUT, tuple(second)), with_domains=True)
    assert found["average"]["mean"] == pytest.approx((0.5 + 0.5) / 2) and found["questions"] == 6
    assert found["domains"]["math"] == found["average"] and found["held_out"] == {}
    back = difference(ArmResult("b", ABOUT, tuple(second)), ArmResult("a", ABOUT, tuple(first)))
    assert back["average"]["mean"] == -found["average"]["mean"]


def test_only_common_questions_count_and_the_others_are_counted():
    found = difference(arm("a", [True] * 10), arm("b", [False] * 6))
    assert (found["questions"], found["only_first"], found["only_second"]) == (6, 4, 0)
    assert found["average"]["mean"] == 1.0 and found["average"]["n"] == 6


def test_a_held_out_set_is_compared_apart():
    first = arm("a", [True, True]).outcomes + arm("a", [True], dataset="aime").outcomes
    second = arm("b", [True, True]).outcomes + arm("b", [False], dataset="aime").outcomes
    found = difference(ArmResult("a", ABOUT, first), ArmResult("b", ABOUT, second), with_domains=True)
    assert found["average"]["mean"] == 0 and found["held_out"]["aime"]["mean"] == 1


def test_the_cost_difference_is_over_questions_with_both_costs():
    first = (outcome(0, True, cost=3e-5), outcome(1, True, cost=None), outcome(2, True, cost=5e-5))
    second = (outcome(0, True, cost=1e-5), outcome(1, True), outcome(2, True, status="infrastructure_failure"))
    found = difference(ArmResult("a", ABOUT, first), ArmResult("b", ABOUT, second))
    assert found["cost_usd"]["mean"] == pytest.approx(2e-5) and found["cost_usd"]["n"] == 1


def test_graded_scores_are_compared_as_they_are():
    first = ArmResult("a", ABOUT, tuple(outcome(i, False, score=0.75) for i in range(8)))
    second = ArmResult("b", ABOUT, tuple(outcome(i, False, score=0.5) for i in range(8)))
    assert difference(first, second)["average"]["mean"] == 0.25


@pytest.mark.parametrize("change", [{"draw_seed": 8}, {"source": "nq6"}, {"split": "validation"}])
def test_another_draw_is_refused(change):
    with pytest.raises(DataError, match=f"another {next(iter(change))}"):
        difference(arm("a", [True]), arm("b", [True], ABOUT | change))


def test_files_are_told_by_their_content_and_not_by_a_seed():
    files = {"source": "files", "files": "abc", "draw_seed": 1}
    assert difference(arm("a", [True], files), arm("b", [True], files | {"draw_seed": 2}))["questions"] == 1
    for key in ("files", "held_out_files"):
        with pytest.raises(DataError, match=f"another {key}"):
            difference(arm("a", [True], files | {key: "abc"}), arm("b", [True], files | {key: "xyz"}))


def test_one_id_for_two_questions_is_refused():
    other = ArmResult("b", ABOUT, (dataclasses.replace(outcome(0, True), dataset="omni_math"),))
    with pytest.raises(DataError, match="'math/0' is of"):
        difference(arm("a", [True]), other)
    with pytest.raises(DataError, match="'math/0' has another text in there than in here"):
        check_texts({"math/0": "2 + 2?"}, {"math/0": "2 + 3?"}, ("here", "there"))
    check_texts({"math/0": "2 + 2?"}, {"math/1": "2 + 3?"}, ("here", "there"))


def test_arms_without_a_common_question_and_doubled_answers_are_refused():
    with pytest.raises(DataError, match="no question in common"):
        difference(arm("a", [True]), arm("b", [True], dataset="omni_math"))
    twice = ArmResult("b", ABOUT, (outcome(0, True), outcome(0, False)))
    with pytest.raises(DataError, match="'math/0' twice"):
        difference(arm("a", [True]), twice)
