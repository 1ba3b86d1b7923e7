"""Greedy answers, one rollout a question: how routers are validated, tested and compared.

They take training's episodes, budgets and Workers; only sampling differs. What they earn is in rw/evaluation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rw import progress
from rw.parts import Parts
from rw.sampler.engine import SamplerEngine
from rw.sampler.interface import Sampler
from rw.types import Group, Mode, PublishedWeights, Query


class GreedyRouter:
    """A sampler engine of its own, beside the one that explores; it holds weights and caches only while it answers."""

    def __init__(self, parts: Parts, questions: int):
        """`questions`: the most that are asked in one go. Raises ConfigError where they do not fit the engine."""
        config = parts.config
        self.parts = parts
        own = -(-questions // parts.processes.count)
        self.engine = SamplerEngine(
            parts.codec,
            config.model,
            dataclasses.replace(config.sampling, greedy=True),
            dataclasses.replace(config.engine, deterministic=config.deterministic),
            parts.device,
            config.seed,
            min(config.rollout.concurrency, own),
        )

    async def roll_out(
        self,
        weights: PublishedWeights,
        queries: Sequence[Query],
        label: str,
        scope: str,
        step: int = 0,
        mode: Mode | None = None,
    ) -> list[Group]:
        """A group of one rollout a query, with its mode free, or forced to `mode` or the only one that the run has."""
        mode = self.parts.config.schedule.mode if mode is None else mode
        await self.engine.publish(weights)
        try:
            return await roll_out(self.parts, self.engine, queries, label, scope, step, mode, weights.version)
        finally:
            await self.engine.withdraw()

    async def close(self) -> None:
        """Ends the engine."""
        await self.engine.close()


async def roll_out(
    parts: Parts,
    sampler: Sampler,
    queries: Sequence[Query],
    label: str,
    scope: str,
    step: int = 0,
    mode: Mode | None = None,
    version: int = 0,
) -> list[Group]:
    """A group of one rollout a query, by any sampler.

    Args:
        label: what its calls are booked under, and what people are shown.
        scope: its journal, which is left to the caller.
    """
    with parts.booked_as(label), progress.rollouts(label) as on_progress:
        return await parts.collect(
            sampler,
            queries,
            None if mode is None else [mode] * len(queries),
            scope=scope,
            rollouts_per_query=1,
            step=step,
            policy_version=version,
            on_progress=on_progress,
        )
