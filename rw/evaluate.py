"""Evaluation of a run's routers: on validation questions while it trains, on test questions when it has ended.

A router is evaluated as it would be used: greedily, one rollout a question. What it earns is in rw/evaluation.
"""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import time
from collections.abc import Sequence
from typing import Any

from absl import logging

from rw import progress
from rw.config import as_dict
from rw.errors import CheckpointError, DataError
from rw.evaluation.arms import scripted_routers
from rw.evaluation.outcomes import ArmResult, Outcome, arm_path, outcomes, read_arm, write_arm
from rw.evaluation.recorded import recorded_arms
from rw.evaluation.validation import best_validation, measured_accuracy, validation_metrics
from rw.learner.checkpoint import config_fingerprint, save_params
from rw.learner.publish import publish
from rw.metrics import MetricWriter
from rw.parts import Parts
from rw.questions import draw_of_test, recorded_questions
from rw.sampler.engine import SamplerEngine
from rw.sampler.interface import Sampler
from rw.sampler.scripted import ScriptedSampler
from rw.simulation.policies import script
from rw.types import Mode, PublishedWeights, Query


class GreedyRouter:
    """A sampler engine of its own, beside the one that explores; it holds weights and caches only while it answers."""

    def __init__(self, parts: Parts):
        config = parts.config
        self.parts = parts
        self.engine = SamplerEngine(
            parts.codec,
            config.model,
            dataclasses.replace(config.sampling, greedy=True),
            dataclasses.replace(config.engine, deterministic=config.deterministic),
            parts.device,
            config.seed,
        )
        own = -(-max(len(parts.validation), len(parts.test)) // parts.processes.count)
        at_once = min(config.rollout.concurrency, own)
        self.engine.check_concurrency(at_once)

    async def answer(
        self, weights: PublishedWeights, queries: Sequence[Query], label: str, step: int = 0, mode: Mode | None = None
    ) -> tuple[Outcome, ...]:
        """One outcome a query, with its mode free, or forced to `mode` or the only one that the run has; its calls are
        booked under `label`."""
        mode = self.parts.config.schedule.mode if mode is None else mode
        await self.engine.publish(weights)
        try:
            return await answer(self.parts, self.engine, queries, label, step, mode, weights.version)
        finally:
            await self.engine.withdraw()

    async def close(self) -> None:
        """Ends the engine."""
        await self.engine.close()


async def answer(
    parts: Parts,
    sampler: Sampler,
    queries: Sequence[Query],
    label: str,
    step: int = 0,
    mode: Mode | None = None,
    version: int = 0,
) -> tuple[Outcome, ...]:
    """One rollout of each query by any sampler. Its journal, `answers_scope(label, version)`, is left to the caller."""
    with parts.booked_as(label), progress.rollouts(label) as on_progress:
        groups = await parts.collect(
            sampler,
            queries,
            None if mode is None else [mode] * len(queries),
            scope=answers_scope(label, version),
            rollouts_per_query=1,
            step=step,
            policy_version=version,
            on_progress=on_progress,
        )
    return outcomes(groups)


def answers_scope(label: str, version: int) -> str:
    """The journal of one router's answers."""
    return f"{label}_{version:06d}"


class Validation:
    """Validates routers by their version; a row of each goes to validation.jsonl, the best one's parameters to best/.

    Whoever asks for it has saved a checkpoint of that version: so a run that is continued never goes back behind it.
    """

    def __init__(self, parts: Parts, router: GreedyRouter):
        self.parts, self.router = parts, router
        self.config, self.processes = parts.config.evaluation, parts.processes
        self.rows: MetricWriter | None = None  # of the first process of a job
        if self.processes.is_first:
            tensorboard = parts.config.log.tensorboard
            self.rows = MetricWriter(parts.workdir.path, tensorboard=tensorboard, name="validation")

    def resume(self, step: int) -> None:
        """Sets rows of later routers aside: they will be made again."""
        if self.rows is not None:
            self.rows.resume(step)

    async def is_due(self, step: int) -> bool:
        """Whether the router of that many updates is still to be validated: every N, the first and the last."""
        every = self.config.every
        if not every or (step % every and step != self.parts.config.steps):
            return False
        return await self.processes.of_first(lambda: self.rows.last_row["step"] < step)

    async def run(self, weights: PublishedWeights, params: Any) -> None:
        """Validates one version and keeps it where it is the best so far, of those that were asked the same number of
        questions; the earlier of equals stays."""
        step, began = weights.version, time.monotonic()
        answered = await self.router.answer(weights, self.parts.validation, label="validation", step=step)
        row = validation_metrics(answered)
        best = await self.processes.of_first(lambda: self._best_of(row["eval/questions"]))
        accuracy = measured_accuracy(row)
        if best is None or (accuracy is not None and accuracy > best[1]):
            best = (step, accuracy)
            await self._keep(params, step, accuracy)
        if self.rows is not None:
            self.rows.write(step, row | {"eval/best_step": best[0], "eval/best_accuracy": best[1]})
            self._remove_others(best[0])
        self.parts.journals.discard(answers_scope("validation", step))
        progress.say(progress.validation_line(row, step, best[0], time.monotonic() - began))

    def _best_of(self, questions: int) -> tuple[int, float | None] | None:
        """(step, accuracy) of the best kept router; accuracies on more or fewer questions are not compared."""
        return best_validation(kept for kept in self._kept_rows() if kept["eval/questions"] == questions)

    async def best(self) -> tuple[int, pathlib.Path] | None:
        """(step, its parameters) of the best router, or None where none is kept; the last kept where an outage left no
        validation anything to measure."""
        step = await self.processes.of_first(self._best_step)
        return None if step is None else (step, self._path(step))

    def _best_step(self) -> int | None:
        rows = self._kept_rows()
        best = best_validation(rows)
        return best[0] if best is not None else rows[-1]["step"] if rows else None

    def close(self) -> None:
        """Closes the file of rows."""
        if self.rows is not None:
            self.rows.close()

    def _kept_rows(self) -> list[dict[str, Any]]:
        """Rows of routers whose parameters are there. A run that had to go back behind its best one has lost that, and
        those before it."""
        return [row for row in self.rows.rows() if self._path(row["step"]).is_dir()]

    def _path(self, step: int) -> pathlib.Path:
        return self.parts.workdir.file("best") / f"step_{step:06d}"

    async def _keep(self, params: Any, step: int, accuracy: float | None) -> None:
        about = {"tokenizer_fingerprint": self.parts.codec.fingerprint, "step": step, "validation_accuracy": accuracy}
        await self.parts.device.run(save_params, self._path(step), params, about, overwrite=True)

    def _remove_others(self, step: int) -> None:
        for path in self.parts.workdir.file("best").glob("step_*"):
            if path != self._path(step):
                shutil.rmtree(path)


class FinalEvaluation:
    """The arms of `evaluation.arms` on the test questions, each kept as soon as it is whole and not answered again."""

    def __init__(self, parts: Parts, router: GreedyRouter):
        self.parts, self.router = parts, router

    async def run(self, trained: Any, trained_step: int) -> None:
        """All arms, in their order.

        Args:
            trained: the trained router's parameters, or the directory where they are saved.
            trained_step: updates that made them.
        """
        arms = self.parts.config.evaluation.arms if self.parts.test else ()
        if self.parts.test and self.parts.processes.is_first:
            self._set_aside(trained_step)
        if "trained" in arms or "forced" in arms:
            weights = await self._weights(trained, trained_step)
            if "trained" in arms:
                await self._router_arm("trained", weights)
            for mode in Mode if "forced" in arms else ():
                await self._router_arm(f"forced_{mode.word}", weights, mode)
        if "warm_start" in arms:
            await self._router_arm("warm_start", await self._weights(self.parts.workdir.file("reference"), 0))
        if self.parts.config.workers.kind == "simulated":
            await self._scripted_arms(arms)
        elif self.parts.config.workers.kind == "replay":
            await self._recorded_arms(arms)

    def _set_aside(self, trained_step: int) -> None:
        """Moves arms of other questions or of another router to `superseded/`, before anything is answered: the arms
        that lie side by side are compared with one another, and not all of them may be asked for again."""
        for path in sorted(arm_path(self.parts.workdir.path, "_").parent.glob("*.jsonl")):
            arm = path.stem
            of_router = arm == "trained" or arm.startswith("forced_")
            step = trained_step if of_router else 0 if arm == "warm_start" else None
            if not self._is_written(arm, self._about(step)):
                aside = path.parent / "superseded" / path.name
                aside.parent.mkdir(exist_ok=True)
                path.replace(aside)

    async def _weights(self, params: Any, version: int) -> PublishedWeights:
        if isinstance(params, pathlib.Path):
            params, _ = await self.parts.device.run(self.parts.load_params, params)
        return await self.parts.device.run(publish, params, self.parts.config.model, version)

    async def _router_arm(self, arm: str, weights: PublishedWeights, mode: Mode | None = None) -> None:
        about = self._about(weights.version)
        if not await self._is_done(arm, about):
            label = f"test_{arm}"
            found = await self.router.answer(weights, self.parts.test, label, mode=mode)
            self._keep(ArmResult(arm, about, found))
            self.parts.journals.discard(answers_scope(label, weights.version))

    async def _scripted_arms(self, arms: Sequence[str]) -> None:
        by_id = {query.id: query for query in self.parts.test}
        for arm, policy in scripted_routers(arms).items():
            about = self._about(None)
            if not await self._is_done(arm, about):
                sampler = ScriptedSampler(self.parts.codec, script(policy, by_id.__getitem__))
                found = await answer(self.parts, sampler, self.parts.test, f"test_{arm}")
                self._keep(ArmResult(arm, about, found))
                self.parts.journals.discard(answers_scope(f"test_{arm}", 0))

    async def _recorded_arms(self, arms: Sequence[str]) -> None:
        """Arms that are known from the records, so that nobody need answer for them."""
        config, about = self.parts.config, self._about(None)
        train, answers = recorded_questions(config)
        for arm, found in recorded_arms(train, self.parts.test, answers, config.seed, arms).items():
            if not await self._is_done(arm, about):
                self._keep(ArmResult(arm, about, found))

    def _about(self, step: int | None) -> dict[str, Any]:
        config = self.parts.config
        return {
            "split": "test",
            **draw_of_test(config),
            "queries": len(self.parts.test),
            "source": config.data.source,
            "step": step,
            "greedy": True,
            "seed": config.seed,
            "config_fingerprint": config_fingerprint(as_dict(config)),
        }

    async def _is_done(self, arm: str, about: dict[str, Any]) -> bool:
        return await self.parts.processes.of_first(lambda: self._is_written(arm, about))

    def _is_written(self, arm: str, about: dict[str, Any]) -> bool:
        """Whether the arm's file answers these questions with this router already."""
        path = arm_path(self.parts.workdir.path, arm)
        if not path.is_file():
            return False
        try:
            about_stored = read_arm(path).about
        except DataError as error:
            logging.warning("%s; it is answered again", error)
            return False
        ignored = "config_fingerprint"  # of keys that a continued run may change
        stored = {key: value for key, value in about_stored.items() if key != ignored}
        return stored == {key: value for key, value in about.items() if key != ignored}

    def _keep(self, result: ArmResult) -> None:
        if self.parts.processes.is_first:
            write_arm(self.parts.workdir.path, result)
        progress.say(progress.arm_line(result))


async def trained_router(validation: Validation, last: Any, last_step: int) -> tuple[Any, int]:
    """What counts as the trained router: the best by validation, the last one where nothing was validated."""
    best = await validation.best()
    if best is None and validation.config.every:
        raise CheckpointError(
            f"no validated router is left in {validation.parts.workdir.file('best')}: restore it, or set "
            "evaluation.every=0 to take the last one"
        )
    return (last, last_step) if best is None else (best[1], best[0])
