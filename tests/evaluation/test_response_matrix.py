"""The response matrix: what is written is read, what is of another setting is refused in words, and rules by hand."""

import dataclasses
import json
import math

import numpy as np
import pytest

from rw.errors import DataError
from rw.evaluation import selection
from rw.evaluation.response_matrix import (
    Cell,
    MatrixQuestion,
    MatrixWorker,
    ResponseMatrix,
    digests,
    fitting,
    matrix_path,
    read_matrix,
    write_matrix,
)

WORKERS = (MatrixWorker("small", 1.0, 1.0, "s"), MatrixWorker("large", 4.0, 6.0, "l"), MatrixWorker("middle", 2.0, 2.0))
LOST = Cell(0.0, False, 0.0, status="infrastructure_failure", cause="timeout")


C = {"limit": 3, "new": "another version's"}  # what only one of the two knows does not count


def question(number: int, dataset: str = "trivia_qa") -> MatrixQuestion:
    return MatrixQuestion(f"q{number}", f"question {number}", dataset, "recall", "recall")


def cell(answer: str, right: bool, cost: float | None, latency: float = 1.0) -> Cell:
    return Cell(float(right), right, cost, answer, input_tokens=10, output_tokens=2, latency_s=latency)


def matrix(*rows, about=None) -> ResponseMatrix:
    """Columns: small, large, middle."""
    return ResponseMatrix(WORKERS, tuple(question(n) for n in range(len(rows))), tuple(map(tuple, rows)), about or {})


FOUR = matrix(
    (cell("Lima.", True, 1.0, 1.0), cell("Quito", False, 5.0, 3.0), cell("the  LIMA", True, 2.0, 2.0)),
    (cell("one", False, 1.0), cell("two", True, 5.0), cell("three", False, 2.0)),
    (cell("no", False, 1.0), cell("yes", True, 5.0), cell("yes", True, 2.0)),
    (cell("x", False, 1.0), cell("y", False, 5.0), LOST),
    about={"conditions": {"limit": 3, "gone": 1}, "source": "test"},
)


def test_what_is_written_is_read(tmp_path):
    odd = matrix((cell("a\u2028b \ud800 </answer>", True, None), cell("", False, 0.0), LOST))
    for one in (FOUR, odd):
        path = write_matrix(matrix_path(tmp_path, "test"), one)
        assert read_matrix(path) == one
    assert not list(path.parent.glob("*.part"))


def test_a_file_that_was_changed_or_cut_is_refused(tmp_path):
    path = write_matrix(tmp_path / "m.jsonl", FOUR)
    whole = path.read_text()
    for damaged in (whole[:-40], whole.replace('"score": 1.0', '"score": 0.0', 1), whole.split("\n", 1)[1], ""):
        path.write_text(damaged)
        with pytest.raises(DataError, match=r"m\.jsonl"):
            read_matrix(path)
    path.write_text(whole.replace('"matrix": 1', '"matrix": 2'))
    with pytest.raises(DataError, match="format 2"):
        read_matrix(path)


def test_the_header_holds_a_digest_of_everything_that_counts(tmp_path):
    header = json.loads(write_matrix(tmp_path / "m.jsonl", FOUR).read_text().split("\n")[0])
    assert header["digests"] == digests(FOUR) and set(header["digests"]) == {
        "workers", "prices", "questions", "conditions"
    }  # fmt: skip
    dearer = dataclasses.replace(FOUR, workers=(dataclasses.replace(WORKERS[0], input_price=9.0), *WORKERS[1:]))
    assert [name for name in header["digests"] if digests(dearer)[name] != digests(FOUR)[name]] == ["prices"]


def other(place: int, **changes) -> tuple[MatrixWorker, ...]:
    return tuple(dataclasses.replace(w, **changes) if i == place else w for i, w in enumerate(WORKERS))


@pytest.mark.parametrize(
    ("workers", "questions", "conditions", "said"),
    [
        (WORKERS[:2], FOUR.questions, C, "Workers small, large, middle, and the config has small, large"),
        (other(1, digest="new"), FOUR.questions, C, "Worker large has another model"),
        (other(2, output_price=3.0), FOUR.questions, C, "Worker middle were 2 and 2 .* are 2 and 3"),
        (WORKERS, (*FOUR.questions, question(9)), C, "lacks 1 of the 5 questions, first q9"),
        (WORKERS, (dataclasses.replace(question(0), text="another"),), C, "q0 was another one: 'question 0'"),
        (WORKERS, FOUR.questions, {"limit": 4}, "limit was 3 when the Workers were asked and is 4"),
    ],
)
def test_a_matrix_of_another_setting_is_refused_in_words(workers, questions, conditions, said):
    with pytest.raises(DataError, match=f"{said}.*remove the file"):
        fitting(FOUR, workers, questions, conditions, "m.jsonl")


def test_a_part_of_the_questions_is_served_in_the_order_asked():
    part = fitting(FOUR, WORKERS, (question(2), question(0)), C, "m.jsonl")
    assert [one.id for one in part.questions] == ["q2", "q0"] and part.cells == (FOUR.cells[2], FOUR.cells[0])


def test_costs_that_are_not_known_are_no_number_and_means_pass_over_them():
    one = matrix((cell("a", True, 3e-6), cell("b", False, None), LOST), (cell("a", True, 5e-6), LOST, LOST))
    assert math.isnan(one.costs[0, 1]) and math.isnan(one.costs[0, 2])
    np.testing.assert_allclose(one.mean_costs, [4e-6, 10e-6, 4e-6])  # the price where no call's cost is known
    assert one.lost == 3


def test_rows_must_be_whole_and_scores_shares():
    with pytest.raises(DataError, match="q0: 1 cells of 3"):
        matrix((cell("a", True, 1.0),))
    with pytest.raises(DataError, match=r"q0: scores"):
        matrix((dataclasses.replace(LOST, score=1.5), LOST, LOST))


def picked(outcomes):
    return ["/".join(one.workers) for one in outcomes]


def test_fixed_rules_by_hand():
    assert picked(selection.always(FOUR, 2)) == ["middle"] * 4
    assert picked(selection.largest(FOUR)) == ["large"] * 4 and picked(selection.smallest(FOUR)) == ["small"] * 4
    assert picked(selection.round_robin(FOUR)) == ["small", "large", "middle", "small"]
    assert picked(selection.oracle(FOUR)) == ["small", "large", "large", "small"]
    assert picked(selection.oracle_cheapest(FOUR)) == ["small", "large", "middle", "small"]


def test_an_oracle_is_at_least_every_single_call():
    best = [one.value for one in selection.oracle(FOUR)]
    for rule in (selection.random, selection.round_robin, selection.largest, selection.smallest):
        assert all(one.value <= most for one, most in zip(rule(FOUR, 0), best, strict=True))
    assert best == [one.value for one in selection.oracle_cheapest(FOUR)] == [1, 1, 1, 0]


def test_random_depends_on_seed_and_question_and_not_on_order():
    many = matrix(*[(LOST, LOST, LOST)] * 60)
    first = picked(selection.random(many, 3))
    assert first == picked(selection.random(many, 3)) != picked(selection.random(many, 4))
    turned = many.select([one.id for one in reversed(many.questions)])
    assert picked(selection.random(turned, 3)) == first[::-1] and len(set(first)) == 3


def test_a_vote_counts_equal_answers_and_pays_for_all():
    lima, three, yes, lost = selection.vote(FOUR)
    assert lima.correct and lima.answer == "Lima." and lima.cost_usd == 8.0 and lima.latency_s == 3.0
    assert lima.workers == ("small", "middle", "large") and lima.mode is None
    assert not three.correct and three.answer == "one"  # all differ: the cheapest
    assert yes.correct and yes.answer == "yes" and yes.worker_output_tokens == 6
    assert not lost.correct and lost.answer == "x" and lost.status == "answered"


def test_a_cascade_stops_when_two_agree_and_pays_for_the_calls_it_made():
    lima, three, yes, lost = selection.cascade(FOUR)
    assert lima.workers == ("small", "middle") and lima.cost_usd == 3.0 and lima.latency_s == 3.0 and lima.correct
    assert three.workers == ("small", "middle", "large") and three.answer == "two" and three.correct  # the dearest
    assert yes.workers == ("small", "middle", "large") and yes.answer == "yes" and yes.cost_usd == 8.0
    assert lost.answer == "y" and lost.status == "answered"


def test_where_every_call_was_lost_the_question_is_lost():
    gone = matrix((LOST, LOST, LOST))
    for rule in (selection.vote, selection.cascade):
        with pytest.raises(DataError, match="scores only"):
            rule(gone)
    both = matrix((LOST, LOST, LOST), FOUR.cells[0])
    for rule in (selection.vote, selection.cascade):
        assert rule(both)[0].status == "infrastructure_failure" and not rule(both)[0].correct


def test_a_cost_that_is_missing_makes_the_sum_unknown():
    one = matrix((cell("a", True, 1e-6), cell("a", True, None), cell("b", False, 2e-6)))
    assert selection.vote(one)[0].cost_usd is None and selection.cascade(one)[0].cost_usd is None
    assert picked(selection.oracle_cheapest(one)) == ["small"]


def test_graded_scores_are_kept_and_count_in_the_value():
    graded = ResponseMatrix(
        WORKERS, (question(0),), ((Cell(0.4, False, 1.0), Cell(0.7, False, 5.0), Cell(0.7, False, 2.0)),)
    )
    assert picked(selection.oracle_cheapest(graded)) == ["middle"]
    (one,) = selection.oracle(graded)
    assert one.score == 0.7 and one.value == 0.7 and not one.correct


def test_equal_utilities_go_to_the_cheaper_then_to_the_earlier():
    utilities = np.array([[0.5, 0.5, 0.5], [0.5, 0.6, 0.6 - 1e-12], [0.9, 0.1, 0.9]])
    assert selection.best_workers(utilities, np.array([2.0, 1.0, 1.0])).tolist() == [1, 1, 2]
