"""Groups and their stream: K rollouts a query, scored while others run, handed on in one of two orders."""

import asyncio
import contextlib
import dataclasses
import gc
import pathlib
import time

import pytest

from rw.errors import ConfigError, DataError, WorkerRefusedError
from rw.rollout.group import group_tasks, run_group
from rw.rollout.lag import LoopLag
from rw.rollout.pool import EpisodePool, PoolConfig
from rw.rollout.scorer import Scorer
from rw.rollout.stream import Progress, stream_groups
from rw.types import Mode, Status, Verdict

SINGLE = ["<mode>single</mode>", '<route model="worker_4">Solve it.</route>', "<answer>4</answer>"]


@pytest.fixture
def make_pool(protocol, codec, world):
    def make(answer, script=None, **config):
        sampler = world.RecordingSampler(codec, script or world.turns(*SINGLE))
        return EpisodePool(protocol, sampler, world.InProcessWorkers(answer), PoolConfig(**config))

    return make


async def at_once(request):
    return "x is 4"


def delays(**by_group):
    async def answer(request):
        await asyncio.sleep(by_group.get(f"g{request.id.group}", 0))
        return "x is 4"

    return answer


def test_tasks_of_a_batch(world):
    queries = [world.query(k) for k in range(3)]
    tasks = group_tasks(queries, [Mode.MULTI, None, Mode.SINGLE], first_index=6)
    assert [(task.index, task.query.id, task.forced_mode) for task in tasks] == [
        (6, "q0", Mode.MULTI),
        (7, "q1", None),
        (8, "q2", Mode.SINGLE),
    ]
    assert [task.forced_mode for task in group_tasks(queries)] == [None, None, None]


def test_batches_that_cannot_be_run_are_refused(world):
    with pytest.raises(ConfigError, match="2 forced modes for 1 queries"):
        group_tasks([world.query(0)], [None, None])
    with pytest.raises(DataError, match="query q1 occurs twice"):
        group_tasks([world.query(1), world.query(2), world.query(1)])


async def test_group_holds_its_rollouts_in_order_with_verdicts(make_pool, world):
    def script(request, view):
        answer = "4" if request.episode.rollout % 2 == 0 else "5"
        return [SINGLE[0], SINGLE[1], f"<answer>{answer}</answer>"][request.turn]

    async def later_first(request):
        await asyncio.sleep(0.01 * (4 - request.id.rollout))
        return "x is 4"

    pool = make_pool(later_first, script, rollouts_per_query=4)
    (task,) = group_tasks([world.query(0)], first_index=9)
    group = await run_group(task, pool, world.score_exactly, step=1, policy_version=0)
    assert (group.index, group.query.id, group.forced_mode) == (9, "q0", None)
    assert [scored.trajectory.rollout_index for scored in group.rollouts] == [0, 1, 2, 3]
    assert [scored.correct for scored in group.rollouts] == [True, False, True, False]
    assert {request.id.group for request in pool.workers.requests} == {9}


async def test_rollouts_are_scored_while_their_siblings_still_run(make_pool, world):
    events = []

    async def answer(request):
        await asyncio.sleep(0.1 * request.id.rollout)
        events.append(f"worker {request.id.rollout}")
        return "x is 4"

    async def score(query, answer):
        events.append("scored")
        return Verdict(True)

    pool = make_pool(answer, rollouts_per_query=2)
    await world.collect(pool, [world.query(0)], score)
    assert events == ["worker 0", "scored", "worker 1", "scored"]


async def test_only_answers_are_scored_the_empty_one_too(make_pool, world):
    endings = ["<answer></answer>", "nonsense", "<answer>4</answer>"]
    scored_answers = []

    def script(request, view):
        return [SINGLE[0], SINGLE[1], endings[request.episode.rollout]][request.turn]

    async def score(query, answer):
        scored_answers.append(answer)
        return Verdict(answer == "4")

    (group,) = await world.collect(make_pool(at_once, script, rollouts_per_query=3), [world.query(0)], score)
    assert sorted(scored_answers) == ["", "4"]
    assert [rollout.trajectory.status for rollout in group.rollouts] == [
        Status.ANSWERED,
        Status.TERMINAL_INVALID,
        Status.ANSWERED,
    ]
    assert [rollout.verdict for rollout in group.rollouts] == [Verdict(False), None, Verdict(True)]


async def test_scorer_fault_excludes_the_rollout_and_is_never_wrong(make_pool, world, caplog):
    async def score(query, answer):
        if query.id == "q1":
            raise TimeoutError("no verdict in time")
        return Verdict(True)

    groups = await world.collect(
        make_pool(at_once, rollouts_per_query=2, deterministic=True), [world.query(0), world.query(1)], score
    )
    assert [rollout.correct for rollout in groups[0].rollouts] == [True, True]
    for rollout in groups[1].rollouts:
        assert (rollout.trajectory.status, rollout.trajectory.cause, rollout.verdict) == (
            Status.INFRASTRUCTURE_FAILURE,
            "scorer_fault",
            None,
        )
        assert rollout.trajectory.answer is None and len(rollout.trajectory.calls) == 1
    assert "no verdict in time" in caplog.text


async def test_scorer_that_cannot_work_at_all_stops_the_step(make_pool, world):
    async def score(query, answer):
        raise ConfigError("no scorer for this dataset")

    with pytest.raises(ConfigError, match="no scorer"):
        await world.collect(make_pool(at_once, rollouts_per_query=2), [world.query(0)], score)


async def test_groups_come_as_they_arrive_or_in_order(make_pool, world):
    queries = [world.query(k) for k in range(4)]
    answer = delays(g0=0.15, g1=0.05, g2=0.1)
    arrived = await world.collect(make_pool(answer, rollouts_per_query=2), queries)
    assert [group.index for group in arrived] == [3, 1, 2, 0]
    ordered = await world.collect(make_pool(answer, rollouts_per_query=2, deterministic=True), queries)
    assert [group.index for group in ordered] == [0, 1, 2, 3]


async def test_shuffled_worker_latencies_change_nothing_in_deterministic_mode(make_pool, world):
    def script(request, view):
        asked = f'<route model="worker_{1 + request.episode.rollout}">Solve it, {request.episode.query_id}.</route>'
        return [SINGLE[0], asked, SINGLE[2]][request.turn]

    async def run(**by_group):
        pool = make_pool(delays(**by_group), script, rollouts_per_query=3, deterministic=True)
        groups = await world.collect(pool, [world.query(k) for k in range(3)])
        return [
            (group.index, rollout.trajectory.tokens.tobytes(), rollout.trajectory.segments.tobytes(), rollout.verdict)
            for group in groups
            for rollout in group.rollouts
        ]

    assert await run(g0=0.05, g1=0.02) == await run(g1=0.05, g2=0.03)


async def test_forced_modes_reach_their_groups(make_pool, world):
    pool = make_pool(at_once, rollouts_per_query=2, deterministic=True)
    groups = await world.collect(pool, [world.query(0), world.query(1)], forced_modes=[Mode.SINGLE, None])
    assert [group.forced_mode for group in groups] == [Mode.SINGLE, None]
    assert [[rollout.trajectory.forced for rollout in group.rollouts] for group in groups] == [
        [True, True],
        [False, False],
    ]


async def test_progress_counts_rollouts_and_failures(make_pool, world):
    async def score(query, answer):
        if query.id == "q1":
            raise OSError("no scorer")
        return Verdict(True)

    seen = []
    tasks = group_tasks([world.query(0), world.query(1)])
    pool = make_pool(delays(g0=0.05), rollouts_per_query=2)
    stream = stream_groups(tasks, pool, score, step=1, policy_version=0, on_progress=seen.append)
    assert len([group async for group in stream]) == 2
    assert seen == [Progress(1, 1, 4), Progress(2, 2, 4), Progress(3, 2, 4), Progress(4, 2, 4)]


async def test_no_tasks_no_groups(make_pool, world):
    assert await world.collect(make_pool(at_once), []) == []


async def test_closing_the_stream_early_ends_everything_at_once(make_pool, world):
    async def slow_score(query, answer):
        await asyncio.sleep(60)

    pool = make_pool(delays(g1=60, g2=0), rollouts_per_query=4)

    async def score(query, answer):
        return await (slow_score if query.id == "q2" else world.score_exactly)(query, answer)

    tasks = group_tasks([world.query(k) for k in range(3)])
    async with contextlib.aclosing(stream_groups(tasks, pool, score, step=1, policy_version=0)) as stream:
        async for group in stream:
            assert group.index == 0
            started = time.monotonic()
            break
    assert time.monotonic() - started < 1.0
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert set(pool.sampler.released) == {request.episode for request in pool.sampler.requests}


async def test_cancelling_the_step_ends_everything_at_once(make_pool, world):
    async def hang(request):
        await asyncio.sleep(60)

    pool = make_pool(hang, rollouts_per_query=4)
    step = asyncio.create_task(world.collect(pool, [world.query(k) for k in range(8)]))
    await asyncio.sleep(0.3)
    started = time.monotonic()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert time.monotonic() - started < 1.0
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("deterministic", [False, True])
async def test_refusal_ends_the_step_at_once_whichever_group_is_due(make_pool, world, deterministic, caplog):
    async def answer(request):
        if request.id.group >= 2:
            raise WorkerRefusedError("worker_4 refuses: 401")
        await asyncio.sleep(60)

    pool = make_pool(answer, rollouts_per_query=2, deterministic=deterministic)
    started = time.monotonic()
    with pytest.raises(WorkerRefusedError, match="401"):
        await world.collect(pool, [world.query(k) for k in range(4)])
    assert time.monotonic() - started < 1.0
    assert asyncio.all_tasks() == {asyncio.current_task()}
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_other_episodes_go_on_while_an_answer_is_judged(make_pool, world, monkeypatch):
    """With real scorer processes: an answer that takes long to judge holds up no Worker call and no other verdict."""
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parent.parent / "data" / "scorers"))
    events = []

    async def answer(request):
        await asyncio.sleep(0.1 * request.id.group)
        events.append(f"reply {request.id.group}")
        return "x is 4"

    queries = [dataclasses.replace(world.query(k), dataset="exact") for k in range(4)]
    queries[0] = dataclasses.replace(queries[0], dataset="slow")

    async with Scorer("scorers_for_tests:SCORERS", processes=2) as scorer:
        await asyncio.gather(*[scorer(queries[1], "4") for _ in range(2)])  # both processes have started

        async def score(query, text):
            verdict = await scorer(query, "0.8" if query.dataset == "slow" else text)
            events.append(f"verdict {query.id}")
            return verdict

        async with LoopLag(interval_s=0.01) as lag:
            groups = await world.collect(make_pool(answer, rollouts_per_query=1), queries, score)
    assert all(group.rollouts[0].correct for group in groups)
    assert events[-1] == "verdict q0" and events[0] == "reply 0"
    assert set(events[1:-1]) == {f"{what}{k}" for k in (1, 2, 3) for what in ("reply ", "verdict q")}
    assert lag.longest_s < 0.5
