"""A small world for episodes: the real tokenizer and protocol, scripted routers, Workers that answer in process."""

import asyncio
import dataclasses
import pathlib
import types

import pytest

from rw.errors import FailureCause
from rw.protocol.chat import TokenCodec
from rw.protocol.config import ProtocolConfig
from rw.protocol.dialogue import RouterProtocol
from rw.protocol.prompts import Prompts
from rw.rollout.group import group_tasks
from rw.rollout.stream import stream_groups
from rw.sampler.scripted import ScriptedSampler
from rw.types import CallStatus, Query, Verdict, WorkerCall, WorkerCard

TOKENIZER = pathlib.Path(__file__).parent.parent.parent / "rw" / "data" / "files" / "qwen3_tokenizer.json.xz"
CARDS = tuple(WorkerCard(f"worker_{k}", f"Worker number {k}. It answers.") for k in range(1, 7))


@pytest.fixture(scope="session")
def codec():
    return TokenCodec.from_file(TOKENIZER)


@pytest.fixture(scope="session")
def make_protocol(codec):
    def make(**changes):
        config = ProtocolConfig(**changes)
        return RouterProtocol(codec, Prompts.load(config.templates), CARDS, config)

    return make


@pytest.fixture(scope="session")
def protocol(make_protocol):
    return make_protocol()


@pytest.fixture
def query():
    return make_query(0)


def make_query(number):
    return Query(
        id=f"q{number}", dataset="simulated", domain="math", prompt=f"Question {number}: solve 3x+2=14.", reference="4"
    )


async def score_exactly(query, answer):
    return Verdict(correct=answer == query.reference)


class RecordingSampler:
    """Plays a script and keeps the requests; `trouble(request)` may raise or hang first."""

    def __init__(self, codec, script, trouble=None):
        self.inner = ScriptedSampler(codec, script)
        self.trouble = trouble
        self.requests = []
        self.released = []

    async def generate(self, request):
        self.requests.append(request)
        if self.trouble is not None:
            await self.trouble(request)
        return await self.inner.generate(request)

    async def release(self, episode):
        self.released.append(episode)
        await self.inner.release(episode)

    async def publish(self, weights):
        await self.inner.publish(weights)


def turns(*written):
    """A script that writes `written[t]` in router turn t, the mode turn being 0."""
    return lambda request, view: written[request.turn]


class InProcessWorkers:
    """A WorkerClient without a network. `answer(request)` returns the output, a FailureCause, or a whole WorkerCall."""

    def __init__(self, answer):
        self.answer = answer
        self.requests = []
        self.stopped = []  # node ids of calls that were cancelled

    async def call(self, request):
        self.requests.append(request)
        try:
            said = await self.answer(request)
        except asyncio.CancelledError:
            self.stopped.append(request.node_id)
            raise
        if isinstance(said, WorkerCall):
            return said
        good = self.accepted(request, said)
        if isinstance(said, FailureCause):
            return dataclasses.replace(
                good,
                output="",
                input_tokens=None,
                output_tokens=None,
                cost_usd=None,
                attempts=3,
                status=CallStatus.FAILED,
                failure=said.value,
            )
        return good

    @staticmethod
    def accepted(request, output):
        return WorkerCall(
            node_id=request.node_id,
            worker_id=request.worker_id,
            role=request.role,
            references=request.references,
            subquery=request.subquery,
            output=output,
            input_tokens=100,
            output_tokens=10,
            cost_usd=0.0005,
            latency_s=0.1,
            attempts=1,
            status=CallStatus.OK,
        )

    async def close(self):
        pass


def workers_saying(**outputs):
    """Workers that answer at once, `n1="…"` by node id, else with the sub-query in capitals."""

    async def answer(request):
        return outputs.get(request.node_id, request.subquery.upper())

    return InProcessWorkers(answer)


async def collect(pool, queries, score=score_exactly, forced_modes=None, step=1):
    """All groups of a step, in the order in which they come."""
    tasks = group_tasks(queries, forced_modes)
    return [group async for group in stream_groups(tasks, pool, score, step=step, policy_version=0)]


@pytest.fixture(scope="session")
def world():
    """The helpers above, for tests that cannot import from here."""
    return types.SimpleNamespace(
        cards=CARDS,
        query=make_query,
        score_exactly=score_exactly,
        RecordingSampler=RecordingSampler,
        turns=turns,
        InProcessWorkers=InProcessWorkers,
        workers_saying=workers_saying,
        collect=collect,
    )
