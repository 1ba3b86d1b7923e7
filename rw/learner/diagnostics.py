"""What a step says about its tokens and advantages: plain numbers, each over policy tokens of V or over rollouts of V.

A quantity with nothing to be measured on is left out rather than reported as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rw.core.losses import LossConfig, kl_k3, policy_mask
from rw.learner.batch import MicroBatch
from rw.types import Advantages, GroupBatch, Segment

SEGMENT_NAMES = {Segment.MODE: "mode", Segment.INNER: "inner"}


class TokenRecord(NamedTuple):
    """Policy tokens of a micro-batch, each array [B, P]; `mask` says which slots hold one."""

    mask: Any  # bool
    segments: Any  # u8
    logprobs: Any  # f32, log π_θ
    old_logprobs: Any  # f32, log π_old
    sampled_logprobs: Any  # f32, as the sampler reported it
    entropy: Any  # f32, nats, of the whole distribution at the sampling temperature
    kl: Any  # f32, k3 to the reference
    advantage: Any  # f32


def record(micro: MicroBatch, logprobs: jax.Array, old_logprobs: jax.Array, reference: jax.Array, entropy: jax.Array):
    """The record of one micro-batch, inside a compiled program; no gradient flows through it."""
    policy = micro.policy
    made = TokenRecord(
        mask=policy_mask(policy.segments, policy.retained),
        segments=policy.segments,
        logprobs=logprobs,
        old_logprobs=old_logprobs,
        sampled_logprobs=policy.old_logprobs,
        entropy=entropy,
        kl=kl_k3(logprobs, reference),
        advantage=policy.advantage,
    )
    return jax.tree.map(jax.lax.stop_gradient, made)


def of_tokens(records: Sequence[TokenRecord], loss: LossConfig) -> dict[str, float]:
    """Entropy, KL, ratios, clip fractions and the sampler's drift over all policy tokens of the batch."""
    flat = _flatten(records)
    if flat is None or not flat.logprobs.size:
        return {}
    metrics = {}
    for segment, name in SEGMENT_NAMES.items():
        chosen = flat.segments == int(segment)
        if chosen.any():
            metrics[f"policy/entropy/{name}"] = float(flat.entropy[chosen].mean())
            if loss.kl_coefficient:
                metrics[f"policy/kl_ref/{name}"] = float(flat.kl[chosen].mean())
    if loss.kl_coefficient:
        metrics["policy/kl_max"] = float(flat.kl.max())
    return {**metrics, **_ratio_metrics(flat, loss), **_sampler_metrics(flat)}


def of_advantages(batch: GroupBatch, advantages: Advantages) -> dict[str, float]:
    """Mixed advantages as the tokens get them: mode over free rollouts of V, inner over all of V."""
    retained, forced = np.asarray(batch.retained, bool), np.asarray(batch.forced, bool)[:, None]
    mode = np.asarray(advantages.mode)[retained & ~forced]
    inner = np.where(forced, np.asarray(advantages.grpo), np.asarray(advantages.inner))[retained]
    metrics = {}
    for name, values in (("mode", mode), ("inner", inner)):
        if values.size:
            metrics[f"adv/{name}/mean"] = float(values.mean())
            metrics[f"adv/{name}/std"] = float(values.std())
            metrics[f"adv/{name}/absmax"] = float(np.abs(values).max())
    if inner.size:
        peers = retained[:, :, None] & retained[:, None, :] & (batch.mode[:, :, None] == batch.mode[:, None, :])
        metrics["adv/inner_zero_frac"] = float((peers.sum(-1) == 1)[retained].mean())
    return metrics


def _flatten(records: Sequence[TokenRecord]) -> TokenRecord | None:
    """All slots that hold a token, as float64 vectors (segments as they are)."""
    if not records:
        return None
    parts = [[np.asarray(array)[np.asarray(record.mask)] for array in record] for record in records]
    arrays = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return TokenRecord(arrays[0], arrays[1], *(array.astype(np.float64) for array in arrays[2:]))


def _ratio_metrics(flat: TokenRecord, loss: LossConfig) -> dict[str, float]:
    """π_θ / π_old. With one update a batch and π_old = π_θ these are 1 and 0: an alarm, not a curve."""
    log_ratio = flat.logprobs - flat.old_logprobs
    ratio = np.exp(log_ratio)
    worse, better = flat.advantage < 0, flat.advantage > 0
    return {
        "policy/approx_kl_old/k1": float(-log_ratio.mean()),
        "policy/approx_kl_old/k3": float((np.expm1(log_ratio) - log_ratio).mean()),
        "policy/ratio/mean": float(ratio.mean()),
        "policy/ratio/min": float(ratio.min()),
        "policy/ratio/max": float(ratio.max()),
        "policy/ratio/p99": float(np.quantile(ratio, 0.99)),
        "policy/clip_frac/low": float((worse & (ratio < 1 - loss.clip_low)).mean()),
        "policy/clip_frac/high": float((better & (ratio > 1 + loss.clip_high)).mean()),
        "policy/clip_frac/dual": float((worse & (ratio > loss.dual_clip)).mean()),
    }


def _sampler_metrics(flat: TokenRecord) -> dict[str, float]:
    """Learner against sampler on the same tokens, per token: a mean alone hides the few that differ."""
    difference = flat.logprobs - flat.sampled_logprobs
    absolute = np.abs(difference)
    return {
        "sampler/logp_diff/mean_abs": float(absolute.mean()),
        "sampler/logp_diff/p95": float(np.quantile(absolute, 0.95)),
        "sampler/logp_diff/max": float(absolute.max()),
        "sampler/ratio_outside_10pct": float((np.abs(np.expm1(difference)) > 0.1).mean()),
    }
