"""The token metrics of a whole batch from its micro-batches. What they are is defined in core/diagnostics.py."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from rw.core.diagnostics import SEGMENT_WORDS, policy_metrics
from rw.core.losses import LossConfig, policy_mask
from rw.types import TokenBatch

SMALLEST_WIDTH = 4096


class TokenRecord(NamedTuple):
    """Policy tokens of a micro-batch with what the model said of them, each array [B, P]."""

    policy: TokenBatch
    logprobs: Any  # f32, log π_θ
    sampled_logprobs: Any  # f32, as the sampler reported them
    entropy: Any  # f32, nats, at the sampling temperature


def of_tokens(records: Sequence[TokenRecord], config: LossConfig) -> dict[str, float]:
    """Entropy, KL, ratios, clip fractions and the sampler's drift over all policy tokens of the batch.

    Means of micro-batches could not give quantiles of the batch, so the tokens are laid in one row. Its width
    is a power of two: the number of tokens changes with every batch, and each new width is a compilation. What has no
    token, or no reference, to be measured on is left out.
    """
    tokens = [_tokens_of(jax.tree.map(np.asarray, record)) for record in records]
    count = sum(len(part["segments"]) for part in tokens)
    if not count:
        return {}
    width = max(SMALLEST_WIDTH, 1 << (count - 1).bit_length())
    joined = {name: np.concatenate([part[name] for part in tokens]) for name in tokens[0]}
    row = {name: np.pad(array, (0, width - count))[None] for name, array in joined.items()}  # of Segment.PAD
    metrics = {name: float(value) for name, value in jax.device_get(_policy_metrics(row, config)).items()}
    absent = [word for segment, word in SEGMENT_WORDS.items() if not np.any(joined["segments"] == segment)]
    unmeasured = {f"policy/{kind}/{word}" for kind in ("entropy", "kl_ref") for word in absent}
    if not config.kl_coefficient:
        unmeasured |= {name for name in metrics if name.startswith("policy/kl_")}
    return {name: value for name, value in metrics.items() if name not in unmeasured}


_FIELDS = ("segments", "advantage", "old_logprobs", "reference_logprobs")


def _tokens_of(record: TokenRecord) -> dict[str, np.ndarray]:
    mask = policy_mask(record.policy.segments, record.policy.retained)
    arrays = {name: getattr(record.policy, name) for name in _FIELDS}
    arrays |= {"logprobs": record.logprobs, "sampled": record.sampled_logprobs, "entropy": record.entropy}
    return {name: array[mask] for name, array in arrays.items()}


@partial(jax.jit, static_argnames="config")
def _policy_metrics(row: dict[str, Any], config: LossConfig) -> dict[str, jax.Array]:
    batch = TokenBatch(tokens=None, positions=None, retained=np.ones(1, bool), **{name: row[name] for name in _FIELDS})
    return policy_metrics(row["logprobs"], batch, config, row["entropy"], row["sampled"])
