"""Sets, domains and Avg as the paper adds them up."""

import pytest

from rw.evaluation.accuracies import accuracies
from rw.evaluation.domains import (
    PAPER_SETS,
    aggregation_words,
    average_weights,
    is_the_papers,
    strata,
)
from rw.evaluation.outcomes import Outcome

# Right answers of as many questions, by hand: a domain is the mean of its sets, Avg the mean of the five domains.
RIGHT = {
    "math": (90, 120),  # 75 %
    "omni_math": (60, 120),  # 50 %: math is 62.5 %
    "apps": (48, 120),  # 40 %
    "live_code_bench": (36, 120),  # 30 %
    "taco": (50, 100),  # 50 %: code is 40 %, though 134 of 340 are right, which is 39.4 %
    "super_gpqa": (66, 120),  # 55 %
    "sat_bench": (90, 120),  # 75 %
    "trivia_qa": (84, 120),  # 70 %
    "simple_qa_verified": (18, 120),  # 15 %: recall is 42.5 %
}
HELD_OUT = {"aime": (85, 149), "gpqa_diamond": (137, 198), "bbh": (378, 1080)}
DOMAIN_OF = {dataset: domain for domain, sets in PAPER_SETS.items() for dataset in sets}
DOMAIN_OF |= {"aime": "math", "gpqa_diamond": "knowledge", "bbh": "reason"}


def outcome(dataset, place, right, domain=None, status="answered", **more):
    return Outcome(
        query_id=f"{dataset}/{place}", kind=domain or dataset, mode="single", status=status, violation=None, cause=None,
        correct=right, cost_usd=0.0, workers=(), dataset=dataset, domain=domain or dataset, **more,
    )  # fmt: skip


def table(counts):
    return [
        outcome(dataset, place, place < right, DOMAIN_OF[dataset])
        for dataset, (right, n) in counts.items()
        for place in range(n)
    ]


def test_a_hand_made_table_adds_up_as_the_papers_does():
    found = accuracies(table(RIGHT | HELD_OUT))
    means = {domain: interval["mean"] for domain, interval in found["domains"].items()}
    by_hand = {"math": 0.625, "code": 0.4, "knowledge": 0.55, "reason": 0.75, "recall": 0.425}
    assert means == pytest.approx(by_hand) and list(means) == list(by_hand)
    assert found["average"]["mean"] == pytest.approx(0.55) and found["average"]["n"] == 1060
    assert found["sets"]["code/taco"]["mean"] == 0.5 and len(found["sets"]) == 9
    assert found["held_out"]["bbh"]["mean"] == 0.35 and list(found["held_out"]) == ["aime", "gpqa_diamond", "bbh"]


def test_held_out_sets_are_in_no_mean():
    with_them, without = accuracies(table(RIGHT | HELD_OUT)), accuracies(table(RIGHT))
    assert with_them["domains"] == without["domains"] and with_them["average"] == without["average"]
    alone = accuracies(table(HELD_OUT))
    assert alone["average"] is None and alone["domains"] == {} and len(alone["held_out"]) == 3


def test_a_question_lost_to_infrastructure_counts_as_wrong():
    found = [outcome("math", 0, True), outcome("math", 1, False, status="infrastructure_failure")]
    assert accuracies(found)["average"]["mean"] == 0.5


def test_other_questions_add_up_over_the_domains_there_are():
    kinds = [outcome("simulated", f"{kind}{i}", i < 3, "know")
             for kind in ("a", "b") for i in range(4)]  # fmt: skip
    kinds = [o.__class__(**{**vars(o), "kind": o.query_id.split("/")[1][0]}) for o in kinds]
    found = list(strata(kinds))
    assert [(s.domain, s.dataset) for s in found] == [("know", "a"), ("know", "b")]
    assert list(average_weights(found).values()) == [0.5, 0.5]
    assert "the domain that these questions have (know)" in aggregation_words(found)


def test_files_of_older_runs_know_the_kind_alone():
    old = Outcome("q", "recall", "single", "answered", None, None, True, 0.0, ())
    assert [(s.domain, s.dataset) for s in strata([old])] == [("recall", "recall")]


def test_the_papers_nine_sets_are_told_from_others():
    nine = list(strata(table(RIGHT | HELD_OUT)))
    assert is_the_papers(nine) and "five domains" in aggregation_words(nine)
    assert not is_the_papers([s for s in nine if s.dataset != "taco"])


def test_sets_of_a_domain_count_alike_whatever_their_size():
    found = [outcome("math", i, True) for i in range(9)] + [outcome("omni_math", 0, False, "math")]
    assert accuracies(found)["domains"]["math"]["mean"] == 0.5


def test_graded_scores_count_what_they_are():
    found = [outcome("nq", i, False, "recall", score=score) for i, score in enumerate((0.25, 0.5, 0.75, 0.5))]
    interval = accuracies(found)["sets"]["recall/nq"]
    assert interval["mean"] == 0.5 and 0.1 < interval["low"] < 0.5 < interval["high"] < 0.9
