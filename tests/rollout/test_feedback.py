"""What the router is told of programs: on which tests they ran, what it reads, and that a restart tells it the same."""

import dataclasses

import pytest

from rw.errors import FailureCause, InfrastructureFailure, SandboxError
from rw.protocol.prompts import Prompts
from rw.rollout.feedback import RUN, ExecutionFeedback, Ran
from rw.rollout.journaled import JournaledFeedback
from rw.rollout.pool import EpisodePool, PoolConfig
from rw.rollout.scorer import Scorer
from rw.sampler.journaled import JournaledSampler
from rw.scoring.sandbox import strongest_tier
from rw.types import CallId, ProgramTests, Query, Segment, Status, VerdictKind
from rw.workers.journal import Journal
from rw.workers.journaled import JournaledClient

DOUBLE = ProgramTests("stdin", ("1\n", "2\n", "3\n"), ("2\n", "4\n", "6\n"), public=1)
CODE = Query("c", "apps", "code", "Double it.", DOUBLE)
MATH = Query("m", "math", "math", "6 x 7?", "42")
RIGHT = "So:\n```python\nprint(2 * int(input()))\n```"
ONLY_FIRST = "```python\nprint(2)\n```"
CALL = CallId(1, 0, 0, 1, 0)


class Runs:
    """In the place of a scorer: says how programs fared, and keeps what it was asked."""

    def __init__(self, ran=None):
        self.ran, self.asked = ran or Ran(VerdictKind.PASS, 3, 3, "", "2"), []

    async def ask(self, key, query, reply):
        self.asked.append((key, query.reference, reply))
        return self.ran


def feedback(runs, tests="hidden"):
    return ExecutionFeedback(runs, Prompts.load("default"), tests)


@pytest.mark.parametrize(
    "tests, reference", [("hidden", DOUBLE), ("public", ProgramTests("stdin", ("1\n",), ("2\n",), public=1))]
)
async def test_a_program_runs_on_the_tests_that_were_asked_for(tests, reference):
    runs = Runs()
    assert "passed all 3 tests" in await feedback(runs, tests)(CALL, CODE, RIGHT)
    assert runs.asked == [(RUN, reference, RIGHT)]


async def test_without_fence_tests_or_a_question_that_asks_for_a_program_nothing_is_run():
    runs = Runs()
    hidden, public = feedback(runs), feedback(runs, "public")
    assert await hidden(CALL, CODE, "print(2)") == ""
    assert await hidden(CALL, dataclasses.replace(MATH, domain="recall"), RIGHT) == ""
    no_samples = dataclasses.replace(CODE, reference=dataclasses.replace(DOUBLE, public=0))
    assert await public(CALL, no_samples, RIGHT) == "" and runs.asked == []


async def test_what_went_wrong_is_told_of_public_tests_alone():
    runs = Runs(Ran(VerdictKind.WRONG, 1, 3, "test 2 of 3: expected '4', got '2'", "2"))
    hidden = await feedback(runs)(CALL, CODE, ONLY_FIRST)
    assert "on 3 tests. It passed 1, and the next one ended as: wrong" in hidden and "expected" not in hidden
    assert "expected '4'" in await feedback(runs, "public")(CALL, CODE, ONLY_FIRST)


async def test_a_mathematical_program_shows_what_it_wrote():
    told = await feedback(Runs(Ran(VerdictKind.WRONG, 0, 1, "test 1 of 1: expected '', got '42'", "42")))(
        CALL, MATH, RIGHT
    )
    assert told.endswith("ended as: pass. It wrote:\n42]") and "expected" not in told


async def test_a_program_that_could_not_be_run_is_no_feedback_but_a_failure():
    runs = Runs(Ran(VerdictKind.SANDBOX_FAULT, 0, 3, "it does not start", ""))
    with pytest.raises(InfrastructureFailure, match="it does not start") as caught:
        await feedback(runs)(CALL, CODE, RIGHT)
    assert caught.value.cause is FailureCause.SANDBOX_FAULT


async def test_a_restart_tells_the_same_and_runs_nothing(tmp_path):
    runs = Runs()
    journal = Journal(tmp_path, {})
    told = await JournaledFeedback(feedback(runs), journal)(CALL, CODE, RIGHT)
    journal.close()
    runs.ran = Ran(VerdictKind.TIME, 0, 3, "", "")
    again = Journal(tmp_path, {})
    assert await JournaledFeedback(feedback(runs), again)(CALL, CODE, RIGHT) == told and len(runs.asked) == 1
    assert await JournaledFeedback(feedback(runs), again)(CALL, CODE, ONLY_FIRST) != told  # of another reply
    again.close()


AGENTIC = (
    "<mode>agentic</mode>",
    '<route model="worker_1" role="planner">Plan.</route><route model="worker_2" role="executor">Write.</route>',
    '<route model="worker_3" role="summarizer" refs="n1,n2">Join.</route>',
    "<answer>done</answer>",
)


async def episode(protocol, codec, world, feedback_, script=AGENTIC):
    workers = world.workers_saying(n1=RIGHT, n2=RIGHT, n3=RIGHT)
    sampler = world.RecordingSampler(codec, world.turns(*script))
    pool = EpisodePool(protocol, sampler, workers, PoolConfig(rollouts_per_query=1), feedback_)
    return await pool.run(CODE, 0, 0, None, step=1, policy_version=0), workers


async def test_only_executors_of_agentic_episodes_are_remarked_on_and_only_to_the_router(protocol, codec, world):
    calls = []

    async def remark(call, query, reply):
        calls.append(call)
        return "\nIT RAN"

    trajectory, workers = await episode(protocol, codec, world, remark)
    assert trajectory.status is Status.ANSWERED and calls == [CallId(1, 0, 0, 1, 1)]
    shown = codec.decode(trajectory.tokens[trajectory.segments == Segment.OBSERVATION])
    assert shown.count("IT RAN") == 1 and "```\nIT RAN</observation>" in shown
    assert not any("IT RAN" in request.content for request in workers.requests)
    assert not any("IT RAN" in call.output for call in trajectory.calls)
    multi = ("<mode>multi</mode>", *['<route model="worker_1">Do.</route>'] * 2, "<answer>done</answer>")
    trajectory, _ = await episode(protocol, codec, world, remark, multi)
    assert trajectory.status is Status.ANSWERED and len(calls) == 1


async def test_without_feedback_contexts_are_as_ever(protocol, codec, world):
    async def nothing(call, query, reply):
        return ""

    (plain, _), (remarked, _) = [await episode(protocol, codec, world, one) for one in (None, nothing)]
    assert plain.tokens.tolist() == remarked.tokens.tolist()


async def test_a_feedback_that_fails_excludes_the_rollout(protocol, codec, world):
    async def fail(call, query, reply):
        raise InfrastructureFailure(FailureCause.SANDBOX_FAULT, "no sandbox")

    trajectory, _ = await episode(protocol, codec, world, fail)
    assert (trajectory.status, trajectory.cause) == (Status.INFRASTRUCTURE_FAILURE, "sandbox_fault")
    assert len(trajectory.calls) == 2  # they were paid for


async def test_a_restarted_episode_reads_what_it_read_before_and_samples_nothing(protocol, codec, world, tmp_path):
    async def rollout(said, trouble=None):
        async def remark(call, query, reply):
            return said

        journal = Journal(tmp_path, {})
        sampler = world.RecordingSampler(codec, world.turns(*AGENTIC), trouble)
        workers = JournaledClient(world.workers_saying(n2=RIGHT), journal, lambda request: request.content)
        remarks = JournaledFeedback(remark, journal)
        pool = EpisodePool(protocol, JournaledSampler(sampler, journal), workers, PoolConfig(), remarks)
        trajectory = await pool.run(CODE, 0, 0, None, step=1, policy_version=0)
        journal.close()
        return trajectory

    async def refuse(request):
        raise AssertionError("a journaled turn was sampled again")

    first, again = await rollout(" first"), await rollout(" again", refuse)
    assert again.status is Status.ANSWERED and again.tokens.tolist() == first.tokens.tolist()
    assert " first</observation>" in codec.decode(again.tokens)


@pytest.fixture
def sandbox():
    try:
        return strongest_tier()
    except SandboxError as error:
        pytest.skip(str(error))


async def test_programs_really_run(sandbox):
    prompts = Prompts.load("default")
    async with Scorer("rw.rollout.feedback:served", processes=1) as scorer:
        hidden, public = (ExecutionFeedback(scorer, prompts, tests) for tests in ("hidden", "public"))
        assert "passed all 3 tests" in await hidden(CALL, CODE, RIGHT)
        assert "on 3 tests. It passed 1, and the next one ended as: wrong" in await hidden(CALL, CODE, ONLY_FIRST)
        assert "passed all 1 tests" in await public(CALL, CODE, ONLY_FIRST)
        assert "pass. It wrote:\n42]" in await hidden(CALL, MATH, "```python\nprint(6 * 7)\n```")
        crashed = await hidden(CALL, MATH, "```python\nprint(1)\n1 / 0\n```")
        assert "ended as: crash" in crashed and "ZeroDivisionError" in crashed
