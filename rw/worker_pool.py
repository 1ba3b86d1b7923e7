"""The Workers of a run: where they are, those served on loopback, and the client, cassette and books between.

Only construction lives here; what they do is in rw/workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence

from rw.data import replay
from rw.errors import ConfigError
from rw.run_config import RunConfig
from rw.simulation import skills
from rw.simulation.workers import SimulatedWorld
from rw.typed_values import unknown_key
from rw.types import WorkerCall, WorkerCard
from rw.workers.budget import Budget
from rw.workers.cassette import Cassette, CassettePlayer, CassetteRecorder, made_of
from rw.workers.config import WorkerEndpoint
from rw.workers.disturbances import faults_at_rate, first_fault, lasting_faults, lognormal_latency
from rw.workers.http import HttpWorkerClient
from rw.workers.interface import WorkerClient, WorkerRequest
from rw.workers.ledger import Ledger
from rw.workers.loopback import serve
from rw.workers.pricing import PriceTable
from rw.workers.replay_pool import recorded_endpoints, recorded_handler
from rw.workers.request import request_digest


def worker_endpoints(config: RunConfig, base_url: str = "http://127.0.0.1/v1") -> tuple[WorkerEndpoint, ...]:
    """The run's Workers; `base_url` is where those of a simulated or replayed pool are served.

    ConfigError where a cap is for none of them: it would hold nobody back.
    """
    if config.workers.kind == "http":
        endpoints = config.workers.endpoints
    elif config.workers.kind == "simulated":
        endpoints = skills.endpoints(base_url)
    else:
        endpoints = recorded_endpoints(base_url, replay.NQ6_MODELS)
    known = [endpoint.id for endpoint in endpoints]
    for worker_id in config.budget.workers_usd:
        if worker_id not in known:
            raise ConfigError(unknown_key(f"config.budget.workers_usd.{worker_id}", str(worker_id), known))
    return endpoints


async def open_workers(
    config: RunConfig, stack: contextlib.AsyncExitStack, processes: int = 1
) -> tuple[tuple[WorkerEndpoint, ...], tuple[WorkerCard, ...]]:
    """Endpoints and cards; a simulated or replayed pool is started on loopback and stopped with the stack.

    Each of several processes starts one of its own, but real Workers and their limits are shared among them.
    """
    workers = config.workers
    if workers.kind == "http":
        shared = tuple(with_shared_limits(endpoint, processes) for endpoint in worker_endpoints(config))
        return shared, tuple(worker.card for worker in workers.endpoints)
    if workers.kind == "simulated":
        base_url = await _serve(config, SimulatedWorld(workers.world_seed).handler, skills.WORKER_IDS, stack)
        return worker_endpoints(config, base_url), skills.cards()
    _, cards, answers = replay.load_nq6()
    models = [model.model for model in replay.NQ6_MODELS]
    base_url = await _serve(config, recorded_handler(answers), models, stack)
    return worker_endpoints(config, base_url), cards


def with_shared_limits(endpoint: WorkerEndpoint, processes: int) -> WorkerEndpoint:
    """The endpoint with one process's part of its limits; ConfigError where a part would be nothing."""
    if endpoint.max_concurrent < processes:
        raise ConfigError(
            f"Worker {endpoint.id}: max_concurrent={endpoint.max_concurrent} cannot be shared by {processes} "
            f"processes; raise it to at least {processes}, or run fewer"
        )
    parts = {"max_concurrent": endpoint.max_concurrent // processes}
    for name in ("requests_per_minute", "tokens_per_minute"):
        if (limit := getattr(endpoint, name)) is not None:
            parts[name] = limit / processes
    return dataclasses.replace(endpoint, **parts)


def open_client(
    config: RunConfig, endpoints: Sequence[WorkerEndpoint], ledger: Ledger, budget: Budget | None = None
) -> HttpWorkerClient:
    """The client of a run for these Workers, within the budget."""
    client_config = config.client
    if config.deterministic:  # no wall clock may decide what happens
        client_config = dataclasses.replace(
            client_config,
            connect_timeout_s=None,
            first_byte_timeout_s=None,
            attempt_timeout_s=None,
            call_deadline_s=None,
        )
    return HttpWorkerClient(endpoints, PriceTable.from_endpoints(endpoints), ledger, client_config, budget=budget)


def with_cassette(
    client: WorkerClient | None,
    config: RunConfig,
    endpoints: Sequence[WorkerEndpoint],
    ledger: Ledger,
    stack: contextlib.AsyncExitStack,
    processes: int = 1,
) -> WorkerClient:
    """The client with the run's cassette in front of it, or in its place where it is None; the stack closes that."""
    workers = config.workers
    if workers.cassette_mode == "off":
        return client
    PriceTable.from_endpoints(endpoints)  # refuses a Worker without a price, as a client does
    is_recording = workers.cassette_mode == "record"
    if processes > 1 and (is_recording or workers.allow_live):
        raise ConfigError(
            f"workers.cassette={workers.cassette!r} can be written by one process alone, not by {processes}; record "
            "with one"
        )
    cassette = Cassette(
        workers.cassette, made_of(endpoints), records=is_recording or workers.allow_live, begins=is_recording
    )
    stack.callback(cassette.close)

    def label() -> str:  # what `Parts.booked_as` says
        return ledger.run.partition("/")[2] or "training"

    digest = digests({endpoint.id: endpoint for endpoint in endpoints}, config.client.worker_seed)
    on_replay = booked_replays(ledger, "cassette")

    if client is None:
        return CassettePlayer(cassette, digest, label, on_replay)
    recorder = CassetteRecorder(client, cassette, digest, label, on_replay)
    return recorder if is_recording else CassettePlayer(cassette, digest, label, on_replay, live=recorder)


def digests(endpoints: Mapping[str, WorkerEndpoint], worker_seed: str) -> Callable[[WorkerRequest], str]:
    """What tells one request from another: the digest of all that its answer depends on."""
    return lambda request: request_digest(endpoints[request.worker_id], worker_seed, request)


def booked_replays(ledger: Ledger, source: str) -> Callable[[WorkerRequest, WorkerCall], None]:
    """Books calls that are answered from a journal or a cassette, named by `source`, as paid before."""

    def on_replay(request: WorkerRequest, call: WorkerCall) -> None:
        whose = {"mode": request.mode, "query_id": request.query_id}
        ledger.replayed(request.id, request.worker_id, call.cost_usd, source, **whose)

    return on_replay


def is_replay_alone(config: RunConfig) -> bool:
    """Whether no Worker is ever asked: none needs to be there, nor a key."""
    return config.workers.cassette_mode == "replay" and not config.workers.allow_live


async def _serve(config: RunConfig, handler, models: Sequence[str], stack: contextlib.AsyncExitStack) -> str:
    """The base URL of a pool on loopback; nothing is started where a cassette answers for it."""
    if is_replay_alone(config):
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
