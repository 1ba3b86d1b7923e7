"""Scripted routers through real episodes over HTTP: what a trial says of a plan is what an episode measures."""

import asyncio

import pytest

from rw.protocol.chat import TokenCodec
from rw.protocol.config import ProtocolConfig
from rw.protocol.dialogue import RouterProtocol
from rw.protocol.prompts import Prompts
from rw.rollout.episode import run_episode
from rw.sampler.scripted import ScriptedSampler
from rw.simulation import skills
from rw.simulation.make_tokenizer import TARGET
from rw.simulation.policies import BestPlans, HabitPolicy, opinions, script
from rw.simulation.queries import batch
from rw.simulation.trials import TEMPLATES, run_plan
from rw.simulation.workers import SimulatedWorld
from rw.types import Mode, Status
from rw.workers.http import HttpWorkerClient
from rw.workers.pricing import PriceTable

QUERIES = {query.id: query for query in batch(0, 0, 10, "test")}
POLICIES = {"best": BestPlans(), "habits": HabitPolicy(4), "opinions": opinions(4, skills.WORKER_IDS)}


@pytest.fixture(scope="module")
def protocol():
    return RouterProtocol(
        TokenCodec.from_file(TARGET), Prompts.load(TEMPLATES), skills.cards(), ProtocolConfig(templates=TEMPLATES)
    )


async def run_all(protocol, policy, forced_mode):
    """One episode a query, all at once."""
    server = await SimulatedWorld(0).serve()
    endpoints = skills.endpoints(server.base_url)
    client = HttpWorkerClient(endpoints, PriceTable.from_endpoints(endpoints), None)
    sampler = ScriptedSampler(protocol.codec, script(policy, QUERIES.__getitem__))
    try:
        return await asyncio.gather(
            *(
                run_episode(
                    query,
                    number,
                    1,
                    forced_mode,
                    step=2,
                    protocol=protocol,
                    sampler=sampler,
                    workers=client,
                    policy_version=0,
                )
                for number, query in enumerate(QUERIES.values())
            )
        )
    finally:
        await client.close()
        await server.close()


@pytest.mark.parametrize("forced_mode", [None, *Mode])
@pytest.mark.parametrize("name", POLICIES)
async def test_episodes_measure_what_trials_say(protocol, name, forced_mode):
    policy = POLICIES[name]
    trajectories = await run_all(protocol, policy, forced_mode)
    for number, (query, trajectory) in enumerate(zip(QUERIES.values(), trajectories, strict=True)):
        plan = policy.plan(query, 1, forced_mode)
        trial = run_plan(SimulatedWorld(0), query, plan, f"2/{number}/1")
        assert trajectory.status is Status.ANSWERED, (trajectory.violation, trajectory.cause)
        assert trajectory.mode is plan.mode
        assert trajectory.answer == trial.answer
        assert len(trajectory.calls) == trial.calls
        assert trajectory.cost_usd == pytest.approx(trial.cost_usd, rel=1e-9)


async def test_episodes_of_small_routers_are_short(protocol):
    """Small routers train on CPUs: prompts and responses must stay within a few hundred tokens."""
    longest = {}
    for mode in Mode:
        trajectories = await run_all(protocol, HabitPolicy(4), mode)
        assert all(trajectory.prompt_length <= 48 for trajectory in trajectories)
        longest[mode] = max(len(trajectory.tokens) for trajectory in trajectories)
    assert longest[Mode.SINGLE] <= 160
    assert longest[Mode.MULTI] <= 220
    assert longest[Mode.AGENTIC] <= 400
