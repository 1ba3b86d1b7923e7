"""An outage is told from what a router does: by the share of rollouts that nobody could measure."""

import dataclasses

import pytest

from rw.errors import FailureCause, OutageError
from rw.rollout.outage import check_no_outage
from rw.rollout.pool import EpisodePool, PoolConfig
from rw.types import Group


@pytest.fixture
async def group(world, protocol, codec):
    """Four rollouts, of which the odd ones lost their call."""

    async def answer(request):
        return FailureCause.TIMEOUT if request.id.rollout % 2 else "4"

    script = world.turns("<mode>single</mode>", '<route model="worker_2">2+2</route>', "<answer>4</answer>")
    pool = EpisodePool(
        protocol,
        world.RecordingSampler(codec, script),
        world.InProcessWorkers(answer),
        PoolConfig(rollouts_per_query=4),
    )
    (group,) = await world.collect(pool, [world.query(0)])
    return group


async def test_a_share_above_the_limit_is_an_outage_and_the_message_says_of_whom(group):
    check_no_outage([group, group], 0.5, "step 3")
    with pytest.raises(OutageError) as caught:
        check_no_outage([group, group], 0.4, "step 3")
    said = str(caught.value)
    assert said.startswith("step 3: 4 of 8 rollouts were lost to infrastructure ")
    assert "(timeout 4; failed calls by Worker: worker_2 4)" in said
    assert "rollout.max_lost=0.4" in said and "the same command" in said and caught.value.exit_code == 6


async def test_nothing_lost_is_never_an_outage(group):
    fine = Group(0, group.query, None, group.rollouts[::2])
    check_no_outage([fine], 0.0, "step 3")
    check_no_outage([], 0.0, "step 3")
    lost = Group(0, group.query, None, group.rollouts[1::2])
    check_no_outage([lost], 1.0, "step 3")  # as asked for


async def test_what_the_router_broke_itself_is_no_outage(world, protocol, codec):
    pool = EpisodePool(
        protocol,
        world.RecordingSampler(codec, world.turns("Sure!")),
        world.workers_saying(),
        PoolConfig(rollouts_per_query=2),
    )
    (invalid,) = await world.collect(pool, [dataclasses.replace(world.query(0), id="invalid")])
    check_no_outage([invalid], 0.0, "step 3")


async def test_a_sampler_that_failed_is_not_put_down_to_workers(group):
    cause = FailureCause.SAMPLER_FAULT
    failed = [
        dataclasses.replace(scored, trajectory=dataclasses.replace(scored.trajectory, cause=cause))
        for scored in group.rollouts
    ]
    with pytest.raises(OutageError, match="sampler_fault 2.*the device's.* less of engine.kv_bytes") as caught:
        check_no_outage([dataclasses.replace(group, rollouts=tuple(failed))], 0.1, "step 3")
    assert "doctor" not in str(caught.value)
    with pytest.raises(OutageError, match="doctor.*; a sampler_fault is the device's"):
        check_no_outage([group, dataclasses.replace(group, rollouts=tuple(failed))], 0.1, "step 3")
