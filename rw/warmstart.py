"""Warm start: supervised training on trajectories of scripted routers, `rw warmstart --config FILE --workdir DIR`.

The scripted routers run through the same episodes, Workers and token bookkeeping as a trained one, so what the network
imitates is exactly what it will meet: its own frames, rules, observations and routing states. The result is kept in
<workdir>/warmstart and is the initial router, and frozen reference, of a training run.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pathlib
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import jax

from rw import progress
from rw.cli import run_entry
from rw.cluster import ALONE, Membership, placed
from rw.config import as_dict, load_config
from rw.core.schedule import forced_modes, is_forced
from rw.dry_run import dry_run_warm_start
from rw.errors import CheckpointError, ConfigError, DataError
from rw.interruptible import run_interruptible
from rw.learner.checkpoint import config_changes, save_params
from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.learner.state import init_state
from rw.learner.supervised import SupervisedConfig, SupervisedLearner
from rw.memory import check_memory
from rw.micro_batch import with_micro_batch
from rw.model.copying import wire_copying
from rw.model.qwen3 import init_params
from rw.parts import Parts
from rw.processes import joined
from rw.questions import check_prompts
from rw.run_config import PLACEMENT, RunConfig
from rw.sampler.scripted import ScriptedSampler
from rw.simulation.drills import Drills
from rw.simulation.policies import HabitPolicy, Policy, opinions, script
from rw.types import Query, Status, TrainState, Trajectory
from rw.worker_pool import open_client
from rw.workers.config import WorkerEndpoint
from rw.workers.loopback import serve

SCOPE = "warmstart_"  # its journals begin so


def main(argv: Sequence[str] | None = None) -> int:
    """`rw warmstart`; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    return run_entry(
        "warmstart",
        argv,
        lambda given: start(load_config(given.config, given.overrides), given.workdir, placed(given.flags)),
        lambda given: dry_run_warm_start(load_config(given.config, given.overrides), given.workdir),
    )


def start(config: RunConfig, workdir_path: str, place: Membership = ALONE) -> int:
    """Makes the warm start of a run unless it is there; returns the exit code. ConfigError where the run has none."""
    if config.init.source != "warmstart":
        raise ConfigError(
            f"init.source={config.init.source!r}: this run begins without a warm start of its own; to make one, set "
            "--config.init.source=warmstart --config.init.path="
        )

    async def body(parts: Parts) -> None:
        await parts.device.run(check_memory, parts.config)
        await warm_start(parts)
        progress.say(f"warm start in {warm_start_path(parts)}")

    with joined(place) as processes:
        return run_interruptible(config, workdir_path, body, "the same command begins the warm start again", processes)


def warm_start_path(parts: Parts) -> str:
    """Where the warm start of this run is kept."""
    init = parts.config.init
    named = init.path if init.source == "warmstart" else ""  # else it names what the run begins from, which stays
    return named or str(parts.workdir.file("warmstart"))


async def warm_start(parts: Parts) -> Any:
    """Parameters of the warm start: read if they were made before with this config, made otherwise."""
    path = warm_start_path(parts)
    made_with = identity(parts)
    if await parts.processes.of_first(pathlib.Path(path).exists):
        params, metadata = await parts.device.run(parts.load_params, path)
        stored = {key: metadata.get(key) for key in made_with}
        if changes := config_changes(stored, made_with, PLACEMENT):
            raise CheckpointError(
                f"the warm start at {path} was made with another config: {'; '.join(changes)}; take back the "
                "change, or name another place in init.path, where one is made"
            )
        return params
    params = await make_warm_start(parts)
    await parts.device.run(save_params, path, params, made_with)
    for scope in parts.journals.scopes():
        if scope.startswith(SCOPE):
            parts.journals.discard(scope)
    return params


def identity(parts: Parts) -> dict[str, Any]:
    """What a warm start depends on, as plain JSON values."""
    config = as_dict(parts.config)
    return {
        "tokenizer_fingerprint": parts.codec.fingerprint,
        **{key: _plain(config[key]) for key in ("model", "warmstart", "protocol")},
    }


async def make_warm_start(parts: Parts) -> Any:
    """Trains fresh parameters on what the config names: demonstrations on the run's own questions, or on drills."""
    parts.config = await parts.device.run(with_micro_batch, parts)
    if parts.config.warmstart.policy != "drills":
        return await learn_demonstrations(parts)
    async with drilled(parts) as practice:
        return await learn_demonstrations(practice)


@contextlib.asynccontextmanager
async def drilled(parts: Parts) -> AsyncIterator[Parts]:
    """The parts of a run with drills in place of its questions, and drill Workers under the names of its Workers."""
    drills = Drills(parts.codec, parts.config.warmstart.seed)
    async with contextlib.AsyncExitStack() as stack:
        server = await serve(drills.handler, models=parts.worker_ids)
        stack.push_async_callback(server.close)
        endpoints = [
            WorkerEndpoint(name, "", server.base_url, name, input_price=0.0, output_price=0.0, send_call_header=True)
            for name in parts.worker_ids
        ]
        client = open_client(parts.config, endpoints, parts.ledger)
        stack.push_async_callback(client.close)
        yield dataclasses.replace(parts, queries=drills.queries, client=client)


async def learn_demonstrations(parts: Parts) -> Any:
    """Parameters after all steps; the next batch is rolled out while the device learns the present one."""
    config = parts.config.warmstart
    check_prompts(parts.protocol, parts.queries, config.steps, config.queries_per_batch)
    optimizer = Optimizer(
        OptimizerConfig(learning_rate=config.learning_rate, schedule="cosine", total_steps=config.steps)
    )
    state, learner = await parts.device.run(open_learner, parts, optimizer)
    demonstrations = Demonstrations(parts)
    following = asyncio.create_task(demonstrations.batch(0))
    try:
        for step in range(config.steps):
            trajectories = await following
            if step + 1 < config.steps:
                following = asyncio.create_task(demonstrations.batch(step + 1))
            began = time.monotonic()
            state, row = await parts.device.run(learner.step, state, trajectories)
            if step % 10 == 9 or step + 1 == config.steps:
                progress.say(
                    f"warm start {step + 1}/{config.steps}: loss {row['loss/total']:.3f} nats a token, "
                    f"{len(trajectories)} trajectories, {time.monotonic() - began:.2f} s"
                )
            parts.check_stop()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    return state.params


def open_learner(parts: Parts, optimizer: Optimizer) -> tuple[TrainState, SupervisedLearner]:
    """The state before the first step, and what makes the steps."""
    config = parts.config
    params = init_params(jax.random.key(config.warmstart.seed), config.model, parts.param_shardings)
    if config.warmstart.copying == "wired":
        params = wire_copying(params, config.model)
    supervised = SupervisedConfig(batch=config.batch, deterministic=config.deterministic)
    return init_state(params, optimizer, config.warmstart.seed), SupervisedLearner(
        config.model, optimizer, params, supervised, parts.mesh
    )


class Demonstrations:
    """Batches of scripted rollouts through the run's own episodes and Workers."""

    def __init__(self, parts: Parts):
        self._parts = parts
        self._queries: dict[str, Query] = {}  # those drawn so far, which the script asks for by id
        self._sampler = ScriptedSampler(parts.codec, script(scripted_router(parts), self._queries.__getitem__))

    async def batch(self, index: int) -> list[Trajectory]:
        """The answered trajectories of one rollout of each query of batch `index`.

        Their calls are booked under negative steps, which lie before the first step of training.
        """
        config = self._parts.config.warmstart
        queries = self._parts.queries(index, config.queries_per_batch)
        self._queries.update({query.id: query for query in queries})
        modes = forced_modes(config.seed, index, len(queries))
        assigned = [
            mode if is_forced(query.id, config.forced_share) else None
            for query, mode in zip(queries, modes, strict=True)
        ]
        groups = await self._parts.collect(
            self._sampler,
            queries,
            assigned,
            scope=f"{SCOPE}{index:06d}",
            rollouts_per_query=1,
            step=index - config.steps,
            policy_version=0,
        )
        trajectories = [scored.trajectory for group in groups for scored in group.rollouts]
        answered = [trajectory for trajectory in trajectories if trajectory.status is Status.ANSWERED]
        if not answered:
            reasons = sorted({str(trajectory.violation or trajectory.cause) for trajectory in trajectories})
            raise DataError(f"warm-start batch {index}: no scripted rollout was answered ({', '.join(reasons)})")
        return answered


def scripted_router(parts: Parts) -> Policy:
    """The scripted router that the config names, over the run's Workers."""
    config = parts.config.warmstart
    if config.policy in ("opinions", "drills"):
        return opinions(config.seed, parts.worker_ids, config.mode_prior or None)
    return HabitPolicy(config.seed, parts.worker_ids, mode_prior=config.mode_prior or None)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


if __name__ == "__main__":
    sys.exit(main())
