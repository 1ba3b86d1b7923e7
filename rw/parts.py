"""Builds the parts of a run from its config: tokenizer, protocol, queries, Workers, scorer, device thread.

Only construction lives here; what the parts do together is in train.py and warmstart.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from rw.data import replay
from rw.errors import ConfigError, OutageError, RwError
from rw.interrupts import Interrupts, StopRequested
from rw.journals import open_journals
from rw.judging import check_isolation, check_scorers, feedback, open_scorer
from rw.learner.checkpoint import load_params
from rw.model.qwen3 import shapes_of
from rw.processes import Processes
from rw.protocol.chat import TokenCodec
from rw.protocol.dialogue import RouterProtocol
from rw.protocol.prompts import Prompts
from rw.questions import QueryBatches, check_prompts, generalisation_queries, held_out_queries, query_batches
from rw.rollout.episode import Feedback
from rw.rollout.group import GroupTask, group_tasks
from rw.rollout.journaled import JournaledFeedback, JournaledScore, question_digests, write_final
from rw.rollout.outage import check_no_outage
from rw.rollout.pool import EpisodePool, PoolConfig
from rw.rollout.scorer import Scorer
from rw.rollout.stream import Progress, stream_groups
from rw.rollout.timeline import Timeline
from rw.run_config import RunConfig
from rw.sampler.device import DeviceThread
from rw.sampler.interface import Sampler
from rw.sampler.journaled import JournaledSampler
from rw.sharding import check_processes, make_mesh, param_shardings
from rw.types import Group, Mode, Query
from rw.workdir import LEDGER, Workdir
from rw.worker_pool import booked_replays, digests, is_replay_alone, open_client, open_workers, with_cassette
from rw.workers.budget import Budget
from rw.workers.config import WorkerEndpoint
from rw.workers.http import HttpWorkerClient
from rw.workers.interface import WorkerClient
from rw.workers.journal import Journal, Journals
from rw.workers.journaled import JournaledClient
from rw.workers.ledger import Ledger
from rw.workers.spending import Spent
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
    held_out: Sequence[Query]  # of other sets, which an evaluation asks and no training
    endpoints: Mapping[str, WorkerEndpoint]  # the Workers, by id
    client: WorkerClient
    http: HttpWorkerClient | None  # behind `client`; None where a cassette takes its place
    journals: Journals
    ledger: Ledger
    budget: Budget
    usage: UsageCheck
    scorer: Scorer
    feedback: Feedback | None  # None: the router learns nothing of programs
    device: DeviceThread
    mesh: jax.sharding.Mesh | None  # None where one device does all
    processes: Processes
    interrupts: Interrupts
    spent_by_retired: Spent  # by processes that earlier jobs had and this one has not; the first one counts it
    spent_by_others: Sequence[Spent]  # by the other processes of this job, as of the last rollouts

    @functools.cached_property
    def param_shardings(self) -> Mapping[str, jax.sharding.Sharding] | None:
        """Where each parameter of the run's model lies; None where there is no mesh."""
        return None if self.mesh is None else param_shardings(self.mesh, shapes_of(self.config.model))

    def load_params(self, path: str | pathlib.Path) -> tuple[Any, dict[str, Any]]:
        """(parameters as they are saved, on the run's mesh, metadata); each process reads what its devices hold."""
        return load_params(path, shardings=self.param_shardings)

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
        try:
            yield
        finally:
            self.budget.end_step()

    def client_metrics(self) -> dict[str, Any]:
        """What the run has spent so far, which cap that is nearest to, how Workers count tokens, and how calls went
        since this was last asked."""
        calls = {} if self.http is None else self.http.take_metrics()
        return {**self.spent.metrics(), **self.budget.metrics(), **self.usage.metrics(), **calls}

    @property
    def spent(self) -> Spent:
        """By all processes of this job and of earlier ones."""
        return Spent.sum([self.spent_by_retired, self.ledger.spent, *self.spent_by_others])

    def check_stop(self) -> None:
        """Raises StopRequested if someone asked for the end. Several processes agree on that in their next rollouts."""
        if self.processes.is_alone:
            self.interrupts.check()

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
        on_group: Callable[[Group], None] = lambda group: None,
        timeline: Timeline | None = None,
    ) -> list[Group]:
        """Rolls out every query and waits for all groups; in order of index.

        Each process of a job runs its share of the queries, and all get all groups.

        Args:
            scope: the name of the journal. What it holds from an earlier process is neither sampled nor sent again.
            on_group: told of each group of this process as soon as it is complete.
            timeline: where this process's episodes note when they did what.

        Raises:
            OutageError: too many rollouts were lost to infrastructure; those are asked again when it is continued.
            StopRequested: someone asked this process, or another one of the job, for the end.
        """
        self.budget.rebalance(await self.processes.exchange(self.budget.report()), host=self.processes.index)
        tasks = self.processes.share(group_tasks(queries, forced_modes))
        with contextlib.closing(self.journals.open(scope)) as journal:
            options = {"step": step, "policy_version": policy_version, "on_progress": on_progress, "on_group": on_group}
            rolling = self._roll_out(sampler, tasks, journal, rollouts_per_query, timeline, options)
            try:
                own = await self.interrupts.guard(rolling)
            except (StopRequested, RwError) as error:
                await self.processes.stop_together(error)
            shared = await self.processes.exchange((own, self.ledger.spent))
            groups = sorted([group for part, _ in shared for group in part], key=lambda group: group.index)
            self.spent_by_others = [spent for _, spent in self.processes.others(shared)]
            try:
                check_no_outage(groups, self.config.rollout.max_lost, scope)
            except OutageError:
                journal.forget_failures()
                raise
        return groups

    async def _roll_out(
        self,
        sampler: Sampler,
        tasks: Sequence[GroupTask],
        journal: Journal,
        rollouts_per_query: int,
        timeline: Timeline | None,
        options: Mapping[str, Any],
    ) -> list[Group]:
        config = self.config
        asked = question_digests(task.query for task in tasks)
        pool_config = PoolConfig(
            rollouts_per_query=rollouts_per_query,
            concurrency=config.rollout.concurrency,
            deadline_s=config.rollout.deadline_s,
            deterministic=config.deterministic,
        )
        stream = stream_groups(
            tasks,
            EpisodePool(
                self.protocol,
                JournaledSampler(sampler, journal, decode_again=config.deterministic),
                self._journaled_client(journal),
                pool_config,
                None if self.feedback is None else JournaledFeedback(self.feedback, journal),
                timeline,
            ),
            JournaledScore(self.scorer, journal, asked),
            credit=config.credit,
            on_rollout=functools.partial(write_final, journal, keeps_verdict=config.credit.is_of_answer, digests=asked),
            **options,
        )
        async with contextlib.aclosing(stream):
            return [group async for group in stream]

    def _journaled_client(self, journal: Journal) -> JournaledClient:
        return JournaledClient(
            self.client,
            journal,
            digests(self.endpoints, self.config.client.worker_seed),
            booked_replays(self.ledger, "journal"),
            replay_failures=self.config.deterministic,
        )


@contextlib.asynccontextmanager
async def open_parts(
    config: RunConfig,
    workdir: Workdir,
    processes: Processes | None = None,
    interrupts: Interrupts | None = None,
    trains: bool = True,
) -> AsyncIterator[Parts]:
    """Builds and starts everything, and closes it in the reverse order, whatever happens in between.

    `processes` and `interrupts` are by default those of a process alone that nobody stops.

    Args:
        trains: whether training questions will be asked, so that all of them must fit.
    """
    processes, interrupts = processes or Processes(), interrupts or Interrupts()
    async with contextlib.AsyncExitStack() as stack:
        codec = load_codec(config.tokenizer.path)
        check_vocabulary(config, codec)
        mesh = open_mesh(config, processes)
        endpoints, cards = await open_workers(config, stack, processes.count)
        ledger = Ledger(workdir.own_file(LEDGER), run=workdir.path.name)
        stack.callback(ledger.close)
        retired = spent_by_retired(workdir, processes)
        budget = Budget(config.budget, Spent.sum([retired, ledger.spent]), hosts=processes.count)
        usage = UsageCheck(lambda text: len(codec.encode_text(text)))
        http = None if is_replay_alone(config) else open_client(config, endpoints, ledger, budget)
        checked = None if http is None else UsageCheckedClient(http, usage)
        client = with_cassette(checked, config, endpoints, ledger, stack, processes.count)
        stack.push_async_callback(client.close)
        scorer = await stack.enter_async_context(open_scorer(config))
        device = DeviceThread(guarded=not processes.is_alone)
        stack.callback(device.close)
        prompts = Prompts.load(config.protocol.templates)
        protocol = RouterProtocol(codec, prompts, cards, config.protocol)
        queries, validation, test, held_out = checked_questions(config, protocol, trains)
        yield Parts(
            config=config,
            workdir=workdir,
            codec=codec,
            protocol=protocol,
            queries=queries,
            validation=validation,
            test=test,
            held_out=held_out,
            endpoints={endpoint.id: endpoint for endpoint in endpoints},
            client=client,
            http=http,
            journals=open_journals(config, workdir, codec, prompts, endpoints, processes),
            ledger=ledger,
            budget=budget,
            usage=usage,
            scorer=scorer,
            feedback=feedback(config, scorer, prompts),
            device=device,
            mesh=mesh,
            processes=processes,
            interrupts=interrupts,
            spent_by_retired=retired,
            spent_by_others=processes.others(await processes.exchange(ledger.spent)),
        )


def checked_questions(
    config: RunConfig, protocol: RouterProtocol, trains: bool
) -> tuple[QueryBatches, list[Query], list[Query], list[Query]]:
    """(batches to train on, validation, test, held out); raises where one of them could not be asked or judged."""
    queries, (validation, test) = query_batches(config), held_out_queries(config)
    held_out = generalisation_queries(config)
    train = check_prompts(protocol, queries, config.steps if trains else 0, config.queries_per_batch)
    for query in (*validation, *test, *held_out):
        protocol.check_fits(query)
    asked = (*train, *validation, *test, *held_out)
    check_scorers(config, asked)
    check_isolation(config, asked)
    return queries, validation, test, held_out


def spent_by_retired(workdir: Workdir, processes: Processes) -> Spent:
    """What processes of earlier jobs spent that this job does not have; the first one keeps their books."""
    spent = []
    for path in workdir.files_of_others(LEDGER, beyond=processes.count) if processes.is_first else ():
        with contextlib.closing(Ledger(path, run=workdir.path.name)) as ledger:
            spent.append(ledger.spent)
    return Spent.sum(spent)


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


def open_mesh(config: RunConfig, processes: Processes) -> jax.sharding.Mesh | None:
    """The device mesh, or None where one device is asked for. Raises ConfigError where it or the batch does not fit."""
    shape = (config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    if config.queries_per_batch % processes.count:
        legal = [n for n in range(1, config.queries_per_batch + 1) if config.queries_per_batch % n == 0]
        raise ConfigError(
            f"queries_per_batch={config.queries_per_batch} cannot be divided among {processes.count} processes: their "
            f"number must be one of {legal}"
        )
    if shape == (1, 1, 1) and processes.is_alone:
        return None
    mesh = make_mesh(shape, n_kv_heads=config.model.n_kv_heads)
    check_processes(mesh)
    return mesh
