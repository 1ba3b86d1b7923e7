"""Train a router with COMET-GRPO under progressive exploration: `rw train --config FILE --workdir DIR`.

A step, in the order in which it happens (`Trainer.step`):

    plan      which queries, and which of them have their mode assigned       batch_plan
    roll out  every query K times, against the Workers                        rollout.stream
    learn     rewards, advantages, loss, one update of the policy             learner.step
    publish   the new weights to the sampler                                  learner.publish
    record    metrics, trajectories, now and then a checkpoint

Every few steps the router is validated greedily and the best one kept; after the last step it answers the test
questions, beside its baselines, and the run's report is written (final_evaluation.py).

The same command continues a run that stopped, at the batch after its last checkpoint: queries, forced modes and
sampling keys are pure functions of (seed, batch index, query id, rollout), so nothing else needs to be remembered.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import sys
from collections.abc import Collection, Sequence
from typing import Any

from rw import metrics, profiling, progress
from rw.batch_plan import BatchPlan, plan_batch
from rw.best_router import Validation, trained_router
from rw.cli import Arguments, run_entry
from rw.cluster import ALONE, Membership, placed
from rw.config import as_dict, load_config
from rw.core.advantage_contract import check_advantage, recorded_name
from rw.core.advantages import ADVANTAGES, AdvantageConfig, AdvantageFunction, resolve
from rw.core.diagnostics import group_metrics, reward_metrics
from rw.dry_run import dry_run_training
from rw.early_learning import begun_early, check_regime, lent_while_idle
from rw.evaluation.report import print_report, write_report
from rw.final_evaluation import FinalEvaluation
from rw.greedy import GreedyRouter
from rw.initial import initial_router
from rw.interruptible import run_interruptible
from rw.journals import discard_steps, step_scope
from rw.learner.batch import group_batch
from rw.learner.checkpoint import Checkpoints, RunIdentity
from rw.learner.optimizer import Optimizer
from rw.learner.programs import check_not_diverged
from rw.learner.publish import publish
from rw.learner.state import fingerprint, init_state
from rw.learner.step import Learner, LearnerConfig
from rw.learner.streaming import StepWork
from rw.memory import check_memory
from rw.micro_batch import check_micro_batch, with_micro_batch
from rw.parts import Parts
from rw.processes import joined
from rw.questions import passes, passes_line, recorded_config
from rw.rollout.lag import LoopLag
from rw.rollout.record import TrajectoryWriter
from rw.rollout.timeline import Timeline
from rw.run_config import MAY_CHANGE, RunConfig
from rw.sampler.engine import SamplerEngine
from rw.step_times import StepTimes, device_times
from rw.types import Group, TrainState
from rw.wandb_log import CLOSE_S, STOP_S, WandbLog, check_installed


def main(argv: Sequence[str] | None = None) -> int:
    """`rw train`; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    return run_entry(
        "train",
        argv,
        lambda given: train(
            load_config(given.config, given.overrides),
            given.workdir,
            place=placed(given.flags),
            profile=profiling.named_steps(given.flags.profile),
        ),
        _dry_run,
        profiling.add_flag,
    )


def _dry_run(given: Arguments) -> int:
    config = load_config(given.config, given.overrides)
    profiling.check_steps(profiling.named_steps(given.flags.profile), config.steps)
    _check_usable(config, resolve(config.advantage.function), placed(given.flags).count or 1)
    return dry_run_training(config, given.workdir)


def _check_usable(config: RunConfig, advantage: AdvantageFunction, processes: int) -> None:
    """Raises ConfigError where a run in so many processes would not begin, whatever its workdir holds."""
    check_regime(config.regime, processes)
    check_micro_batch(config, processes)
    if advantage not in ADVANTAGES.values():
        check_advantage(advantage, config.advantage.function, learner_config(config, advantage).advantage)


def train(
    config: RunConfig,
    workdir_path: str,
    advantage: AdvantageFunction | None = None,
    place: Membership = ALONE,
    profile: Collection[int] = (),
) -> int:
    """Trains in `workdir_path`, which nobody else may use meanwhile; returns the exit code. Works in notebooks too.

    Args:
        advantage: a function that takes the place of the one that the config names. What the run records names either
            with a hash of its source, so a run is not continued with another one.
        place: this process's in a job of several, which must all be started alike; nothing may have asked jax for its
            devices before.
        profile: steps of which a trace is written.

    Raises:
        RwError: before anything is spent, where config, workdir or advantage cannot be used.
    """
    chosen = config.advantage.function if advantage is None else advantage
    advantage, named = resolve(chosen), dataclasses.replace(config.advantage, function=recorded_name(chosen))
    config = dataclasses.replace(config, advantage=named)
    again = " (a warm start that was not finished begins again)" if config.init.source == "warmstart" else ""
    after_stop = "the same command continues the run" + again
    check_regime(config.regime, place.count or 1)  # before the others are waited for, where the number is known
    with joined(place) as processes:
        _check_usable(config, advantage, processes.count)
        if processes.is_first:
            check_installed(config.log.wandb)
        body = functools.partial(run, advantage=advantage, profile=profile)
        return run_interruptible(config, workdir_path, body, after_stop, processes)


async def run(parts: Parts, advantage: AdvantageFunction, profile: Collection[int]) -> None:
    """From the first step, or the last checkpoint, to the last step."""
    parts.config = await parts.device.run(with_micro_batch, parts)
    await parts.device.run(check_memory, parts.config)
    initial = await initial_router(parts)
    async with await parts.device.run(Trainer, parts, initial, advantage, profile) as trainer:
        await trainer.resume()
        while True:
            await trainer.validate()
            if trainer.next_batch >= parts.config.steps:
                break
            await trainer.step()
        await trainer.test()
    parts.interrupts.close()  # all is done; one that is stopped now must not end with another exit code than the first
    if parts.processes.is_first:
        progress.say(progress.spent_line(parts.spent, parts.is_nominal))
        progress.say(f"finished; results in {parts.workdir.path}")
        print_report(write_report(parts.workdir.path))
    await parts.processes.exchange(None)  # whoever ends before the report is there could not learn that it never came


class Trainer:
    """The state of a run and its steps. Device work goes to the device thread; this class only waits for it."""

    def __init__(self, parts: Parts, initial: Any, advantage: AdvantageFunction, profile: Collection[int] = ()):
        config = parts.config
        self.parts, self.config = parts, config
        self.optimizer = Optimizer(config.optimizer)
        learning = learner_config(config, advantage)
        self.learner = Learner(config.model, self.optimizer, initial, learning, parts.mesh)
        identity = RunIdentity(recorded_config(config), parts.codec.fingerprint, fingerprint(initial), config.seed)
        parts.journals.identify(router=identity.reference_fingerprint)
        self.checkpoints = Checkpoints(
            parts.workdir.file("checkpoints"), identity, keep=config.checkpoint.keep, may_change=MAY_CHANGE
        )
        engine_config = dataclasses.replace(config.engine, deterministic=config.deterministic)
        own_queries = config.queries_per_batch // parts.processes.count
        episodes = min(config.rollout.concurrency, own_queries * config.rollouts_per_query)
        self.engine = SamplerEngine(
            parts.codec, config.model, config.sampling, engine_config, parts.device, config.seed, episodes
        )
        self.greedy_router = GreedyRouter(parts, max(len(parts.validation), len(parts.test)))
        self.validation = Validation(parts, self.greedy_router)
        self.passes = passes(config)
        self.profile = profiling.Profile(profile, parts.workdir.own_path / profiling.FOLDER, parts.device)
        self.metrics: metrics.MetricWriter | None = None  # of the first process of a job
        if parts.processes.is_first:
            self.metrics = metrics.MetricWriter(parts.workdir.path, tensorboard=config.log.tensorboard)
        self.wandb: WandbLog | None = None  # of the first process, too, from `resume` on
        self.trajectories = TrajectoryWriter(parts.workdir.own_path, parts.codec, config.log.trajectory_arrays)
        self._initial_state = init_state(self.learner.placement.params(initial), self.optimizer, config.seed)
        self.state: TrainState | None = None  # from `resume` on; never while an update consumes it
        self.spent_usd = 0.0  # on accepted calls since step 1, at the frozen prices

    @property
    def version(self) -> int:
        """Of the current weights: the number of steps that made them."""
        return int(self.state.step)

    @property
    def next_batch(self) -> int:
        """b of the next step."""
        return int(self.state.data_batch_index)

    async def __aenter__(self) -> Trainer:
        return self

    async def __aexit__(self, _type, error: BaseException | None, _traceback) -> None:
        """Saves what the last checkpoint lacks, unless there is no state to save, or no others to save it with; closes
        everything."""
        try:
            if self.state is not None and self.parts.processes.is_agreed(error):
                await self.save()
        finally:
            await self.engine.close()
            await self.greedy_router.close()
            if self.metrics is not None:
                self.metrics.close()
            self.validation.close()
            if self.wandb is not None:
                await asyncio.to_thread(self.wandb.close, CLOSE_S if error is None else STOP_S)
            if self.parts.processes.is_agreed(error):
                self.checkpoints.close()

    async def resume(self) -> None:
        """Takes up the newest checkpoint, if there is one; what later steps wrote is set aside."""
        template, self._initial_state = self._initial_state, None
        restored = await self.parts.device.run(self.checkpoints.restore, template)
        self.state = template if restored is None else restored
        self.profile.check(done=self.version, last=self.config.steps)
        self.trajectories.resume(self.version)
        if self.metrics is not None:
            self.parts.workdir.write_config(as_dict(self.config))
            self.metrics.resume(self.version)
            self._open_wandb()
            self.spent_usd = self.metrics.last_row.get("cost/total", 0.0)
            set_trajectories_aside(self.parts, self.version)
        self.validation.resume(self.version)
        await self.publish()
        if line := passes_line(self.config):
            progress.say(line)
        remaining = self.config.steps - self.next_batch
        if remaining > 0:
            progress.say(
                f"step {self.version} of {self.config.steps}: {remaining} to go; new shapes compile as they come"
            )
        else:
            progress.say(f"step {self.version} is done and config.steps={self.config.steps}: 0 to go")

    def _open_wandb(self) -> None:
        """Sends rows from now on, where the config names a project for them."""
        if project := self.config.log.wandb:
            self.wandb = WandbLog(project, self.parts.workdir.path, as_dict(self.config), step=self.version)

    async def step(self) -> None:
        """One step of training."""
        plan = plan_batch(self.parts, self.next_batch)
        self.parts.scorer.take_metrics()  # those of a validation before it are not the step's
        async with self.profile.of(plan.step):
            times = StepTimes()
            work = begun_early(self.learner, self.state.params, plan, self.parts.processes.count)
            with times.phase("rollout"):
                async with LoopLag() as lag:
                    groups = await self.roll_out(plan, times.timeline, work)
            with times.phase("train"):
                row = await self.learn(plan, groups, work)
            with times.phase("publish"):
                await self.publish()
            row |= {**times.metrics(), "perf/loop_lag_s": lag.longest_s}
        await self.record(plan, groups, row)
        check_not_diverged(self.state)
        self.parts.check_stop()

    async def roll_out(self, plan: BatchPlan, timeline: Timeline, work: StepWork | None) -> list[Group]:
        """K rollouts of every query of the batch, scored; then the caches' memory goes to the learner."""
        with (
            progress.rollouts(f"step {plan.step}") as on_progress,
            self.parts.budgeted_as_step(plan.step),
            lent_while_idle(self.engine, work) as on_group,
        ):
            groups = await self.parts.collect(
                self.engine,
                plan.queries,
                plan.forced_modes,
                scope=step_scope(plan.step),
                rollouts_per_query=self.config.rollouts_per_query,
                step=plan.step,
                policy_version=self.version,
                on_progress=on_progress,
                on_group=on_group,
                timeline=timeline,
            )
        await self.engine.drop_caches()
        return groups

    async def learn(self, plan: BatchPlan, groups: Sequence[Group], work: StepWork | None) -> dict[str, Any]:
        """One update from the batch; its metrics."""
        if work is None:
            update = functools.partial(self.learner.step, cold_start=plan.cold_start)
        else:
            update = functools.partial(self.learner.finish, work)
        state, self.state = self.state, None  # the step consumes its buffers
        self.state, row = await self.parts.device.run(
            update,
            state,
            groups,
            support_coefficient=plan.support_coefficient,
            mode_candidates=None if self.config.schedule.only_mode else self.parts.protocol.mode_candidates,
        )
        return row

    async def publish(self) -> None:
        """Gives the sampler the current weights; their version is the number of steps that made them."""
        self.weights = await self.parts.device.run(publish, self.state.params, self.config.model, self.version)
        await self.engine.publish(self.weights)

    async def validate(self) -> None:
        """Validates the current router where that is due. A checkpoint comes first: no run goes back behind it then."""
        if await self.validation.is_due(self.version):
            await self.save()
            await self.validation.run(self.weights, self.state.params)
            if self.wandb is not None:
                self.wandb.send()

    async def test(self) -> None:
        """The final evaluation, of the best router by validation."""
        trained = await trained_router(self.validation, self.state.params, self.version)
        await FinalEvaluation(self.parts, self.greedy_router).run(*trained)

    async def record(self, plan: BatchPlan, groups: Sequence[Group], row: dict[str, Any]) -> None:
        """Metrics, trajectories, a line for people, and a checkpoint where one is due.

        Of several processes each has the row; what tells of the sampler, the client and times is its own.
        """
        config, step, processes = self.config, plan.step, self.parts.processes
        reward = config.reward
        batch = group_batch(
            groups,
            reference_cost_usd=reward.reference_cost_usd,
            efficiency_weight=reward.efficiency_weight,
            cold_start=plan.cold_start,
            exhausted_is_invalid=config.protocol.exhausted == "invalid",
            retry_cost=reward.retry_cost,
        )
        row |= reward_metrics(batch, [group.query.domain for group in groups])
        row |= group_metrics(batch, config.advantage.std_gate)
        row |= metrics.step_metrics(
            groups,
            batch.retained,
            reference_cost_usd=reward.reference_cost_usd,
            spent_before_usd=self.spent_usd,
            retry_cost=reward.retry_cost,
        )
        row |= self.parts.client_metrics()
        row |= {f"sampler/{name}": value for name, value in self.engine.stats().items()}
        row |= device_times(row)
        row |= {"rho_b": plan.forced_ratio, "data/batch_index": plan.data_batch_index}
        row |= {"data/unique_queries": len(plan.queries)}
        row |= {f"data/passes/{name}": count for name, count in self.passes(plan.data_batch_index + 1).items()}
        row |= self.parts.scorer.take_metrics()
        self.spent_usd = row["cost/total"]
        if config.log.trajectories_every and step % config.log.trajectories_every == 0:
            self.trajectories.write(step, processes.share(groups), processes.share(batch.rewards))
        if self.metrics is not None:
            self.metrics.write(step, row)
        if self.wandb is not None:
            self.wandb.send()
        progress.say(progress.step_line(row, step, config.steps, plan.cold_start, self.parts.is_nominal))
        if step % config.checkpoint.every == 0:
            await self.save()

    async def save(self) -> None:
        """A checkpoint. The journals of steps that the one before it covers go: should the newest be damaged, the run
        goes back no farther, and pays for nothing twice."""
        await self.parts.device.run(self.checkpoints.save, self.state)
        if len(saved := self.checkpoints.steps()) > 1:
            discard_steps(self.parts.journals, upto=saved[-2])


def set_trajectories_aside(parts: Parts, step: int) -> None:
    """Sets aside what processes that this job does not have wrote of later steps."""
    for folder in parts.workdir.files_of_others("trajectories", beyond=parts.processes.count):
        TrajectoryWriter(folder.parent, parts.codec, parts.config.log.trajectory_arrays).resume(step)


def learner_config(config: RunConfig, advantage: AdvantageFunction) -> LearnerConfig:
    """The learner's part of a run's config."""
    return LearnerConfig(
        batch=config.batch,
        loss=config.loss,
        advantage=AdvantageConfig(
            config.reward.efficiency_weight,
            std_epsilon=config.advantage.std_epsilon,
            std_gate=config.advantage.std_gate,
        ),
        advantage_function=advantage,
        reference_cost_usd=config.reward.reference_cost_usd,
        retry_cost=config.reward.retry_cost,
        exhausted_is_invalid=config.protocol.exhausted == "invalid",
        support_floor=config.support.floor,
        logprob_temperature=config.sampling.temperature,
        deterministic=config.deterministic,
        regime=config.regime,
    )


if __name__ == "__main__":
    sys.exit(main())
