"""Who earns the reward: which texts may count, in which order they are judged, and what the verdict says."""

import dataclasses

import numpy as np
import pytest

from rw.errors import ConfigError, FailureCause, InfrastructureFailure
from rw.rollout.credit import PAPER, Claim, CreditConfig, answer_of, claims, judge
from rw.rollout.group import score_trajectory
from rw.rollout.journaled import JournaledScore, question_digests, write_final
from rw.types import CallStatus, Mode, ProgramTests, Query, Role, Status, Trajectory, Verdict, WorkerCall
from rw.workers.journal import Journal

MATH = Query("m", "math", "math", "2+2?", "4")
CODE = dataclasses.replace(MATH, id="c", dataset="apps", domain="code", reference=ProgramTests("stdin", ("1",), ("2",)))
UNION, EITHER = CreditConfig(code_credit="union"), CreditConfig(answer_from="either")
FENCED = "Here:\n```python\nprint(2)\n```"


def call(node, output, role=None, status=CallStatus.OK):
    return WorkerCall(node, f"worker_{node}", role, (), "do", output, 1, 1, 0.0, 0.1, 1, status)


def answered(answer, *calls, mode=Mode.AGENTIC):
    empty = np.zeros(0, np.int32)
    return Trajectory("c", 0, mode, False, empty, empty, empty, 0, calls, answer, Status.ANSWERED)


SUMMARY = (
    call("n1", "first", Role.SUMMARIZER),
    call("n2", "So <answer>3</answer> no, <answer>4</answer>", Role.SUMMARIZER),
)
CODERS = (
    call("n1", FENCED, Role.EXECUTOR), call("n2", "no program", Role.VERIFIER),
    call("n3", "```lost```", Role.EXECUTOR, CallStatus.FAILED), call("n4", "```\nx\n```", Role.SUMMARIZER),
)  # fmt: skip


@pytest.mark.parametrize(
    "query, trajectory, config, expected",
    [
        (MATH, answered("5", *SUMMARY), PAPER, ["5"]),
        (MATH, answered("5", *SUMMARY), EITHER, ["5", "4"]),
        (MATH, answered("4", *SUMMARY), EITHER, ["4"]),  # the same text is not judged twice
        (MATH, answered("5", *SUMMARY, mode=Mode.MULTI), EITHER, ["5"]),
        (MATH, answered("5", *CODERS), UNION, ["5"]),
        (CODE, answered("5", *CODERS), PAPER, ["5"]),
        (CODE, answered("5", *CODERS), UNION, ["5", FENCED, "```\nx\n```"]),
        (CODE, answered("5", *CODERS, mode=Mode.SINGLE), UNION, ["5", FENCED, "```\nx\n```"]),
        (CODE, answered("5", *CODERS), EITHER, ["5", "```\nx\n```"]),
        (CODE, answered("5", *CODERS), CreditConfig("union", "either"), ["5", "```\nx\n```", FENCED]),
    ],
)
def test_which_texts_may_earn_the_reward(query, trajectory, config, expected):
    found = claims(query, trajectory, config)
    assert [claim.text for claim in found] == expected
    assert not found[0].by and all(claim.by for claim in found[1:])


def test_a_claim_names_call_and_worker():
    assert claims(MATH, answered("5", *SUMMARY), EITHER)[1] == Claim("4", "n2 (worker_n2)")


def test_a_reply_without_tags_is_its_own_answer():
    assert (answer_of("plain 4"), answer_of("<answer>4</answer>"), answer_of("<answer>4")) == (
        "plain 4",
        "4",
        "<answer>4",
    )


class Judge:
    """Says what is right; `broken` texts cannot be judged."""

    def __init__(self, right=(), broken=()):
        self.right, self.broken, self.asked = right, broken, []

    async def __call__(self, query, text):
        self.asked.append(text)
        if text in self.broken:
            raise InfrastructureFailure(FailureCause.SANDBOX_FAULT, "no sandbox")
        return Verdict(text in self.right, detail="2 of 2" if text in self.right else "0 of 2", scorer="program/1")


async def test_the_routers_own_right_answer_is_credited_to_nobody_else():
    score = Judge(right=("5", FENCED))
    assert await judge(CODE, answered("5", *CODERS), score, UNION) == Verdict(True, "2 of 2", scorer="program/1")
    assert score.asked == ["5"]


async def test_a_workers_right_program_counts_and_the_verdict_says_whose():
    verdict = await judge(CODE, answered("5", *CODERS), Judge(right=("```\nx\n```",)), UNION)
    assert verdict == Verdict(True, "credited to n4 (worker_n4): 2 of 2", scorer="program/1")
    assert not (await judge(CODE, answered("5", *CODERS), Judge(right=("```\nx\n```",)), PAPER)).correct


async def test_where_nothing_is_right_the_verdict_is_that_of_the_answer():
    assert await judge(CODE, answered("5", *CODERS), Judge(), UNION) == Verdict(False, "0 of 2", scorer="program/1")


async def test_what_could_not_be_judged_matters_only_where_nothing_is_right():
    assert (
        await judge(CODE, answered("5", *CODERS), Judge(right=("```\nx\n```",), broken=("5", FENCED)), UNION)
    ).correct
    with pytest.raises(InfrastructureFailure, match="no sandbox"):
        await judge(CODE, answered("5", *CODERS), Judge(broken=(FENCED,)), UNION)


async def test_a_sandbox_fault_excludes_the_rollout_under_its_own_cause():
    scored = await score_trajectory(CODE, answered("5"), Judge(broken=("5",)))
    assert (scored.trajectory.status, scored.trajectory.cause) == (Status.INFRASTRUCTURE_FAILURE, "sandbox_fault")
    assert scored.verdict is None


@pytest.mark.parametrize("name", ["code_credit", "answer_from", "execution_feedback"])
def test_switches_that_do_not_exist_are_refused(name):
    with pytest.raises(ConfigError, match=f"credit.{name}='sometimes' is not one of"):
        CreditConfig(**{name: "sometimes"})


async def test_a_verdict_that_a_worker_earned_is_kept_for_no_other_rollout(tmp_path):
    """Two rollouts give one wrong answer; the first is credited with its Worker's program, the second has none."""
    journal = Journal(tmp_path, {})
    score = JournaledScore(Judge(right=(FENCED,)), journal)
    earned = await score_trajectory(CODE, answered("5", *CODERS), score, UNION)
    write_final(journal, earned, keeps_verdict=UNION.is_of_answer)
    journal.close()
    restarted = Journal(tmp_path, {})
    bare = await score_trajectory(CODE, answered("5"), JournaledScore(Judge(right=(FENCED,)), restarted), UNION)
    restarted.close()
    assert earned.correct and not bare.correct
    assert PAPER.is_of_answer and not UNION.is_of_answer and not EITHER.is_of_answer


async def test_a_verdict_is_of_its_question_and_not_of_its_id(tmp_path):
    """A run that was stopped goes on with files that were prepared again: an id may have another reference now."""
    before, now = question_digests([CODE]), question_digests([dataclasses.replace(CODE, reference="another")])
    journal = Journal(tmp_path, {})
    earned = await score_trajectory(CODE, answered("5"), JournaledScore(Judge(right=("5",)), journal, before))
    write_final(journal, earned, digests=before)
    journal.close()
    restarted = Journal(tmp_path, {})
    same = await JournaledScore(Judge(), restarted, before)(CODE, "5")
    other = await JournaledScore(Judge(), restarted, now)(CODE, "5")
    restarted.close()
    assert earned.correct and same.correct and not other.correct
