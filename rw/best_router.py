"""The best router of a run: validated greedily while it trains, the best one's parameters kept in best/."""

from __future__ import annotations

import pathlib
import shutil
import time
from typing import Any

from rw import progress
from rw.errors import CheckpointError
from rw.evaluation.outcomes import outcomes
from rw.evaluation.validation import best_validation, measured_accuracy, validation_metrics
from rw.greedy import GreedyRouter
from rw.learner.checkpoint import save_params
from rw.metrics import MetricWriter
from rw.parts import Parts
from rw.types import PublishedWeights


def validation_scope(step: int) -> str:
    """The journal of one router's validation."""
    return f"validation_{step:06d}"


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
        if not self.config.validates or (step % self.config.every and step != self.parts.config.steps):
            return False
        return await self.processes.of_first(lambda: self.rows.last_row["step"] < step)

    async def run(self, weights: PublishedWeights, params: Any) -> None:
        """Validates one version and keeps it where it is the best so far, of those that were asked the same number of
        questions; the earlier of equals stays."""
        step, began = weights.version, time.monotonic()
        scope = validation_scope(step)
        groups = await self.router.roll_out(weights, self.parts.validation, "validation", scope, step)
        row = validation_metrics(outcomes(groups))
        best = await self.processes.of_first(lambda: self._best_of(row["eval/questions"]))
        accuracy = measured_accuracy(row)
        if best is None or (accuracy is not None and accuracy > best[1]):
            best = (step, accuracy)
            await self._keep(params, step, accuracy)
        if self.rows is not None:
            self.rows.write(step, row | {"eval/best_step": best[0], "eval/best_accuracy": best[1]})
            self._remove_others(best[0])
        self.parts.journals.discard(scope)
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


async def trained_router(validation: Validation, last: Any, last_step: int) -> tuple[Any, int]:
    """What counts as the trained router: the best by validation, the last one where nothing was validated."""
    best = await validation.best()
    if best is None and validation.config.validates:
        raise CheckpointError(
            f"no validated router is left in {validation.parts.workdir.file('best')}: restore it, or set "
            "evaluation.every=0 to take the last one"
        )
    return (last, last_step) if best is None else (best[1], best[0])
