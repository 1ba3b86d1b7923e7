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
from rw.errors import ConfigError, OutageError
from rw.interrupts import STOP_FILE, Interrupts, StopRequested, run_in_loop
from rw.journals import open_journals
from rw.protocol.chat import TokenCodec
from rw.protocol.dialogue import RouterProtocol
from rw.protocol.prompts import Prompts
from rw.questions import QueryBatches, check_prompts, held_out_queries, query_batches
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
from rw.types import Group, Mode, Query
from rw.workdir import Workdir
from rw.worker_pool import booked_replays, digests, is_replay_alone, open_client, open_workers, with_cassette
from rw.workers.budget import Budget
from rw.workers.config import WorkerEndpoint
from rw.workers.http import HttpWorkerClient
from rw.workers.interface import WorkerClient
from rw.workers.journal import Journal, Journals
from rw.workers.journaled import JournaledClient
from rw.workers.ledger import Ledger
from rw.workers.usage import UsageCheck, UsageCheckedClient

TOKENIZERS = {
    "qwen3": "qwen3_tokenizer.json.xz",
    "qwen3_nq6": "qwen3_nq6_tokenizer.json.xz",
    "quickstart": "quickstart_tokenizer.json",
}

PARAMS = {"quickstart": "quickstart_warmstart.safetensors"}  # saved parameters that come with rw
PACKAGED = replay.NQ6_PATH.parent


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
    http: HttpWorkerClient | None  # behind `client`; None where a cassette takes its place
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

    @property
    def is_nominal(self) -> bool:
        """Whether prices are only counted and nobody is paid: the Workers are programs of ours."""
        return self.config.workers.kind != "http"

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

    def client_metrics(self) -> dict[str, Any]:
        """What the run has spent so far, which cap that is nearest to, how Workers count tokens, and how calls went
        since this was last asked."""
        calls = {} if self.http is None else self.http.take_metrics()
        return {**self.ledger.spent.metrics(), **self.budget.metrics(), **self.usage.metrics(), **calls}

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
        return JournaledClient(
            self.client,
            journal,
            digests(self.endpoints, self.config.client.worker_seed),
            booked_replays(self.ledger, "journal"),
            replay_failures=self.config.deterministic,
        )


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
        http = None if is_replay_alone(config) else open_client(config, endpoints, ledger, budget)
        checked = None if http is None else UsageCheckedClient(http, usage)
        client = with_cassette(checked, config, endpoints, ledger, stack)
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
            http=http,
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


def open_mesh(config: RunConfig) -> jax.sharding.Mesh | None:
    """The device mesh, or None where one device is asked for."""
    shape = (config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    return None if shape == (1, 1, 1) else make_mesh(shape, n_kv_heads=config.model.n_kv_heads)
