"""Builds the parts of a run from its config: tokenizer, protocol, queries, Workers, scorer, device thread.

Only construction lives here; what the parts do together is in train.py and warmstart.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from rw import progress
from rw.data import replay
from rw.data.order import batch_indices
from rw.errors import ConfigError, DataError, OutageError
from rw.interrupts import STOP_FILE, Interrupts, StopRequested, run_in_loop
from rw.journals import open_journals
from rw.protocol.chat import TokenCodec
from rw.protocol.dialogue import RouterProtocol
from rw.protocol.prompts import Prompts
from rw.rollout.group import group_tasks
from rw.rollout.journaled import JournaledScore, write_final
from rw.rollout.outage import check_no_outage
from rw.rollout.pool import EpisodePool, PoolConfig
from rw.rollout.scorer import Scorer
from rw.rollout.stream import Progress, stream_groups
from rw.run_config import RunConfig
from rw.sampler.device import DeviceThread
from rw.sampler.interface import Sampler
from rw.sampler.journaled import JournaledSampler
from rw.sharding import make_mesh
from rw.simulation import queries as simulated_queries
from rw.simulation import skills
from rw.simulation.workers import SimulatedWorld
from rw.types import Group, Mode, Query, WorkerCall, WorkerCard
from rw.workdir import Workdir
from rw.workers.budget import Budget
from rw.workers.cassette import Cassette, CassettePlayer, CassetteRecorder, made_of
from rw.workers.config import WorkerEndpoint
from rw.workers.disturbances import faults_at_rate, first_fault, lasting_faults, lognormal_latency
from rw.workers.http import HttpWorkerClient
from rw.workers.interface import WorkerClient, WorkerRequest
from rw.workers.journal import Journal, Journals
from rw.workers.journaled import JournaledClient
from rw.workers.ledger import Ledger
from rw.workers.loopback import serve
from rw.workers.pricing import PriceTable
from rw.workers.replay_pool import recorded_endpoints, recorded_handler
from rw.workers.request import request_digest
from rw.workers.usage import UsageCheck, UsageCheckedClient

TOKENIZERS = {
    "qwen3": "qwen3_tokenizer.json.xz",
    "qwen3_nq6": "qwen3_nq6_tokenizer.json.xz",
    "quickstart": "quickstart_tokenizer.json",
}

PARAMS = {"quickstart": "quickstart_warmstart.safetensors"}  # saved parameters that come with rw
PACKAGED = replay.NQ6_PATH.parent

QueryBatches = Callable[[int, int], list[Query]]  # (data batch index b, queries) -> the queries of that batch


@dataclasses.dataclass
class Parts:
    """What a run needs besides its router. `client` asks Workers, or a cassette; `ledger` records money, `budget` has
    its caps."""

    config: RunConfig
    workdir: Workdir
    codec: TokenCodec
    protocol: RouterProtocol
    queries: QueryBatches
    validation: Sequence[Query]
    test: Sequence[Query]
    endpoints: Mapping[str, WorkerEndpoint]  # the Workers, by id
    client: WorkerClient
    journals: Journals
    ledger: Ledger
    budget: Budget
    usage: UsageCheck
    scorer: Scorer
    device: DeviceThread

    @property
    def worker_ids(self) -> tuple[str, ...]:
        """The Workers, as the router knows them."""
        return tuple(self.endpoints)

    @contextlib.contextmanager
    def booked_as(self, label: str) -> Iterator[None]:
        """Calls made inside are booked as run `<name>/<label>`: those of an evaluation are not those of a step."""
        run, self.ledger.run = self.ledger.run, f"{self.ledger.run}/{label}"
        try:
            yield
        finally:
            self.ledger.run = run

    @contextlib.contextmanager
    def budgeted_as_step(self, step: int) -> Iterator[None]:
        """Calls made inside count against the cap of that step of training."""
        self.budget.begin_step(step)
        self.budget.rebalance([self.budget.report()], host=0)  # one process runs all rollouts
        try:
            yield
        finally:
            self.budget.end_step()

    def spending_metrics(self) -> dict[str, Any]:
        """What the run has spent so far, which cap that is nearest to, and how Workers count tokens."""
        return {**self.ledger.spent.metrics(), **self.budget.metrics(), **self.usage.metrics()}

    async def collect(
        self,
        sampler: Sampler,
        queries: Sequence[Query],
        forced_modes: Sequence[Mode | None] | None,
        *,
        scope: str,
        rollouts_per_query: int,
        step: int,
        policy_version: int,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> list[Group]:
        """Rolls out every query and waits for all groups; in order of index.

        Args:
            scope: the name of the journal. What it holds from an earlier process is neither sampled nor sent again.

        Raises:
            OutageError: too many rollouts were lost to infrastructure; those are asked again when it is continued.
        """
        config = self.config
        pool_config = PoolConfig(
            rollouts_per_query=rollouts_per_query,
            concurrency=config.rollout.concurrency,
            deadline_s=config.rollout.deadline_s,
            deterministic=config.deterministic,
        )
        with contextlib.closing(self.journals.open(scope)) as journal:
            sampler = JournaledSampler(sampler, journal, decode_again=config.deterministic)
            stream = stream_groups(
                group_tasks(queries, forced_modes),
                EpisodePool(self.protocol, sampler, self._journaled_client(journal), pool_config),
                JournaledScore(self.scorer, journal),
                step=step,
                policy_version=policy_version,
                on_progress=on_progress,
                on_rollout=functools.partial(write_final, journal),
            )
            async with contextlib.aclosing(stream):
                groups = sorted([group async for group in stream], key=lambda group: group.index)
            try:
                check_no_outage(groups, config.rollout.max_lost, scope)
            except OutageError:
                journal.forget_failures()
                raise
        return groups

    def _journaled_client(self, journal: Journal) -> JournaledClient:
        def digest(request: WorkerRequest) -> str:
            return request_digest(self.endpoints[request.worker_id], self.config.client.worker_seed, request)

        def on_replay(request: WorkerRequest, call: WorkerCall) -> None:
            whose = {"mode": request.mode, "query_id": request.query_id}
            self.ledger.replayed(request.id, request.worker_id, call.cost_usd, "journal", **whose)

        return JournaledClient(self.client, journal, digest, on_replay, replay_failures=self.config.deterministic)


@contextlib.asynccontextmanager
async def open_parts(config: RunConfig, workdir: Workdir) -> AsyncIterator[Parts]:
    """Builds and starts everything, and closes it in the reverse order, whatever happens in between."""
    async with contextlib.AsyncExitStack() as stack:
        codec = load_codec(config.tokenizer.path)
        check_vocabulary(config, codec)
        endpoints, cards = await open_workers(config, stack)
        ledger = Ledger(workdir.file("ledger.jsonl"), run=workdir.path.name)
        stack.callback(ledger.close)
        budget = Budget(config.budget, ledger.spent)
        usage = UsageCheck(lambda text: len(codec.encode_text(text)))
        client = open_recorded_client(config, endpoints, ledger, stack, budget, usage)
        stack.push_async_callback(client.close)
        scorer = await stack.enter_async_context(Scorer(timeout_s=config.rollout.scorer_timeout_s))
        device = DeviceThread()
        stack.callback(device.close)
        prompts = Prompts.load(config.protocol.templates)
        protocol = RouterProtocol(codec, prompts, cards, config.protocol)
        queries = query_batches(config)
        check_prompts(protocol, queries, config.steps, config.queries_per_batch)
        validation, test = held_out_queries(config)
        for query in (*validation, *test):
            protocol.check_fits(query)
        yield Parts(
            config=config,
            workdir=workdir,
            codec=codec,
            protocol=protocol,
            queries=queries,
            validation=validation,
            test=test,
            endpoints={endpoint.id: endpoint for endpoint in endpoints},
            client=client,
            journals=open_journals(config, workdir, codec, prompts, endpoints),
            ledger=ledger,
            budget=budget,
            usage=usage,
            scorer=scorer,
            device=device,
        )


def run_interruptible(
    config: RunConfig, workdir_path: str, body: Callable[[Parts, Interrupts], Awaitable[None]], after_stop: str
) -> int:
    """Runs `body` with the parts of a run in a working directory of its own; returns the exit code.

    SIGTERM, SIGINT and a file STOP in the directory end it in order, with a line that says `after_stop` and an exit
    code: what shells give a signal, or 7. It can be called in a notebook too, whose stop button is a SIGINT.
    """

    async def run(workdir: Workdir, interrupts: Interrupts) -> int:
        async with open_parts(config, workdir) as parts:
            watching = asyncio.create_task(interrupts.watch(workdir.file(STOP_FILE)))
            try:
                await body(parts, interrupts)
                return 0
            except StopRequested as stop:
                progress.say(f"{stop}; {after_stop}")
                return stop.exit_code
            finally:
                watching.cancel()

    with Workdir(workdir_path) as workdir:
        workdir.refuse(STOP_FILE, "it was put there to stop the run; remove it and give the same command again")
        return run_in_loop(functools.partial(run, workdir))


def load_codec(path: str) -> TokenCodec:
    """The tokenizer of that name or path."""
    file = pathlib.Path(PACKAGED / TOKENIZERS[path] if path in TOKENIZERS else path)
    if not file.is_file():
        raise ConfigError(f"tokenizer.path={path!r} is neither {' nor '.join(TOKENIZERS)} nor a file")
    return TokenCodec.from_file(file)


def params_path(path: str) -> str:
    """The directory of saved parameters of that name or path."""
    return str(PACKAGED / PARAMS[path]) if path in PARAMS else path


def check_vocabulary(config: RunConfig, codec: TokenCodec) -> None:
    """The model must have a row for every token; more rows are padding."""
    if config.model.vocab_size < codec.vocab_size:
        raise ConfigError(
            f"model.vocab_size={config.model.vocab_size} is smaller than the tokenizer's {codec.vocab_size} tokens "
            f"({config.tokenizer.path}); take at least {codec.vocab_size}"
        )


def worker_endpoints(config: RunConfig, base_url: str = "http://127.0.0.1/v1") -> tuple[WorkerEndpoint, ...]:
    """The run's Workers; `base_url` is where those of a simulated or replayed pool are served."""
    if config.workers.kind == "http":
        return config.workers.endpoints
    if config.workers.kind == "simulated":
        return skills.endpoints(base_url)
    return recorded_endpoints(base_url, replay.NQ6_MODELS)


async def open_workers(
    config: RunConfig, stack: contextlib.AsyncExitStack
) -> tuple[tuple[WorkerEndpoint, ...], tuple[WorkerCard, ...]]:
    """Endpoints and cards; a simulated or replayed pool is started on loopback and stopped with the stack."""
    workers = config.workers
    if workers.kind == "http":
        return worker_endpoints(config), tuple(worker.card for worker in workers.endpoints)
    if workers.kind == "simulated":
        base_url = await _serve(config, SimulatedWorld(workers.world_seed).handler, skills.WORKER_IDS, stack)
        return worker_endpoints(config, base_url), skills.cards()
    _, cards, answers = replay.load_nq6()
    models = [model.model for model in replay.NQ6_MODELS]
    base_url = await _serve(config, recorded_handler(answers), models, stack)
    return worker_endpoints(config, base_url), cards


def open_client(
    config: RunConfig,
    endpoints: Sequence[WorkerEndpoint],
    ledger: Ledger,
    budget: Budget | None = None,
    usage: UsageCheck | None = None,
) -> WorkerClient:
    """The client of a run for these Workers, within the budget and under the eye of the usage check."""
    client_config = config.client
    if config.deterministic:  # no wall clock may decide what happens
        client_config = dataclasses.replace(
            client_config, connect_timeout_s=None, attempt_timeout_s=None, call_deadline_s=None
        )
    client = HttpWorkerClient(endpoints, PriceTable.from_endpoints(endpoints), ledger, client_config, budget=budget)
    return client if usage is None else UsageCheckedClient(client, usage)


def open_recorded_client(
    config: RunConfig,
    endpoints: Sequence[WorkerEndpoint],
    ledger: Ledger,
    stack: contextlib.AsyncExitStack,
    budget: Budget,
    usage: UsageCheck,
) -> WorkerClient:
    """The client of a run, with its cassette in front of it or instead of it; the stack closes the cassette."""
    workers = config.workers
    if workers.cassette_mode == "off":
        return open_client(config, endpoints, ledger, budget, usage)
    PriceTable.from_endpoints(endpoints)  # refuses a Worker without a price, as a client does
    is_recording = workers.cassette_mode == "record"
    cassette = Cassette(
        workers.cassette, made_of(endpoints), records=is_recording or workers.allow_live, begins=is_recording
    )
    stack.callback(cassette.close)
    by_id = {endpoint.id: endpoint for endpoint in endpoints}

    def digest(request: WorkerRequest) -> str:
        return request_digest(by_id[request.worker_id], config.client.worker_seed, request)

    def label() -> str:  # what `Parts.booked_as` says
        return ledger.run.partition("/")[2] or "training"

    def on_replay(request: WorkerRequest, call: WorkerCall) -> None:
        ledger.replayed(
            request.id, request.worker_id, call.cost_usd, "cassette", mode=request.mode, query_id=request.query_id
        )

    if _is_replay_alone(config):
        return CassettePlayer(cassette, digest, label, on_replay)
    recorder = CassetteRecorder(
        open_client(config, endpoints, ledger, budget, usage), cassette, digest, label, on_replay
    )
    return recorder if is_recording else CassettePlayer(cassette, digest, label, on_replay, live=recorder)


def _is_replay_alone(config: RunConfig) -> bool:
    """Whether no Worker is ever asked: none needs to be there, nor a key."""
    return config.workers.cassette_mode == "replay" and not config.workers.allow_live


async def _serve(config: RunConfig, handler, models: Sequence[str], stack: contextlib.AsyncExitStack) -> str:
    """The base URL of a pool on loopback; nothing is started where a cassette answers for it."""
    if _is_replay_alone(config):
        return "http://cassette.invalid/v1"
    workers = config.workers
    server = await serve(
        handler,
        latency=lognormal_latency(workers.latency_s, workers.latency_seed),
        faults=first_fault(
            lasting_faults(workers.lost_call_rate, workers.latency_seed),
            faults_at_rate(workers.fault_rate, workers.latency_seed),
        ),
        models=models,
    )
    stack.push_async_callback(server.close)
    return server.base_url


def query_batches(config: RunConfig) -> QueryBatches:
    """The training queries as a pure function of b, so that a resumed run goes on where it stopped."""
    if config.data.source == "simulated":
        world_seed, seed = config.workers.world_seed, config.seed
        return lambda b, size: simulated_queries.batch(world_seed, b, size, "train", draw_seed=seed)
    train, _ = recorded_questions(config)
    if config.queries_per_batch > len(train):
        raise DataError(f"queries_per_batch={config.queries_per_batch} is more than the {len(train)} training queries")
    return lambda b, size: [train[index] for index in batch_indices(config.seed, b, len(train), size)]


def held_out_queries(config: RunConfig) -> tuple[list[Query], list[Query]]:
    """(validation, test): the questions of the run's evaluations. Neither is ever trained on."""
    evaluation, data = config.evaluation, config.data
    sizes = (evaluation.validation_queries if evaluation.every else 0, evaluation.test_queries)
    if data.source == "nq6":
        all_queries, _, _ = replay.load_nq6()
        _, *held_out = replay.split(all_queries, data.split_seed, data.test_queries, data.validation_queries)
        return tuple(queries[:size] for queries, size in zip(held_out, sizes, strict=True))
    world_seed = config.workers.world_seed
    return (
        simulated_queries.distinct(world_seed, sizes[0], "validation", config.seed),
        simulated_queries.distinct(world_seed, sizes[1], "test", draw_seed_of_test(config)),
    )


def draw_seed_of_test(config: RunConfig) -> int:
    """What draws the simulated test questions."""
    seed = config.evaluation.test_seed
    return config.seed if seed is None else seed


def recorded_questions(config: RunConfig) -> tuple[list[Query], replay.Answers]:
    """The questions a run trains on and the recorded answers to all."""
    all_queries, _, answers = replay.load_nq6()
    train, _, _ = replay.split(
        all_queries, config.data.split_seed, config.data.test_queries, config.data.validation_queries
    )
    return train, answers


def check_prompts(protocol: RouterProtocol, queries: QueryBatches, batches: int, size: int) -> None:
    """Raises DataError for the first query of batches 0, …, `batches` - 1 whose prompt is over the limit.

    A prompt is never cut, so such a query would end the run in its step; it must do so before anything is spent.
    """
    seen: set[str] = set()
    for b in range(batches):
        new = [query for query in queries(b, size) if query.prompt not in seen]
        for query in new:
            protocol.check_fits(query)
        seen.update(query.prompt for query in new)


def open_mesh(config: RunConfig) -> jax.sharding.Mesh | None:
    """The device mesh, or None where one device is asked for."""
    shape = (config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    return None if shape == (1, 1, 1) else make_mesh(shape, n_kv_heads=config.model.n_kv_heads)
