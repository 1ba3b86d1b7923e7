"""The support term on the model: scores of the candidate declarations and, in a second pass, the term's gradient.

The term is a function of a mean over all queries, so its gradient needs the scores of all before any; its slope in each
score is then a constant of the second pass, whose micro-batches simply add up. (RouteWeaver, Eqs. 12 and 19.)

A query's candidates share a row, in which its prompt is read once: rows for each candidate would read it three times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rw.core.support import support_loss
from rw.learner.batch import BatchConfig, MicroBatch, Row, empty_micro_batch, layout, micro_batch, policy_places
from rw.learner.placement import Placement
from rw.learner.programs import GradientSum, policy_logprobs
from rw.model.config import ModelConfig
from rw.sharding import replicated
from rw.types import Advantages, Group, Mode, Query, Segment

NO_ROW = -1
POLICY_BUCKET = 32  # tokens of all candidates of a query; three words of one token a letter are 18
SCORE_TEMPERATURE = 1.0  # the paper does not say; the scores compare modes, so we leave them unsharpened
_ZERO = Advantages(grpo=np.float32(0), mode=np.float32(0), inner=np.float32(0))

# query -> (prefix i32[T]: prompt and `<mode>`, contents: per mode the tokens of its word)
ModeCandidates = Callable[[Query], tuple[np.ndarray, Sequence[np.ndarray]]]


class Candidates(NamedTuple):
    """The candidates of one query a row, on the device; whose tokens lie where stays on the host."""

    micro: MicroBatch
    row: np.ndarray  # i32[B, P], index into the rows it was made of, NO_ROW in padding


def candidate_rows(groups: Sequence[Group], mode_candidates: ModeCandidates) -> list[Row]:
    """U·M rows, those of a query together in the order of modes: every query once, forced, free or excluded."""
    queries = {group.query.id: group.query for group in groups}
    rows = []
    for query in queries.values():
        prefix, contents = mode_candidates(query)
        for mode, content in zip(Mode, contents, strict=True):
            tokens = np.concatenate([prefix, content]).astype(np.int32)
            segments = np.full(len(tokens), int(Segment.PROMPT), np.uint8)
            segments[len(prefix) :] = int(Segment.MODE)
            name = f"mode {mode.word} of query {query.id}"
            rows.append(Row(name, query.id, tokens, segments, np.zeros(len(tokens), np.float32), _ZERO, False))
    return rows


class SupportTerm:
    """Scores and gradient of the support term for one model."""

    def __init__(
        self, model_config: ModelConfig, batch_config: BatchConfig, support_floor: float, placement: Placement
    ):
        self._config = dataclasses.replace(batch_config, packing="shared", policy_buckets=(POLICY_BUCKET,))
        self._floor, self._placement = support_floor, placement

        def logprobs(params, micro):
            return policy_logprobs(params, model_config, micro, SCORE_TEMPERATURE, batch_config.logprob_chunk)[0]

        def linear(params, micro, slope, coefficient):
            return coefficient * jnp.sum(slope * logprobs(params, micro)), None

        # Every host reads the scores of all rows, wherever they were computed.
        whole = {} if placement.mesh is None else {"out_shardings": replicated(placement.mesh)}
        self._logprobs = jax.jit(logprobs, **whole)
        self._gradient = GradientSum(linear, placement.shardings)

    def micro_batches(self, rows: Sequence[Row], by_length: bool) -> list[Candidates]:
        """The candidate rows, on the device."""
        return [
            self._candidates(rows, part)
            for part in layout(rows, self._config, by_length=by_length, one_query=True)  # so that their shapes are few
        ]

    def _candidates(self, rows: Sequence[Row], part: Sequence[tuple[int, ...]]) -> Candidates:
        micro = micro_batch(rows, part, self._config)
        row = np.full(micro.predictors.shape, NO_ROW, np.int32)
        for index, place in policy_places(rows, part):
            row[place] = index
        return Candidates(self._placement.batch(micro), row)

    def scores(self, params: Any, micros: Sequence[Candidates], count: int) -> np.ndarray:
        """f32[U, M]: summed log-probs of each declaration's content; `count` is U·M."""
        sums = np.zeros(count)
        for row, logprobs in [(row, self._logprobs(params, micro)) for micro, row in micros]:
            np.add.at(sums, row[row != NO_ROW], np.asarray(logprobs)[row != NO_ROW])
        dtype = np.float64 if jax.config.jax_enable_x64 else np.float32
        return sums.astype(dtype).reshape(-1, len(Mode))

    def loss_and_slope(self, scores: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """(L_support, p̄ f32[M], ∂L_support/∂scores f32[U, M])."""
        (loss, mode_support), slope = _loss_and_slope(scores, self._floor)
        return float(loss), np.asarray(mode_support), np.asarray(slope)

    def add_gradient(
        self, total: Any, params: Any, micros: Sequence[Candidates], slope: np.ndarray, coefficient: float
    ) -> Any:
        """`total` plus coefficient times the term's gradient. Without any slope, the usual case, no pass is run."""
        if not slope.any():
            return total
        flat = slope.reshape(-1)
        for micro, row in micros:
            weights = np.where(row == NO_ROW, 0, flat[row]).astype(flat.dtype)
            total, _ = self._gradient.add(total, params, micro, self._placement.batch(weights), np.float32(coefficient))
        return total

    def compile(self, params: Any, micro: MicroBatch, total: Any) -> Any:
        """Compiles both passes for rows as long as those of `micro`; `total` is given back unchanged in value."""
        length = micro.tokens.shape[1]
        policy = min(POLICY_BUCKET, length)
        micro = self._placement.batch(empty_micro_batch(length, policy, self._config))
        self._logprobs(params, micro).block_until_ready()
        weights = self._placement.batch(np.zeros((self._config.micro_batch, policy), np.float32))
        return self._gradient.add(total, params, micro, weights, np.float32(0))[0]


@jax.jit
def _loss_and_slope(scores, support_floor):
    return jax.value_and_grad(support_loss, has_aux=True)(scores, support_floor)
