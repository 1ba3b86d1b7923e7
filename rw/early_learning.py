"""What is learnt of a batch while its rollouts still go on: the learner's work, lent the sampler's idle device.

Knows no loss and no decoding: the learner makes the work, the engine says when nothing is runnable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from rw.batch_plan import BatchPlan
from rw.errors import ConfigError
from rw.learner.step import Learner
from rw.learner.streaming import StepWork
from rw.sampler.engine import SamplerEngine
from rw.types import Group


def begun_early(learner: Learner, params: Any, plan: BatchPlan, processes: int) -> StepWork | None:
    """The work of this batch that may begin before its last rollout has ended.

    None of several processes: they must run the same programs in the same order, whatever has come to each.
    """
    if processes > 1:
        return None
    return learner.begin(params, cold_start=plan.cold_start, all_forced=None not in plan.forced_modes)


@contextlib.contextmanager
def lent_while_idle(engine: SamplerEngine, work: StepWork | None) -> Iterator[Callable[[Group], None]]:
    """Lends the device to `work` while no turn is runnable; yields what complete groups are handed to."""

    def add(group: Group) -> None:
        work.add(group)
        engine.wake()

    if work is None:
        yield lambda group: None
        return
    engine.while_idle(work.piece)
    try:
        yield add
    finally:
        engine.while_idle(None)


def check_regime(regime: str, processes: int) -> None:
    """Raises ConfigError where the processes of a job would have to learn from groups in one order."""
    if regime == "stream" and processes > 1:
        raise ConfigError(
            f"regime='stream' is for one process, and there are {processes}: each would learn from other groups at "
            "other times, but all must run the same programs in the same order; set regime='collect'"
        )
