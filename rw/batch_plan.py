"""What is asked in a step: a pure function of a run's config and the number of its data batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rw.core import schedule
from rw.parts import Parts
from rw.types import Mode, Query


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """Data batch b: its queries, their assigned modes (None where the router chooses), and what the loss needs of b."""

    step: int  # b + 1
    data_batch_index: int  # b
    queries: Sequence[Query]
    forced_modes: Sequence[Mode | None]
    forced_ratio: float  # ρ_b
    support_coefficient: float  # λ_b
    cold_start: bool


def plan_batch(parts: Parts, data_batch_index: int) -> BatchPlan:
    """The plan of batch b, a pure function of the config and b."""
    config = parts.config
    bounds, only = config.schedule.bounds, config.schedule.mode
    queries = parts.queries(data_batch_index, config.queries_per_batch)
    assigned = schedule.assign_modes([q.id for q in queries], config.seed, data_batch_index, *bounds)
    coefficient = schedule.support_coefficient(data_batch_index, config.support.coefficient, *bounds)
    return BatchPlan(
        step=data_batch_index + 1,
        data_batch_index=data_batch_index,
        queries=queries,
        forced_modes=assigned if only is None else [only] * len(queries),
        forced_ratio=schedule.forced_ratio(data_batch_index, *bounds) if only is None else 1.0,
        support_coefficient=coefficient if only is None else 0.0,  # there is nothing that could collapse
        cold_start=schedule.is_cold_start(data_batch_index, bounds[0]),
    )
