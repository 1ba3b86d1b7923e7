"""Episodes side by side: a bound, a deadline, and faults that stay with the rollout that had them."""

import asyncio
import dataclasses
import logging

import numpy as np
import pytest

from rw.errors import ConfigError, FailureCause, InfrastructureFailure, WorkerRefusedError
from rw.rollout.pool import EpisodePool, PoolConfig
from rw.types import Mode, Status

SINGLE = ["<mode>single</mode>", '<route model="worker_4">Solve it.</route>', "<answer>4</answer>"]


@pytest.fixture
def make_pool(protocol, codec, world):
    def make(workers=None, trouble=None, script=None, protocol=protocol, **config):
        sampler = world.RecordingSampler(codec, script or world.turns(*SINGLE), trouble)
        return EpisodePool(protocol, sampler, workers or world.workers_saying(), PoolConfig(**config))

    return make


def run(pool, query, rollout=0, forced_mode=None):
    return pool.run(query, 0, rollout, forced_mode, step=3, policy_version=2)


async def test_no_more_episodes_run_at_once_than_the_bound(make_pool, world):
    at_work, most = 0, 0

    async def answer(request):
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.005)
        at_work -= 1
        return "4"

    pool = make_pool(world.InProcessWorkers(answer), concurrency=3)
    trajectories = await asyncio.gather(*[run(pool, world.query(0), k) for k in range(12)])
    assert most == 3
    assert [trajectory.rollout_index for trajectory in trajectories] == list(range(12))
    assert all(trajectory.status is Status.ANSWERED for trajectory in trajectories)


async def test_deadline_keeps_what_was_sampled_and_called(make_pool, world, codec):
    async def answer(request):
        await asyncio.sleep(60)

    workers = world.InProcessWorkers(answer)
    pool = make_pool(workers, deadline_s=0.2)
    trajectory = await run(pool, world.query(0))
    assert (trajectory.status, trajectory.cause) == (Status.INFRASTRUCTURE_FAILURE, "deadline")
    assert (trajectory.mode, trajectory.turns, trajectory.policy_version) == (Mode.SINGLE, 2, 2)
    assert codec.decode(trajectory.tokens).endswith(SINGLE[1])
    assert [(call.node_id, call.status.value) for call in trajectory.calls] == [("n1", "cancelled")]
    assert workers.stopped == ["n1"] and len(pool.sampler.released) == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_deadline_does_not_count_the_wait_for_a_place(make_pool, world):
    async def answer(request):
        await asyncio.sleep(0.15)
        return "4"

    pool = make_pool(world.InProcessWorkers(answer), concurrency=1, deadline_s=0.4)
    trajectories = await asyncio.gather(*[run(pool, world.query(0), k) for k in range(4)])
    assert [trajectory.status for trajectory in trajectories] == [Status.ANSWERED] * 4


async def test_deterministic_mode_has_no_deadline(make_pool, world):
    async def answer(request):
        await asyncio.sleep(0.1)
        return "4"

    pool = make_pool(world.InProcessWorkers(answer), deadline_s=0.02, deterministic=True)
    assert (await run(pool, world.query(0))).status is Status.ANSWERED


async def test_a_timeout_error_of_an_episode_is_no_deadline(make_pool, world):
    async def answer(request):
        raise TimeoutError("someone else's clock")

    trajectory = await run(make_pool(world.InProcessWorkers(answer)), world.query(0))
    assert trajectory.cause == "internal"


async def test_exception_is_one_internal_failure_with_its_traceback_logged_once(make_pool, world, caplog):
    def script(request, view):
        if request.episode.rollout in (1, 2):
            raise ZeroDivisionError("a bug in a script")
        return SINGLE[request.turn]

    pool = make_pool(script=script)
    with caplog.at_level(logging.ERROR):
        trajectories = await asyncio.gather(*[run(pool, world.query(0), k) for k in range(4)])
    assert [trajectory.cause for trajectory in trajectories] == [None, "internal", "internal", None]
    assert [trajectory.status is Status.INFRASTRUCTURE_FAILURE for trajectory in trajectories] == [
        False, True, True, False,
    ]  # fmt: skip
    assert caplog.text.count("Traceback") == 1
    assert caplog.text.count("ZeroDivisionError: a bug in a script") >= 2
    assert "rollout 1 of q0" in caplog.text and "rollout 2 of q0" in caplog.text


async def test_trajectory_that_contradicts_itself_never_becomes_a_sample(make_pool, world):
    pool = make_pool()
    generate = pool.sampler.generate

    async def without_numbers(request):
        turn = await generate(request)
        return dataclasses.replace(turn, logprobs=np.full(len(turn.tokens), np.nan, np.float32))

    pool.sampler.generate = without_numbers
    trajectory = await run(pool, world.query(0))
    assert (trajectory.status, trajectory.cause, trajectory.answer) == (
        Status.INFRASTRUCTURE_FAILURE,
        "internal",
        None,
    )


async def test_calls_beside_one_that_raises_are_still_recorded(make_pool, world):
    async def answer(request):
        if request.node_id == "n2":
            await asyncio.sleep(0.01)
            raise ZeroDivisionError("a bug in a client")
        return "fine"

    layer = "".join(f'<route model="worker_{k}" role="executor">Go.</route>' for k in (1, 2))
    script = world.turns("<mode>agentic</mode>", layer + "<|im_end|>")
    trajectory = await run(make_pool(world.InProcessWorkers(answer), script=script), world.query(0))
    assert trajectory.cause == "internal"
    assert [(call.node_id, call.status.value) for call in trajectory.calls] == [("n1", "ok"), ("n2", "cancelled")]


async def test_deadline_after_the_answer_leaves_no_answer(make_pool, world):
    pool = make_pool(deadline_s=0.2)

    async def never(episode):
        await asyncio.sleep(60)

    pool.sampler.release = never
    trajectory = await run(pool, world.query(0))
    assert (trajectory.cause, trajectory.answer) == ("deadline", None)


async def test_failure_before_the_first_token_is_still_a_trajectory(make_pool, world):
    class Broken:
        def dialogue(self, query, forced_mode):
            raise KeyError("no such template")

    trajectory = await run(make_pool(protocol=Broken()), world.query(0), rollout=3, forced_mode=Mode.MULTI)
    assert (trajectory.status, trajectory.cause) == (Status.INFRASTRUCTURE_FAILURE, "internal")
    assert (trajectory.mode, trajectory.forced, trajectory.rollout_index) == (Mode.MULTI, True, 3)
    assert len(trajectory.tokens) == len(trajectory.segments) == len(trajectory.sampled_logprobs) == 0


async def test_sampler_fault_keeps_its_cause(make_pool, world):
    async def trouble(request):
        raise InfrastructureFailure(FailureCause.SAMPLER_FAULT, "device lost")

    assert (await run(make_pool(trouble=trouble), world.query(0))).cause == "sampler_fault"


async def test_refusal_and_cancellation_pass_through(make_pool, world):
    async def refuse(request):
        raise WorkerRefusedError("worker_4 refuses: 402")

    pool = make_pool(world.InProcessWorkers(refuse))
    with pytest.raises(WorkerRefusedError, match="402"):
        await run(pool, world.query(0))

    async def hang(request):
        await asyncio.sleep(60)

    pool = make_pool(world.InProcessWorkers(hang))
    task = asyncio.create_task(run(pool, world.query(0)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(pool.sampler.released) == 1


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(concurrency=0), "rollout.concurrency is 0; it must be at least 1"),
        (dict(rollouts_per_query=0), "rollout.rollouts_per_query is 0"),
        (dict(deadline_s=0.0), "rollout.deadline_s is 0.0; it must be above 0"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        PoolConfig(**changes)


async def test_episodes_of_a_batch_begin_one_by_one_so_that_the_loop_answers_in_between(world, protocol, codec):
    waiting = 0

    async def answer(request):
        return "4"

    class CountingProtocol:
        """The loop must come around between two dialogues, or what others wait for is late."""

        codec = protocol.codec

        def dialogue(self, query, forced_mode):
            assert waiting >= started[0]
            started[0] += 1
            return protocol.dialogue(query, forced_mode)

    async def count():
        nonlocal waiting
        while True:
            waiting += 1
            await asyncio.sleep(0)

    started = [0]
    counter = asyncio.create_task(count())
    script = world.turns("<mode>single</mode>", '<route model="worker_2">2+2</route>', "<answer>4</answer>")
    pool = EpisodePool(
        CountingProtocol(),
        world.RecordingSampler(codec, script),
        world.InProcessWorkers(answer),
        PoolConfig(rollouts_per_query=8),
    )
    (group,) = await world.collect(pool, [world.query(0)])
    counter.cancel()
    assert started == [8] and all(scored.correct for scored in group.rollouts)
