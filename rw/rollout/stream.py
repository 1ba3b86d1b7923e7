"""The groups of a step as an asynchronous iterator, each handed on when its last rollout has ended."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence

from rw.rollout.credit import PAPER, CreditConfig, Score
from rw.rollout.group import GroupTask, run_group
from rw.rollout.pool import EpisodePool
from rw.rollout.tasks import cancel_all
from rw.types import Group, ScoredTrajectory, Status


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a step's rollouts are: `rollouts` ended and scored, `failures` of them excluded."""

    rollouts: int
    failures: int
    total: int


async def stream_groups(
    tasks: Sequence[GroupTask],
    pool: EpisodePool,
    score: Score,
    *,
    step: int,
    policy_version: int,
    credit: CreditConfig = PAPER,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_rollout: Callable[[ScoredTrajectory], None] = lambda rollout: None,
    on_group: Callable[[Group], None] = lambda group: None,
) -> AsyncIterator[Group]:
    """Runs all groups at once and yields each when it is complete: in order of arrival, or, where the pool's config is
    deterministic, in order of index. `on_rollout` is told of each rollout when it has its verdict, `on_group` of each
    group before it is yielded.

    Raises RwError as soon as a rollout does (a Worker refuses us), whichever group comes next. Closing the iterator
    cancels what still runs and waits for it; take it `async with contextlib.aclosing(...)`, since a loop that is left
    early, or whose body raises, closes its iterator only some time later.
    """
    progress = Progress(rollouts=0, failures=0, total=len(tasks) * pool.config.rollouts_per_query)

    def count(rollout: ScoredTrajectory) -> None:
        nonlocal progress
        on_rollout(rollout)
        failed = rollout.trajectory.status is Status.INFRASTRUCTURE_FAILURE
        progress = dataclasses.replace(
            progress, rollouts=progress.rollouts + 1, failures=progress.failures + int(failed)
        )
        on_progress(progress)

    running = {
        asyncio.create_task(
            run_group(task, pool, score, step=step, policy_version=policy_version, credit=credit, on_rollout=count)
        )
        for task in tasks
    }
    finished: set[asyncio.Task[Group]] = set()
    due = sorted(task.index for task in tasks)  # indices not yet handed on
    arrived: dict[int, Group] = {}
    try:
        while due:
            finished, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            arrived.update((group.index, group) for group in [task.result() for task in finished])
            while ready := _next(due, arrived, in_order=pool.config.deterministic):
                due.remove(ready.index)
                on_group(ready)
                yield ready
    finally:
        await cancel_all(running | finished)


def _next(due: list[int], arrived: dict[int, Group], in_order: bool) -> Group | None:
    """Takes the group to hand on next out of `arrived`: that of the lowest index due, or the first that is there."""
    candidates = due[:1] if in_order else list(arrived)[:1]
    return arrived.pop(candidates[0], None) if candidates else None
