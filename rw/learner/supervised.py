"""Supervised steps for a warm start: cross-entropy on the policy tokens of given trajectories, by the same rows.

Knows no rewards and no groups: which trajectories are worth copying is the caller's choice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rw.core.losses import segment_mask
from rw.core.masked import divide, masked_sum
from rw.errors import ConfigError
from rw.learner.batch import BatchConfig, empty_micro_batch, micro_batches, padding_share, plain_rows, token_counts
from rw.learner.optimizer import Optimizer
from rw.learner.placement import Placement
from rw.learner.programs import (
    GradientSum,
    advance,
    check_not_diverged,
    make_update,
    policy_logprobs,
    say_if_skipped,
)
from rw.model.attention import check_backend
from rw.model.config import ModelConfig
from rw.types import Segment, TokenCounts, TrainState, Trajectory


@dataclasses.dataclass(frozen=True)
class SupervisedConfig:
    """`mode_weight` weighs the tokens of the mode turn against the others; the shares of modes lie in the data."""

    batch: BatchConfig = BatchConfig()
    mode_weight: float = 1.0
    temperature: float = 1.0
    deterministic: bool = False

    def __post_init__(self):
        if not self.mode_weight >= 0 or not self.temperature > 0:
            raise ConfigError(
                f"mode_weight {self.mode_weight} must be at least 0, temperature {self.temperature} must be above 0"
            )


class SupervisedLearner:
    """Computes supervised steps; the state is passed in and given back."""

    def __init__(
        self,
        model_config: ModelConfig,
        optimizer: Optimizer,
        params: Any,
        config: SupervisedConfig,
        mesh: jax.sharding.Mesh | None = None,
    ):
        """`params` only say names and shapes."""
        check_backend(model_config.attention)
        self.config = config
        self.placement = Placement(mesh, params, config.batch)
        self._update = make_update(optimizer)
        chunk = config.batch.logprob_chunk

        def objective(params, micro, counts):
            logprobs, _ = policy_logprobs(params, model_config, micro, config.temperature, chunk)
            segments, retained = micro.policy.segments, micro.policy.retained
            mode = -masked_sum(logprobs, segment_mask(segments, retained, Segment.MODE))
            inner = -masked_sum(logprobs, segment_mask(segments, retained, Segment.INNER))
            weight = config.mode_weight * counts.mode + counts.inner
            return divide(config.mode_weight * mode + inner, weight), (mode, inner)

        self._gradient = GradientSum(objective, self.placement.shardings)

    def step(self, state: TrainState, trajectories: Sequence[Trajectory]) -> tuple[TrainState, dict[str, float]]:
        """One update on the weighted mean of -log π_θ over all policy tokens of the batch.

        Args:
            state: given away; the new one takes its place.
            trajectories: in any order that is a function of the run; forced modes have no mode tokens and teach none.

        Returns:
            (state, metrics: loss/total, and loss/mode and loss/inner in nats a token where there are such tokens).

        Raises:
            TrainingDivergedError: the third non-finite step in a row.
        """
        rows = plain_rows(trajectories)
        counts = token_counts(rows)
        if not counts.kl:
            return advance(state), {"N_mode": 0.0, "N_inner": 0.0}
        total, results = self._gradient.zeros(state.params), []
        with self.placement.scope():
            micros = micro_batches(rows, self.config.batch, by_length=not self.config.deterministic)
            for micro in micros:
                total, result = self._gradient.add(total, state.params, self.placement.batch(micro), counts)
                results.append(result)
            results = jax.device_get(results)
            loss = sum(float(value) for value, _ in results)
            state, update = self._update(state, total, np.float32(loss))
        say_if_skipped(state)
        check_not_diverged(state)
        metrics = {"loss/total": loss, "N_mode": float(counts.mode), "N_inner": float(counts.inner)}
        metrics["data/padding_share"] = padding_share(micros)
        for index, (name, count) in enumerate((("loss/mode", counts.mode), ("loss/inner", counts.inner))):
            if count:
                metrics[name] = float(sum(float(sums[index]) for _, sums in results) / count)
        metrics.update({name: float(value) for name, value in update.items()})
        return state, {**metrics, "nonfinite_skips": float(np.asarray(state.nonfinite_skips)[1])}

    def warm_up(self, state: TrainState) -> None:
        """Compiles every shape that a micro-batch can have; the state is left as it is."""
        total = self._gradient.zeros(state.params)
        nothing = TokenCounts(*(np.float32(0),) * 3)
        with self.placement.scope():
            for length, policy in self.config.batch.shapes():
                micro = self.placement.batch(empty_micro_batch(length, policy, self.config.batch))
                total, _ = self._gradient.add(total, state.params, micro, nothing)
        jax.block_until_ready(total)
