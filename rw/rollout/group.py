"""Groups: the K rollouts of one query, each scored as soon as it has ended, while others still generate."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

from rw.errors import ConfigError, DataError, FailureCause, InfrastructureFailure, RwError
from rw.rollout.credit import PAPER, CreditConfig, Score, judge
from rw.rollout.pool import EpisodePool
from rw.rollout.tasks import gather_or_cancel
from rw.rollout.timeline import Part
from rw.types import Group, Mode, Query, ScoredTrajectory, Status, Trajectory

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class GroupTask:
    """A group still to be run: `index` is the query's place in its batch, `forced_mode` None if the router is free."""

    index: int
    query: Query
    forced_mode: Mode | None


def group_tasks(
    queries: Sequence[Query], forced_modes: Sequence[Mode | None] | None = None, first_index: int = 0
) -> tuple[GroupTask, ...]:
    """The groups of a batch, or of one host's share of it, which begins at `first_index`.

    `forced_modes` has one entry a query; None for the whole argument leaves every router free. A query must not occur
    twice: its rollouts' sampling keys derive from its id, so the second group would only repeat the first.
    """
    if forced_modes is None:
        forced_modes = [None] * len(queries)
    if len(forced_modes) != len(queries):
        raise ConfigError(f"{len(forced_modes)} forced modes for {len(queries)} queries; give one for each query")
    seen: set[str] = set()
    for query in queries:
        if query.id in seen:
            raise DataError(f"query {query.id} occurs twice in a batch; every query of a batch must be another")
        seen.add(query.id)
    return tuple(
        GroupTask(first_index + place, query, mode)
        for place, (query, mode) in enumerate(zip(queries, forced_modes, strict=True))
    )


async def run_group(
    task: GroupTask,
    pool: EpisodePool,
    score: Score,
    *,
    step: int,
    policy_version: int,
    credit: CreditConfig = PAPER,
    on_rollout: Callable[[ScoredTrajectory], None] = lambda rollout: None,
) -> Group:
    """Runs and scores the K rollouts of a query side by side; `on_rollout` is told of each when it has its verdict.

    Raises RwError, such as WorkerRefusedError; then, as when it is cancelled, no rollout is left running.
    """

    async def rollout(index: int) -> ScoredTrajectory:
        times = pool.timeline.episode(task.query.id, index)
        trajectory = await pool.run(
            task.query, task.index, index, task.forced_mode, step=step, policy_version=policy_version, times=times
        )
        with times.spent_on(Part.SCORE):
            scored = await score_trajectory(task.query, trajectory, score, credit)
        times.end(trajectory.mode)
        on_rollout(scored)
        return scored

    rollouts = await gather_or_cancel(rollout(index) for index in range(pool.config.rollouts_per_query))
    return Group(index=task.index, query=task.query, forced_mode=task.forced_mode, rollouts=tuple(rollouts))


async def score_trajectory(
    query: Query, trajectory: Trajectory, score: Score, credit: CreditConfig = PAPER
) -> ScoredTrajectory:
    """Adds the verdict to an answered trajectory.

    A scorer that raises or runs out of time says nothing about the answer: the rollout is excluded, never wrong.
    """
    if trajectory.status is not Status.ANSWERED:
        return ScoredTrajectory(trajectory, verdict=None)
    try:
        verdict = await judge(query, trajectory, score, credit)
    except RwError:
        raise
    except Exception as error:
        log.error("scoring rollout %d of %s failed: %s", trajectory.rollout_index, query.id, error, exc_info=error)
        cause = error.cause if isinstance(error, InfrastructureFailure) else FailureCause.SCORER_FAULT
        failed = dataclasses.replace(trajectory, status=Status.INFRASTRUCTURE_FAILURE, cause=cause.value, answer=None)
        return ScoredTrajectory(failed, verdict=None)
    return ScoredTrajectory(trajectory, verdict)
