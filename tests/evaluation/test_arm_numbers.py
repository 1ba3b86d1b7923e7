"""Costs, tokens, latencies, modes, failures and RouterArena's score of an arm."""

import math

import pytest

from rw.evaluation.arm_names import worker_order
from rw.evaluation.arm_numbers import numbers
from rw.evaluation.outcomes import ArmResult, Outcome
from rw.evaluation.router_arena import CHEAPEST, DEAREST, arena_score


def outcome(place, **changes):
    fields = {
        "query_id": f"q{place}", "kind": "math", "mode": "single", "status": "answered", "violation": None,
        "cause": None, "correct": True, "cost_usd": 2e-6, "workers": ("worker_1",), "dataset": "math",
        "domain": "math", "worker_input_tokens": 10, "worker_output_tokens": 4, "router_input_tokens": 100,
        "router_output_tokens": 20, "latency_s": 0.5,
    }  # fmt: skip
    return Outcome(**fields | changes)


def of(*outcomes, **about):
    return numbers(ArmResult("trained", about, outcomes))


def test_what_is_unknown_is_none_and_its_number_is_told():
    found = of(outcome(0), outcome(1, cost_usd=None, worker_input_tokens=None, router_input_tokens=None))
    assert found["cost_usd"]["mean"]["mean"] == 2e-6 and found["cost_usd"]["known"] == 1
    assert found["cost_usd"]["questions"] == 2 and found["cost_usd"]["total"] == 2e-6
    assert found["worker_input_tokens"] == {"mean": 10.0, "known": 1}
    assert found["router"]["known"] == 1 and found["router"]["usd_mean"] is None
    old = of(*(outcome(i, router_input_tokens=None, router_output_tokens=None, latency_s=None) for i in range(2)))
    assert old["router"]["input_tokens"] is None and old["latency_s"]["p99"] is None and old["latency_s"]["known"] == 0


def test_the_router_has_a_cost_where_both_its_prices_are_known():
    found = of(outcome(0), outcome(1), router_input_price=1.0, router_output_price=10.0)
    assert found["router"]["usd_total"] == pytest.approx(2 * (100 + 200) / 1e6)
    assert found["router_arena"]["with_router"]
    assert found["router_arena"]["usd_per_1000"] == pytest.approx(1000 * (2e-6 + 300e-6))
    assert of(outcome(0), router_input_price=1.0)["router"]["usd_mean"] is None


def test_latency_leaves_out_what_asked_nobody_or_was_lost():
    found = of(
        *(outcome(i, latency_s=float(i + 1)) for i in range(101)),
        outcome(200, workers=(), latency_s=0.0),
        outcome(201, status="infrastructure_failure", latency_s=99.0),
    )
    assert [found["latency_s"][p] for p in ("p50", "p90", "p99")] == [51.0, 91.0, 100.0]
    assert found["latency_s"]["known"] == 101


def test_shares_of_what_went_wrong_are_of_all_questions():
    found = of(
        outcome(0),
        outcome(1, status="terminal_invalid", violation="mode_grammar", correct=False, mode=None),
        outcome(2, status="exhausted", cause="turns", correct=False),
        outcome(3, status="infrastructure_failure", cause="timeout", correct=False),
    )
    assert found["status"]["invalid"] == {"share": 0.25, "count": 1, "by": {"mode_grammar": 0.25}}
    assert found["status"]["exhausted"]["by"] == {"turns": 0.25} and found["lost"] == 1
    assert found["status"]["infrastructure"]["by"] == {"timeout": 0.25}
    assert found["mode_share"]["overall"] == {"single": 0.75, "multi": 0.0, "agentic": 0.0, "none": 0.25}


def test_worker_shares_are_of_the_calls_of_a_mode():
    found = of(outcome(0, workers=("worker_2",)), outcome(1, mode="multi", workers=("worker_10", "worker_2")))
    share = found["worker_share"]
    assert share["by_mode"] == {"single": {"worker_2": 1.0}, "multi": {"worker_2": 0.5, "worker_10": 0.5}}
    assert list(share["overall"]) == ["worker_2", "worker_10"] and found["calls_mean"] == 1.5
    assert sorted(["w_10", "w_9", "b"], key=worker_order) == ["b", "w_9", "w_10"]


def test_held_out_questions_are_in_no_share_unless_there_are_no_others():
    held_out = outcome(1, dataset="aime", mode="agentic", cost_usd=1.0)
    found = of(outcome(0), held_out)
    assert (found["questions"], found["held_out_questions"]) == (1, 1)
    assert found["mode_share"]["overall"]["single"] == 1.0 and found["cost_usd"]["total"] == 2e-6
    assert of(held_out)["questions"] == 1 and of(held_out)["cost_usd"]["total"] == 1.0


def test_an_arm_without_modes_has_no_shares():
    found = of(outcome(0, mode=None))
    assert found["mode_share"] == {"overall": None, "domains": {}}


def test_the_arena_score_is_the_weighted_harmonic_mean():
    middle = math.sqrt(DEAREST * CHEAPEST)
    found = arena_score(0.8, middle)
    assert found.cost == pytest.approx(0.5) and not found.is_clamped
    assert found.score == pytest.approx(1.1 * 0.8 * 0.5 / (0.1 * 0.8 + 0.5))


@pytest.mark.parametrize(("usd", "cost"), [(0.0, 1.0), (1e-5, 1.0), (1e6, 0.0)])
def test_costs_beyond_the_scale_count_as_its_ends(usd, cost):
    found = arena_score(0.5, usd)
    assert found.is_clamped and found.cost == cost
    assert found.score == (pytest.approx(1.1 * 0.5 / 1.05) if cost else 0.0)


def test_a_router_that_is_never_right_at_the_highest_cost_scores_nothing():
    assert arena_score(0.0, DEAREST).score == 0.0
