"""Many episodes at a time: a bound, a deadline for each, and no failure of one that another would notice.

A bad rollout is data, not a crash: whatever goes wrong inside an episode ends that episode as an infrastructure failure
with a cause. Only what must stop the run passes through: an RwError, such as a Worker that refuses us for good or a
ledger that cannot be written, and cancellation.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging

import numpy as np

from rw.errors import ConfigError, FailureCause, RwError
from rw.protocol.dialogue import RouterProtocol
from rw.rollout.episode import Episode, Feedback
from rw.rollout.timeline import EpisodeTimes, Timeline
from rw.sampler.interface import Sampler
from rw.types import Mode, Query, Status, Trajectory
from rw.workers.interface import WorkerClient

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class PoolConfig:
    """How the rollouts of a step are run.

    The paper runs 32 queries × 8 rollouts a step. In deterministic mode no wall clock may decide what happens, so there
    the deadline does not apply (those of Worker calls are their client's), and groups are handed on in the order of
    their indices.
    """

    rollouts_per_query: int = 8
    concurrency: int = 256
    deadline_s: float | None = 1800.0
    deterministic: bool = False

    def __post_init__(self):
        for name in ("rollouts_per_query", "concurrency"):
            if getattr(self, name) < 1:
                raise ConfigError(f"rollout.{name} is {getattr(self, name)}; it must be at least 1")
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise ConfigError(f"rollout.deadline_s is {self.deadline_s}; it must be above 0, or None for no deadline")


class EpisodePool:
    """Runs episodes with one protocol, sampler and Worker client, at most `config.concurrency` at a time."""

    def __init__(
        self,
        protocol: RouterProtocol,
        sampler: Sampler,
        workers: WorkerClient,
        config: PoolConfig,
        feedback: Feedback | None = None,
        timeline: Timeline | None = None,
    ):
        """`timeline`: of the step, in which `run_group` has its episodes note when they did what."""
        self.protocol = protocol
        self.feedback = feedback
        self.sampler = sampler
        self.workers = workers
        self.config = config
        self.timeline = timeline or Timeline()
        self._deadline_s = None if config.deterministic else config.deadline_s
        self._places = asyncio.Semaphore(config.concurrency)  # first come, first served
        self._starting = asyncio.Lock()
        self._faults_logged: set[tuple] = set()

    async def run(
        self,
        query: Query,
        group_index: int,
        rollout_index: int,
        forced_mode: Mode | None,
        *,
        step: int,
        policy_version: int,
        times: EpisodeTimes | None = None,
    ) -> Trajectory:
        """Waits for a place and runs one episode; always a trajectory, but for RwError and cancellation.

        The deadline runs from the episode's own start. The tokens and calls of a stopped episode are kept: they were
        paid for, and lengths are reported before exclusions.
        """
        async with self._places:
            # An episode begins by tokenizing; a whole batch that began at once would hold up the loop for seconds, and
            # with it the answers to the calls of others.
            async with self._starting:
                await asyncio.sleep(0)
            times = times or EpisodeTimes(query.id, rollout_index)
            times.begin()
            episode = None
            try:
                async with asyncio.timeout(self._deadline_s) as deadline:
                    episode = Episode(
                        query,
                        group_index,
                        rollout_index,
                        forced_mode,
                        step=step,
                        protocol=self.protocol,
                        sampler=self.sampler,
                        workers=self.workers,
                        policy_version=policy_version,
                        feedback=self.feedback,
                        times=times,
                    )
                    return await episode.run()
            except RwError:
                raise
            except Exception as error:
                if isinstance(error, TimeoutError) and deadline.expired():
                    cause = FailureCause.DEADLINE
                    log.warning("rollout %d of %s stopped after %g s", rollout_index, query.id, self._deadline_s)
                else:
                    cause = FailureCause.INTERNAL
                    self._log_fault(error, f"rollout {rollout_index} of {query.id}")
        if episode is None:
            return _unstarted(query, rollout_index, forced_mode, cause, policy_version)
        return episode.failed(cause)

    def _log_fault(self, error: Exception, where: str) -> None:
        """A fault of ours: its traceback the first time, one line when it returns, as it may in every rollout."""
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        fault = (type(error), place and place.tb_frame.f_code, place and place.tb_lineno)
        first = fault not in self._faults_logged
        self._faults_logged.add(fault)
        log.error("%s failed: %s: %s", where, type(error).__name__, error, exc_info=error if first else None)


def _unstarted(
    query: Query, rollout_index: int, forced_mode: Mode | None, cause: FailureCause, policy_version: int
) -> Trajectory:
    """The record of a rollout that failed before its first token."""
    return Trajectory(
        query_id=query.id,
        rollout_index=rollout_index,
        mode=forced_mode,
        forced=forced_mode is not None,
        tokens=np.zeros(0, np.int32),
        segments=np.zeros(0, np.uint8),
        sampled_logprobs=np.zeros(0, np.float32),
        prompt_length=0,
        calls=(),
        answer=None,
        status=Status.INFRASTRUCTURE_FAILURE,
        cause=cause.value,
        policy_version=policy_version,
    )
