"""The best router by validation, also where a run had to go back behind it."""

import asyncio
import shutil
import types

import jax.numpy as jnp
import numpy as np
import pytest

from rw.best_router import Validation, trained_router
from rw.errors import CheckpointError
from rw.processes import Processes
from rw.run_config import EvaluationConfig
from rw.types import Group, Mode, PublishedWeights, Query, ScoredTrajectory, Status, Trajectory, Verdict
from rw.workdir import Workdir
from rw.workers.journal import Journals

EMPTY = np.zeros(0)
ANSWERED = Trajectory("q", 0, Mode.SINGLE, False, EMPTY, EMPTY, EMPTY, 0, (), "5", Status.ANSWERED)


class Router:
    """Answers with so many right, of ten questions at first."""

    questions = 10

    async def roll_out(self, weights, queries, label, scope, step):
        return [
            Group(
                n, Query(str(n), "math", "math", "?", "5"), None, (ScoredTrajectory(ANSWERED, Verdict(n < self.right)),)
            )
            for n in range(self.questions)
        ]


class Device:
    async def run(self, function, *args, **kwargs):
        return function(*args, **kwargs)


def opened(workdir, router, resume, **values):
    evaluation = EvaluationConfig(**{"every": 1, **values})
    config = types.SimpleNamespace(steps=3, evaluation=evaluation, log=types.SimpleNamespace(tensorboard=False))
    codec = types.SimpleNamespace(fingerprint="abc")
    journals = Journals(workdir.file("journal"), {})
    parts = types.SimpleNamespace(
        config=config,
        workdir=workdir,
        codec=codec,
        device=Device(),
        validation=(),
        journals=journals,
        processes=Processes(),
    )
    validation = Validation(parts, router)
    validation.resume(resume)
    return validation


def validate(validation, router, step, right):
    router.right = right
    weights = PublishedWeights(step, None)
    params = {"weight": jnp.full(2, step, jnp.float32)}

    asyncio.run(validation.run(weights, params))


def trained(validation, last_step):
    return asyncio.run(trained_router(validation, None, last_step))


def test_a_run_that_goes_back_behind_its_best_router_keeps_the_best_of_what_follows(tmp_path):
    router = Router()
    with Workdir(tmp_path) as workdir:
        validation = opened(workdir, router, 0)
        for step, right in enumerate((2, 5, 6)):
            validate(validation, router, step, right)
        assert trained(validation, 2)[1] == 2
        validation.close()
        validation = opened(workdir, router, 1)  # the checkpoint of step 2 could not be read
        validate(validation, router, 2, 4)  # Workers are not the same every time
        validate(validation, router, 3, 3)
        assert trained(validation, 3) == (tmp_path / "best" / "step_000002", 2)
        assert [row["eval/best_step"] for row in validation.rows.rows()] == [0, 1, 2, 2]
        validation.close()
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["step_000002"]


def test_accuracies_on_different_numbers_of_questions_are_not_compared(tmp_path):
    router = Router()
    with Workdir(tmp_path) as workdir:
        validation = opened(workdir, router, 0)
        validate(validation, router, 0, 9)
        router.questions = 40
        for step, right in ((1, 20), (2, 24), (3, 22)):
            validate(validation, router, step, right)
        assert trained(validation, 3) == (tmp_path / "best" / "step_000002", 2)
        validation.close()


def test_a_best_router_that_was_removed_is_missed_in_words(tmp_path):
    router = Router()
    with Workdir(tmp_path) as workdir:
        validation = opened(workdir, router, 0)
        validate(validation, router, 0, 5)
        shutil.rmtree(tmp_path / "best")
        with pytest.raises(CheckpointError, match="restore it, or set evaluation.every=0 to take the last one"):
            trained(validation, 0)
        validation.close()


@pytest.mark.parametrize("off", ["every", "validation_queries"])
def test_without_validation_nothing_is_due_and_the_last_router_is_the_best(tmp_path, off):
    with Workdir(tmp_path) as workdir:
        validation = opened(workdir, Router(), 0)
        assert asyncio.run(validation.is_due(3))
        validation.close()
        validation = opened(workdir, Router(), 0, **{off: 0})
        assert not asyncio.run(validation.is_due(3)) and trained(validation, 3) == (None, 3)
        validation.close()
