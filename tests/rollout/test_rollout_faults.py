"""A step of 256 rollouts over HTTP with everything going wrong at once, and each Worker fault in each mode."""

import asyncio
import collections
import contextlib
import json

import pytest

from rw.rollout.pool import EpisodePool, PoolConfig
from rw.types import Mode, Status
from rw.workers.config import ClientConfig, WorkerEndpoint
from rw.workers.http import HttpWorkerClient
from rw.workers.ledger import Ledger
from rw.workers.loopback import Completion, Fault, serve
from rw.workers.pricing import PriceTable
from rw.workers.retry import RetryPolicy

CLIENT = ClientConfig(
    attempt_timeout_s=20.0,
    retry=RetryPolicy(connect=1, reset=1, timeout=0, rate_limited=1, server_error=1, backoff_s=0.01),
)


def turns_of(mode, workers):
    """The turns of a rollout that asks `workers` in order and then answers 4; in agentic all but the last at once."""
    ask = [f'<route model="{worker}">Part {n}.</route>' for n, worker in enumerate(workers)]
    if mode is Mode.SINGLE:
        return ["<mode>single</mode>", ask[0], "<answer>4</answer>"]
    if mode is Mode.MULTI:
        return ["<mode>multi</mode>", *ask, "<answer>4</answer>"]
    layer = "".join(f'<route model="{w}" role="executor">Part {n}.</route>' for n, w in enumerate(workers[:-1]))
    last = f'<route model="{workers[-1]}" role="summarizer" refs="n1">Sum.</route>'
    return ["<mode>agentic</mode>", layer + "<|im_end|>", last + "<|im_end|>", "<answer>4</answer>"]


@contextlib.asynccontextmanager
async def http_workers(count, faults=None, dead=(), config=CLIENT, ledger=None, latency=None):
    """A client to Workers that answer "x is 4" for 20 + 5 tokens; those in `dead` have no server behind their port."""
    server = await serve(lambda call: Completion("x is 4", 20, 5), faults=faults, latency=latency)
    gone = await serve(lambda call: Completion("never", 1, 1))
    await gone.close()
    endpoints = [
        WorkerEndpoint(
            id=f"worker_{k}",
            description="It answers.",
            base_url=gone.base_url if f"worker_{k}" in dead else server.base_url,
            model=f"model_{k}",
            input_price=10.0,
            output_price=40.0,
            send_call_header=True,
        )
        for k in range(1, count + 1)
    ]
    client = HttpWorkerClient(endpoints, PriceTable.from_endpoints(endpoints), ledger, config)
    try:
        yield client
    finally:
        await client.close()
        await server.close()


async def test_a_step_of_256_survives_a_raise_a_hang_and_a_worker_that_is_down(codec, make_protocol, world):
    raising, hanging = ("q3", 1), ("q7", 4)
    down = {(f"q{g}", k) for g in range(32) for k in range(8) if (8 * g + k) % 17 == 5}
    assert len(down) == 15 and not {raising, hanging} & down

    def mode_of(rollout):
        return Mode(rollout % 3)

    def script(request, view):
        place = (request.episode.query_id, request.episode.rollout)
        if place == raising and request.turn == 2:
            raise ZeroDivisionError("a bug in one rollout of 256")
        last = "worker_6" if place in down else "worker_1"
        workers = [last] if mode_of(place[1]) is Mode.SINGLE else ["worker_2", last]
        return turns_of(mode_of(place[1]), workers)[request.turn]

    async def trouble(request):
        if (request.episode.query_id, request.episode.rollout) == hanging and request.turn == 1:
            await asyncio.Event().wait()

    queries = [world.query(g) for g in range(32)]
    before = asyncio.all_tasks()
    async with http_workers(6, dead=("worker_6",)) as client:
        sampler = world.RecordingSampler(codec, script, trouble)
        pool = EpisodePool(make_protocol(), sampler, client, PoolConfig(concurrency=24, deadline_s=4.0))
        groups = await world.collect(pool, queries)
        assert sum(client.in_flight.values()) == 0
    assert asyncio.all_tasks() == before

    assert sorted(group.index for group in groups) == list(range(32))
    rollouts = {(group.query.id, k): scored for group in groups for k, scored in enumerate(group.rollouts)}
    assert len(rollouts) == 256
    excluded = {
        place: scored.trajectory.cause
        for place, scored in rollouts.items()
        if scored.trajectory.status is Status.INFRASTRUCTURE_FAILURE
    }
    assert excluded == {raising: "internal", hanging: "deadline", **{place: "connect" for place in down}}
    kept = [scored for place, scored in rollouts.items() if place not in excluded]
    assert all(scored.trajectory.status is Status.ANSWERED and scored.correct for scored in kept)
    cost_usd = {Mode.SINGLE: 0.0004, Mode.MULTI: 0.0008, Mode.AGENTIC: 0.0008}  # a call is 20 × 10 + 5 × 40 micro-USD
    for (_, k), scored in rollouts.items():
        assert scored.trajectory.mode is mode_of(k)
        if scored in kept:
            assert scored.trajectory.cost_usd == pytest.approx(cost_usd[mode_of(k)])
    assert collections.Counter(sampler.released).most_common(1)[0][1] == 1 and len(sampler.released) == 256


FAULTS = {
    Fault.HTTP_500: "server_error",
    Fault.RESET: "reset",
    Fault.HTTP_429: "rate_limited",
    Fault.HTTP_400: "client_error",
    Fault.HTML: "bad_response",
    Fault.EMPTY_CHOICE: "empty_output",
    Fault.HANG: "timeout",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.value)
async def test_each_fault_of_a_worker_excludes_the_rollout_in_each_mode(codec, protocol, world, fault):
    async def run(mode, faults):
        config = ClientConfig(
            attempt_timeout_s=0.2 if fault is Fault.HANG else 20.0,
            retry=RetryPolicy(1, 1, 0, 1, 1, 1, 1, backoff_s=0.01),
        )
        async with http_workers(3, faults, config=config) as client:
            workers = ["worker_2"] if mode is Mode.SINGLE else ["worker_1", "worker_2", "worker_3"]
            script = world.turns(*turns_of(mode, workers))
            pool = EpisodePool(
                protocol, world.RecordingSampler(codec, script), client, PoolConfig(rollouts_per_query=1)
            )
            (group,) = await world.collect(pool, [world.query(0)])
            return group.rollouts[0]

    for mode in Mode:
        failed = await run(mode, lambda call, attempt: fault if call.model == "model_2" else None)
        assert (failed.trajectory.status, failed.trajectory.cause) == (Status.INFRASTRUCTURE_FAILURE, FAULTS[fault])
        assert failed.verdict is None and failed.trajectory.mode is mode
        healed = await run(mode, lambda call, attempt: fault if call.model == "model_2" and attempt == 1 else None)
        if fault in (Fault.HTTP_400, Fault.HANG):  # no retry is allowed for these here
            assert healed.trajectory.status is Status.INFRASTRUCTURE_FAILURE
        else:
            assert healed.trajectory.status is Status.ANSWERED and healed.correct
            assert max(call.attempts for call in healed.trajectory.calls) == 2


async def test_what_a_failed_layer_cost_is_in_the_ledger_and_not_in_the_trajectory(codec, protocol, world, tmp_path):
    def faults(call, attempt):
        return {"model_2": Fault.HTTP_500, "model_3": Fault.HANG}.get(call.model)

    def latency(call):
        return 0.3 if call.model == "model_2" else 0.0  # the first is answered by then

    ledger = Ledger(tmp_path / "ledger.jsonl")
    async with http_workers(4, faults, ledger=ledger, latency=latency) as client:
        script = world.turns(*turns_of(Mode.AGENTIC, ["worker_1", "worker_2", "worker_3", "worker_4"]))
        pool = EpisodePool(protocol, world.RecordingSampler(codec, script), client, PoolConfig(rollouts_per_query=1))
        (group,) = await world.collect(pool, [world.query(0)])
    ledger.close()
    trajectory = group.rollouts[0].trajectory
    assert (trajectory.status, trajectory.cause) == (Status.INFRASTRUCTURE_FAILURE, "server_error")
    assert [(call.worker_id, call.status.value) for call in trajectory.calls] == [
        ("worker_1", "ok"),
        ("worker_2", "failed"),
        ("worker_3", "cancelled"),
    ]
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    booked = {line["worker"]: (line["status"], line["cost_usd"]) for line in lines if line["kind"] == "call"}
    assert booked == {
        "worker_1": ("ok", pytest.approx(0.0004)),
        "worker_2": ("failed", None),
        "worker_3": ("cancelled", None),
    }
    attempts = [line for line in lines if line["kind"] == "attempt"]
    assert [(line["worker"], line["cost_usd"]) for line in attempts] == [
        ("worker_1", pytest.approx(0.0004)),
        ("worker_3", None),  # cancelled while it was asked: it may have been billed
    ]
    assert attempts[0]["unknown_usd"] == 0.0 < attempts[1]["unknown_usd"]


async def test_missing_usage_is_no_cost_and_no_failure(codec, protocol, world):
    async with http_workers(1, lambda call, attempt: Fault.NO_USAGE) as client:
        script = world.turns(*turns_of(Mode.SINGLE, ["worker_1"]))
        pool = EpisodePool(protocol, world.RecordingSampler(codec, script), client, PoolConfig(rollouts_per_query=1))
        (group,) = await world.collect(pool, [world.query(0)])
    trajectory = group.rollouts[0].trajectory
    assert (trajectory.status, trajectory.cost_usd) == (Status.ANSWERED, None)
