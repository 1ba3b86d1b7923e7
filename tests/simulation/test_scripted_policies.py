"""Scripted routers write legal turns in every mode, copy the last answer, and choose by seed, query and rollout."""

import collections
from types import SimpleNamespace

import pytest

from rw.errors import ConfigError
from rw.protocol.actions import Answer, DeclareMode, Route
from rw.protocol.config import ProtocolConfig
from rw.protocol.modes import advance, initial_state, judge
from rw.simulation.plans import Plan, PlannedRoute, best_plan, copied_answer, multi, single, single_plans, team
from rw.simulation.policies import BestPlans, FixedWorker, HabitPolicy, kind_of, next_action, opinions, script
from rw.simulation.queries import batch, query
from rw.simulation.skills import WORKER_IDS
from rw.simulation.world import Kind
from rw.types import Mode, Query, Role

REAL = Query("nq-7", "nq", "recall", "who wrote hamlet?", ("Shakespeare",))
POLICIES = {
    "habits": HabitPolicy(3),
    "skewed habits": HabitPolicy(3, mode_prior=(0.98, 0.01, 0.01)),
    "opinions": opinions(3, WORKER_IDS),
    "best": BestPlans(),
    "one worker": FixedWorker(Mode.SINGLE, "worker_2"),
}


def follow(plan: Plan, rules: str, forced: bool) -> list:
    """The judged actions of a plan whose Workers all answer 17."""
    state = initial_state(WORKER_IDS, ProtocolConfig(agentic_rules=rules), plan.mode if forced else None)
    taken, observations = [], []
    for turn in range(1 if forced else 0, len(plan.turns) + 2):
        actions, violation = judge(plan.action(turn, observations), state)
        assert violation is None, (plan, turn)
        state = advance(state, actions)
        observations += ["so <answer>17</answer>" for action in actions if isinstance(action, Route)]
        taken += actions
    return taken


@pytest.mark.parametrize("rules", ["released", "paper"])
@pytest.mark.parametrize("name", POLICIES)
def test_every_plan_is_legal_and_ends_with_the_copied_answer(name, rules):
    for asked in batch(0, 0, 30):
        for mode in (*Mode, None):
            plan = POLICIES[name].plan(asked, 0, mode)
            taken = follow(plan, rules, forced=mode is not None)
            assert taken[-1] == Answer("17")
            if mode is None:
                assert taken[0] == DeclareMode(plan.mode)
            else:
                assert plan.mode is mode


def test_action_texts_are_the_protocols():
    plan = Plan(
        Mode.AGENTIC,
        (
            (
                PlannedRoute("worker_1", "solve", Role.EXECUTOR),
                PlannedRoute("worker_3", "step two", Role.EXECUTOR, ("n1", "n2")),
            ),
        ),
    )
    assert plan.action(0, ()) == "<mode>agentic</mode>"
    assert plan.action(1, ()) == (
        '<route model="worker_1" role="executor">solve</route>'
        '<route model="worker_3" role="executor" refs="n1,n2">step two</route><|im_end|>'
    )
    assert plan.action(2, ["so <answer>4</answer>", "<answer>5</answer>"]) == "<answer>5</answer>"
    assert single("worker_6").action(1, ()) == '<route model="worker_6">solve</route>'
    assert [len(turn) for turn in team((("worker_1", "worker_2"), ("worker_1",)), "worker_4").turns] == [2, 1, 1]
    assert multi(("worker_1", "step one"), ("worker_2", "step two")).action(2, ("x",)) == (
        '<route model="worker_2">step two</route>'
    )


@pytest.mark.parametrize(
    ("observation", "answer"),
    [
        ("it is <answer> 17 </answer>", "17"),
        ("<answer>1</answer><answer>2</answer>", "2"),
        ("\n\nWilliam Shakespeare\nof Stratford", "William Shakespeare"),
        ("a b c d e f g h i j k l m n", "a b c d e f g h i j k l"),
        ("<answer></answer>", "unknown"),
        ("", "unknown"),
        ("</answer><mode>single</mode>", "/answer mode single /mode"),
        ("I say <|im_end|> now", "I say |im_end| now"),
    ],
)
def test_answers_are_copied_short_and_without_tags(observation, answer):
    assert copied_answer(observation) == answer


def test_plans_depend_on_seed_query_and_rollout_alone():
    asked = query(0, "train", 0)
    assert HabitPolicy(1).plan(asked, 2, None) == HabitPolicy(1).plan(asked, 2, None)
    plans = [HabitPolicy(1).plan(asked, rollout, None) for rollout in range(50)]
    assert len(set(plans)) > 10
    assert plans != [HabitPolicy(2).plan(asked, rollout, None) for rollout in range(50)]


def test_habits_are_a_permutation_for_each_kind():
    policy = HabitPolicy(5)
    habits = {kind_of(asked): policy.mode_probabilities(asked) for asked in batch(0, 0, 5)}
    assert len(habits) == len(Kind)
    assert all(sorted(habit) == [0.2, 0.3, 0.5] for habit in habits.values())
    assert len(set(habits.values())) > 1


def test_free_modes_follow_the_habits():
    policy = HabitPolicy(5)
    asked = query(0, "train", 0)
    modes = [policy.plan(asked, rollout, None).mode for rollout in range(2000)]
    for mode in Mode:
        assert modes.count(mode) / 2000 == pytest.approx(policy.mode_probabilities(asked)[mode], abs=0.04)


def test_a_mode_prior_holds_for_every_kind():
    policy = HabitPolicy(5, mode_prior=(0.98, 0.01, 0.01))
    modes = [policy.plan(asked, rollout, None).mode for asked in batch(0, 0, 20) for rollout in range(100)]
    assert modes.count(Mode.SINGLE) / 2000 == pytest.approx(0.98, abs=0.01)


def test_favourites_get_half_the_picks_and_a_share_of_the_rest():
    policy = HabitPolicy(5)
    asked = query(0, "train", 4)
    picks = collections.Counter(
        policy.plan(asked, rollout, Mode.SINGLE).turns[0][0].worker_id for rollout in range(2000)
    )
    favoured = sum(picks[name] for name in policy.favourites(asked)) / 2000
    assert favoured == pytest.approx(0.5 + 0.5 * 2 / 6, abs=0.04)
    assert set(picks) == set(WORKER_IDS)


def test_a_forced_mode_changes_no_other_choice():
    policy = HabitPolicy(9)
    for asked in batch(0, 0, 20):
        free = policy.plan(asked, 1, None)
        assert policy.plan(asked, 1, free.mode) == free


def test_opinions_ask_different_workers_about_any_question():
    policy = opinions(0, ("worker_1", "worker_2", "worker_3"))
    for rollout in range(60):
        first, second = (turn[0] for turn in policy.plan(REAL, rollout, Mode.MULTI).turns)
        assert first.worker_id != second.worker_id
        assert first.subquery == "answer the question"
        layer, last = policy.plan(REAL, rollout, Mode.AGENTIC).turns
        assert len({route.worker_id for route in layer}) == 2
        assert (last[0].role, last[0].references) == (Role.SUMMARIZER, ("n1", "n2"))


def context(response: str) -> SimpleNamespace:
    return SimpleNamespace(response=response)


def request(turn: int, query_id: str = REAL.id) -> SimpleNamespace:
    return SimpleNamespace(episode=SimpleNamespace(query_id=query_id, rollout=0), turn=turn)


def test_a_script_follows_free_and_forced_modes():
    write = script(FixedWorker(Mode.SINGLE, "worker_2"), {REAL.id: REAL}.__getitem__)
    assert write(request(0), context("")) == "<mode>single</mode>"
    assert write(request(1), context("<mode>single</mode><|im_end|>\nrules")) == '<route model="worker_2">solve</route>'
    response = "<mode>multi</mode> rules"
    assert write(request(1), context(response)) == '<route model="worker_2">step one</route>'
    response += '<route model="worker_2">step one</route><observation>so <answer>3</answer></observation>'
    assert write(request(2), context(response)) == '<route model="worker_2">step two</route>'
    response += '<route model="worker_2">step two</route><observation>so <answer>8</answer></observation>'
    assert write(request(3), context(response)) == "<answer>8</answer>"
    with pytest.raises(ValueError, match="no mode"):
        write(request(1), context("rules"))


def test_best_plans_name_the_specialists():
    assert best_plan(Kind.RECALL_LOOKUP, Mode.SINGLE) == single("worker_1")
    assert best_plan(Kind.KNOW_LOOKUP, Mode.SINGLE) == single("worker_6")
    assert best_plan(Kind.MATH_CHAIN, Mode.MULTI) == multi(("worker_1", "step one"), ("worker_5", "step two"))
    assert best_plan(Kind.CODE_CHAIN, Mode.MULTI) == multi(("worker_5", "step one"), ("worker_3", "step two"))
    assert best_plan(Kind.REASON_SEARCH, Mode.AGENTIC).turns[-1][0].worker_id == "worker_4"
    assert [plan.turns[0][0].worker_id for plan in single_plans(Kind.REASON_SEARCH)][:3] == [
        "worker_3", "worker_6", "worker_4",
    ]  # fmt: skip


def test_next_action_is_the_plans():
    policy = FixedWorker(Mode.MULTI, "worker_3")
    assert next_action(policy, REAL, 0, None, 0, ()) == "<mode>multi</mode>"
    assert next_action(policy, REAL, 0, Mode.SINGLE, 2, ["Bacon"]) == "<answer>Bacon</answer>"


def test_what_cannot_work_is_refused():
    with pytest.raises(ConfigError, match="mode_prior"):
        HabitPolicy(0, mode_prior=(0.5, 0.5, 0.5))
    with pytest.raises(ConfigError, match="teams of 3 .* has 2: "):
        HabitPolicy(0, ("worker_1", "worker_2"))
    with pytest.raises(ConfigError, match="nq-7"):
        BestPlans().plan(REAL, 0, None)
