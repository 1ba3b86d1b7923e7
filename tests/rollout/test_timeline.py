"""Where the time of episodes and of their step goes, worked out by hand; what is measured changes nothing."""

import dataclasses

import numpy as np
import pytest

from rw.errors import FailureCause, InfrastructureFailure
from rw.rollout.pool import EpisodePool, PoolConfig
from rw.rollout.timeline import Part, Span, Timeline
from rw.types import Mode

AGENTIC = [
    "<mode>agentic</mode>",
    '<route model="worker_4" role="executor">Solve it.</route><|im_end|>',
    '<route model="worker_4" role="summarizer" refs="n1">Sum up.</route><|im_end|>',
    "<answer>4</answer>",
]


class Clock:
    """Seconds that go by only where a test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def passes(self, seconds, result=None):
        self.now += seconds
        return result


def episode(timeline, *spans, begun, ended, mode=Mode.SINGLE, replayed=0):
    """An episode of which everything is given, in seconds of the clock."""
    times = timeline.episode("q", len(timeline.episodes))
    times.begun_s, times.ended_s, times.mode, times.replayed_turns = begun, ended, mode, replayed
    times.spans = [Span(*span) for span in spans]
    return times


@pytest.fixture
def slow_world(world, codec, protocol):
    """A pool in which a turn takes 2 s, of which 0.5 s in the queue, a reply 3 s, a remark 1 s; and its clock."""

    def make(script=AGENTIC, trouble=None, said="four"):
        clock = Clock()
        sampler = world.RecordingSampler(codec, world.turns(*script), trouble)
        generate = sampler.generate

        async def slowly(request):
            clock.passes(2.0)
            return dataclasses.replace(await generate(request), queue_s=0.5, is_replayed=request.turn == 0)

        async def answer(request):
            return clock.passes(3.0, said)

        async def remark(call, query, reply):
            return clock.passes(1.0, "It ran.")

        sampler.generate = slowly
        workers = world.InProcessWorkers(answer)
        timeline = Timeline(clock)
        return EpisodePool(protocol, sampler, workers, PoolConfig(rollouts_per_query=1), remark, timeline), clock

    return make


async def test_parts_of_an_episode_add_up_to_its_duration(slow_world, world):
    pool, clock = slow_world()

    async def score(query, answer):
        clock.passes(0.25)
        return await world.score_exactly(query, answer)

    [group] = await world.collect(pool, [world.query(0)], score)
    [times] = pool.timeline.ended
    assert times.parts_s() == {"queue": 2.0, "sample": 6.0, "wait": 6.0, "score": 1.25, "own": 0.0}
    assert times.duration_s == sum(times.parts_s().values()) == 15.25
    assert (times.query_id, times.rollout, times.mode, times.replayed_turns) == ("q0", 0, Mode.AGENTIC, 1)
    assert group.rollouts[0].correct
    assert times.describe() == {
        "query_id": "q0", "rollout": 0, "mode": "agentic", "duration_s": 15.25, "queue_s": 2.0, "sample_s": 6.0,
        "wait_s": 6.0, "score_s": 1.25, "own_s": 0.0, "replayed_turns": 1,
    }  # fmt: skip


async def test_time_is_booked_whatever_ends_an_episode(slow_world, world):
    pool, _ = slow_world(said=FailureCause.TIMEOUT)
    await world.collect(pool, [world.query(0)])
    [times] = pool.timeline.ended
    assert times.parts_s() == {"queue": 1.0, "sample": 3.0, "wait": 3.0, "score": 0.0, "own": 0.0}

    async def trouble(request):
        raise InfrastructureFailure(FailureCause.SAMPLER_FAULT, "no device")

    pool, _ = slow_world(trouble=trouble)
    await world.collect(pool, [world.query(0)])
    [times] = pool.timeline.ended
    assert (times.mode, times.parts_s()["sample"], times.duration_s) == (None, 2.0, 2.0)


async def test_times_change_no_trajectory(slow_world, world, codec, protocol):
    fast = EpisodePool(
        protocol,
        world.RecordingSampler(codec, world.turns(*AGENTIC)),
        world.workers_saying(n1="four", n2="four"),
        PoolConfig(rollouts_per_query=1),
    )
    [plain] = await world.collect(fast, [world.query(0)])
    pool, _ = slow_world()
    pool.feedback = None
    [timed] = await world.collect(pool, [world.query(0)])
    for one, other in zip(plain.rollouts, timed.rollouts, strict=True):
        for field in dataclasses.fields(one.trajectory):
            ours, theirs = getattr(one.trajectory, field.name), getattr(other.trajectory, field.name)
            assert np.array_equal(ours, theirs) if isinstance(ours, np.ndarray) else ours == theirs, field.name


def test_makespan_critical_path_and_what_kept_the_sampler_idle():
    timeline = Timeline(lambda: 0.0)
    episode(timeline, ("sample", 0, 2), ("wait", 2, 6), ("score", 6, 7.5), begun=0, ended=7.5)
    episode(
        timeline, ("place", 0, 2), ("queue", 3, 3.5), ("sample", 3.5, 4), ("wait", 4, 6.5), ("score", 7, 8),
        begun=2, ended=9, mode=Mode.MULTI, replayed=2,
    )  # fmt: skip
    found = timeline.metrics()
    assert found["perf/makespan_s"] == 9
    # With the sampler 0..2 and 3..4; else waiting 2..3, 4..6.5; else judging 6.5..8; else neither 8..9.
    assert (found["perf/wait_s"], found["perf/score_s"], found["perf/host_s"]) == (3.5, 1.5, 1.0)
    assert found["perf/critical_path_s"] == 7
    parts = {name.split("/")[2]: value for name, value in found.items() if name.startswith("perf/critical_path/")}
    assert parts == {"queue_s": 0.5, "sample_s": 0.5, "wait_s": 2.5, "score_s": 1, "own_s": 2.5}
    assert found["perf/straggler_s"] == 1.5
    assert (found["perf/episode_s/single/max"], found["perf/episode_s/multi/p50"]) == (7.5, 7)
    assert found["perf/replayed_turns"] == 2 and "perf/episode_s/agentic/max" not in found
    assert [(one["mode"], one["duration_s"]) for one in found["perf/slowest"]] == [("single", 7.5), ("multi", 7)]


def test_stragglers_are_the_last_twentieth():
    timeline = Timeline(lambda: 0.0)
    for k in range(60):
        episode(timeline, begun=0, ended=k + 1, mode=None)
    assert timeline.metrics()["perf/straggler_s"] == 60 - 57
    assert timeline.metrics()["perf/episode_s/none/p50"] == 30.5
    alone = Timeline(lambda: 0.0)
    episode(alone, ("sample", 0, 5), begun=0, ended=5)
    assert alone.metrics()["perf/straggler_s"] == 0


def test_a_step_in_which_no_episode_ended_has_no_times():
    timeline = Timeline(lambda: 0.0)
    timeline.episode("q", 0).begin()
    timeline.episode("q", 1)
    assert timeline.metrics() == {} and timeline.ended == []


def test_a_turn_that_queued_longer_than_its_span_is_all_queue():
    clock = Clock()
    times = Timeline(clock).episode("q", 0)
    clock.passes(1.0)
    times.begin()
    with times.spent_on(Part.SAMPLE):
        clock.passes(2.0)
    times.note_turn(queue_s=2.5, is_replayed=False)
    times.end(None)
    assert times.spans == [Span("place", 100, 101), Span("queue", 101, 103), Span("sample", 103, 103)]
    assert times.parts_s()["queue"] == times.duration_s == 2
