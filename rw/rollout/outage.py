"""When so much of a batch was lost that it says more about the network than about the router."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from rw.errors import FailureCause, OutageError
from rw.types import Group, Status


def check_no_outage(groups: Sequence[Group], max_lost: float, what: str) -> None:
    """Raises OutageError where more than this share of the rollouts was lost to infrastructure.

    What is left of such a batch is whatever needed the Workers least: to learn from it, or to measure by it, would
    favour the router that calls nobody.
    """
    rollouts = [scored.trajectory for group in groups for scored in group.rollouts]
    lost = [trajectory for trajectory in rollouts if trajectory.status is Status.INFRASTRUCTURE_FAILURE]
    if not lost or len(lost) <= max_lost * len(rollouts):
        return
    causes = collections.Counter(trajectory.cause for trajectory in lost).most_common()
    workers = collections.Counter(
        call.worker_id for trajectory in lost for call in trajectory.calls if call.failure is not None
    ).most_common(3)
    by_worker = f"; failed calls by Worker: {_counts(workers)}" if workers else ""
    remedies = []
    if any(cause != FailureCause.SAMPLER_FAULT for cause, _ in causes):
        remedies.append("`rw doctor` tells what is wrong with a Worker")
    if any(cause == FailureCause.SAMPLER_FAULT for cause, _ in causes):
        remedies.append(
            "a sampler_fault is the device's, whose error was said as it came: where memory ran out, begin again with "
            "less of engine.kv_bytes, engine.lengths or engine.slots"
        )
    raise OutageError(
        f"{what}: {len(lost)} of {len(rollouts)} rollouts were lost to infrastructure ({_counts(causes)}{by_worker}), "
        f"over rollout.max_lost={max_lost:g}; nothing was made of them; the same command asks again for what was lost; "
        f"{'; '.join(remedies)}"
    )


def _counts(pairs: Sequence[tuple[str | None, int]]) -> str:
    return ", ".join(f"{name} {count}" for name, count in pairs)
