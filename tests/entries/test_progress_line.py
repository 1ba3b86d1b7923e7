"""The lines that a step and an arm of the final evaluation print."""

import types

from rw import progress
from rw.evaluation.outcomes import ArmResult, Outcome
from rw.progress import arm_line, spent_line, step_line
from rw.workers.spending import Spent

ROW = {
    "rho_b": 0.5,
    "accuracy": 0.25,
    "invalid/total": 0.125,
    "infra/excluded_frac": 0.1,
    "infra/excluded_frac/single": 0.05,
    "infra/excluded_frac/agentic": 0.15,
    "infra/excluded_unevenly": 0.0,
    "mode/sampled_freq/single": 0.5,
    "mode/sampled_freq/multi": 0.25,
    "mode/sampled_freq/agentic": 0.25,
    "cost/per_rollout": 0.002,
    "cost/spent_usd": 1.25,
    "loss/kl": 0.0,
    "perf/step_s": 3.0,
    "perf/rollout_s": 2.0,
    "perf/train_s": 0.75,
    "perf/publish_s": 0.125,
    "perf/decode_s": 0.75,
    "perf/prefill_s": 0.25,
    "perf/wait_s": 0.875,
    "perf/score_s": 0.0,
    "perf/reference_s": 0.25,
}


def test_a_step_in_one_line():
    assert step_line(ROW, 7, 90, cold_start=False) == (
        "step 7/90 rho 0.50 accuracy 0.250  invalid 0.12  excluded 0.10  modes 0.50/0.25/0.25  cost 2.00e-03 USD"
        "  spent 1.25 USD  kl 0.0000  grad -  3.00 s: rollout 2.00 (decode 0.75, prefill 0.25, wait 0.88, score 0.00), "
        "train 0.75 (reference 0.25, update -), publish 0.12"
    )


def test_what_was_learnt_while_episodes_waited_is_told():
    line = step_line(ROW | {"sampler/idle_work_s": 0.5}, 7, 90, cold_start=False)
    assert "score 0.00; learning meanwhile 0.50), train" in line


def test_spending_is_told_with_its_unknown_part_and_the_nearest_cap():
    caps = {"cost/unknown_usd": 0.5, "cost/cap": "budget.run_usd", "cost/cap_share": 0.125}
    line = step_line(ROW | caps, 7, 90, cold_start=False)
    assert "  spent 1.25 USD (0.5 unknown), 12% of budget.run_usd  kl" in line


def test_money_that_nobody_is_paid_is_called_nominal():
    assert "  spent 1.25 nominal USD  kl" in step_line(ROW, 7, 90, cold_start=False, is_nominal=True)


def test_a_run_ends_with_what_it_spent():
    spent = Spent(total_usd=1.5, unknown_usd=0.25)
    assert spent_line(spent, is_nominal=False) == "spent 1.5 USD in all, 0.25 of them unknown"
    spent = Spent(total_usd=0.5, replayed_usd=2.0)
    said = "spent 0.5 nominal USD in all; answers worth 2 USD were not paid again"
    assert spent_line(spent, is_nominal=True) == said


def test_long_work_says_now_and_then_how_far_it_is_where_there_is_no_terminal(monkeypatch):
    said, clock = [], iter((0.0, 29.0, 31.0, 31.0, 40.0, 70.0, 71.0, 200.0))
    monkeypatch.setattr(progress, "say", said.append)
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    with progress.counted("answers", 5) as on_count:
        for done in range(1, 6):
            on_count(done)
    assert said == ["answers: 2 of 5", "answers: 4 of 5"]


def test_uneven_exclusions_are_told_by_mode():
    line = step_line(ROW | {"infra/excluded_unevenly": 1.0}, 7, 90, cold_start=True)
    assert "step 7/90 cold " in line and "  excluded 0.10 (uneven by mode: 0.05/-/0.15)  modes" in line


def test_an_arm_says_what_was_lost_and_how_to_have_it_answered_again():
    right = Outcome("q1", "math", "single", "answered", None, None, True, 1e-5, ())
    lost = Outcome("q2", "math", "single", "infrastructure_failure", None, "timeout", False, 0.0, ())
    assert arm_line(ArmResult("trained", {}, (right,))) == "test: trained            1/1 right"
    assert arm_line(ArmResult("trained", {}, (right, lost))) == (
        "test: trained            1/2 right, 1 lost to infrastructure; remove evaluation/trained.jsonl to ask again"
    )
