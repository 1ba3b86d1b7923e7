"""The policy loss of COMET-GRPO and of ordinary GRPO, and its pull to the reference (Eqs. 8-10, 17).

Pure functions of log-probs. No model runs here, and no normaliser is counted on a micro-batch: they are those of the
whole global batch, so losses and gradients of micro-batches, devices and hosts add up to those of the batch.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rw.core.masked import divide, fill, masked_sum
from rw.errors import ConfigError
from rw.types import Segment, TokenBatch, TokenCounts

# Logs of ratios are held here, without gradient above. exp(20) is 4.9e8: beyond it a float32 sum would lose every other
# token, and a ratio that overflows would turn the gradient of a clipped token, 0 · inf, into NaN.
LOG_CEILING = 20.0
REDUCTIONS = ("segment", "global")


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """Coefficients of the loss. `reduction` "segment" is Eq. 9; "global" is Eq. 17, of cold start and plain GRPO."""

    clip_low: float = 0.2  # η₋
    clip_high: float = 0.2  # η₊
    dual_clip: float = 3.0  # c
    kl_coefficient: float = 0.001  # β
    reduction: str = "segment"

    def __post_init__(self):
        if not 0 <= self.clip_low < 1 or not self.clip_high >= 0:
            raise ConfigError(f"clip_low {self.clip_low} must lie in [0, 1), clip_high {self.clip_high} be at least 0")
        if not self.dual_clip > 1:
            raise ConfigError(f"dual_clip is {self.dual_clip}; it must be above 1, or it would bound every token")
        if not self.kl_coefficient >= 0:
            raise ConfigError(f"kl_coefficient is {self.kl_coefficient}; it must be at least 0")
        if self.reduction not in REDUCTIONS:
            raise ConfigError(f"reduction is {self.reduction!r}; it must be one of {REDUCTIONS}")


class LossSums(NamedTuple):
    """Unnormalised sums over the tokens of some rows: sums of micro-batches add up to those of the batch."""

    mode: Any  # Σ ℓ over S_mode
    inner: Any  # Σ ℓ over S_inner
    kl: Any  # Σ κ over Ω_KL


def segment_mask(segments, retained, segment: Segment):
    """bool[B, T]: tokens of one segment in retained rows."""
    return (segments == int(segment)) & retained[..., None]


def policy_mask(segments, retained):
    """bool[B, T]: the tokens that the router sampled, in retained rows. S_mode ∪ S_inner, and Ω_KL."""
    return segment_mask(segments, retained, Segment.MODE) | segment_mask(segments, retained, Segment.INNER)


def count_tokens(segments, retained) -> TokenCounts:
    """N_mode, N_inner, N_KL of host arrays, f64. Tokens of gated groups count, those of excluded rollouts do not."""
    segments, retained = np.asarray(segments), np.asarray(retained, bool)
    mode, inner = (
        np.float64(np.count_nonzero(segment_mask(segments, retained, segment)))
        for segment in (Segment.MODE, Segment.INNER)
    )
    return TokenCounts(mode=mode, inner=inner, kl=mode + inner)


def hold(values, ceiling=LOG_CEILING):
    """`values` held at `ceiling`, without gradient above. NaN stays NaN: a broken step must be seen, not hidden."""
    return jnp.where(values > ceiling, jnp.asarray(ceiling, values.dtype), values)


def importance_ratio(logprobs, old_logprobs):
    """r = π_θ / π_old of each sampled token, held at exp(20); both clips act long before. RouteWeaver, Eq. 8."""
    return jnp.exp(hold(logprobs - old_logprobs))


@jax.named_scope("policy_gradient")
def clipped_token_loss(ratio, advantage, clip_low, clip_high, dual_clip):
    """ℓ(A) = -min[rA, clip(r, 1-η₋, 1+η₊) A], and for A < 0 at most -cA. RouteWeaver, Eq. 8 and Dual clipping."""
    clipped_ratio = jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
    loss = -jnp.minimum(ratio * advantage, clipped_ratio * advantage)
    return jnp.where(advantage < 0, jnp.minimum(loss, -dual_clip * advantage), loss)


@jax.named_scope("kl")
def kl_k3(logprobs, reference_logprobs):
    """κ = exp(d) - d - 1 with d = log π_ref - log π_θ: the k3 estimate of the KL divergence. RouteWeaver, Eq. 10.

    The paper does not say what bounds it; we hold d at 20, because otherwise one token could overflow the batch.
    """
    d = hold(reference_logprobs - logprobs)
    return jnp.expm1(d) - d


def loss_sums(logprobs, batch: TokenBatch, config: LossConfig) -> LossSums:
    """The numerators of Eqs. 9, 10 and 17, scalars; only `logprobs` f32[B, T] carries gradient.

    Slots outside the policy tokens of retained rows may hold anything, NaN too, in every array.
    """
    _check_shapes(logprobs, batch)
    mask = policy_mask(batch.segments, batch.retained)
    dtype = jnp.promote_types(jnp.result_type(logprobs), jnp.float32)
    logprobs = fill(jnp.asarray(logprobs, dtype), mask)
    old, reference, advantage = (
        jax.lax.stop_gradient(fill(jnp.asarray(array).astype(dtype), mask))
        for array in (batch.old_logprobs, batch.reference_logprobs, batch.advantage)
    )
    ratio = importance_ratio(logprobs, old)
    loss = clipped_token_loss(ratio, advantage, config.clip_low, config.clip_high, config.dual_clip)
    return LossSums(
        mode=masked_sum(loss, segment_mask(batch.segments, batch.retained, Segment.MODE)),
        inner=masked_sum(loss, segment_mask(batch.segments, batch.retained, Segment.INNER)),
        kl=masked_sum(kl_k3(logprobs, reference), mask),
    )


def normalise_sums(sums: LossSums, counts: TokenCounts, config: LossConfig):
    """L_PG + β L_KL and its terms from sums and global counts. RouteWeaver, Eqs. 9, 10, 17.

    With "segment" each part has its own count (Eq. 9); with "global" both are divided by N_pol (Eq. 17).
    An empty term is 0.

    Returns:
        (loss, {"loss/pg_mode", "loss/pg_inner", "loss/kl"}), the terms each divided by its count, KL without β.
    """
    policy_count = counts.mode + counts.inner
    by_segment = config.reduction == "segment"
    terms = {
        "loss/pg_mode": divide(sums.mode, counts.mode if by_segment else policy_count),
        "loss/pg_inner": divide(sums.inner, counts.inner if by_segment else policy_count),
        "loss/kl": divide(sums.kl, counts.kl),
    }
    loss = terms["loss/pg_mode"] + terms["loss/pg_inner"] + config.kl_coefficient * terms["loss/kl"]
    return loss, terms


@jax.named_scope("loss")
def comet_loss(logprobs, batch: TokenBatch, counts: TokenCounts, config: LossConfig):
    """The training loss without the support term. RouteWeaver, Eqs. 8-10 and 17.

    Args:
        logprobs: f32[B, T], log π_θ of each token given what precedes it; read on policy tokens of retained rows only.
        batch: rows of the batch or of any part of it.
        counts: of the whole global batch, whatever part `batch` is; losses of the parts then sum to the batch's.
    Returns:
        (loss f32[], metrics) with `loss/pg_mode`, `loss/pg_inner`, `loss/kl`. A batch without policy tokens gives 0.
    """
    return normalise_sums(loss_sums(logprobs, batch, config), counts, config)


def _check_shapes(logprobs, batch: TokenBatch) -> None:
    """Raises ValueError unless all token arrays are [B, T] and `retained` is [B]."""
    shape = jnp.shape(logprobs)
    arrays = (batch.segments, batch.advantage, batch.old_logprobs, batch.reference_logprobs)
    if len(shape) != 2 or any(jnp.shape(array) != shape for array in arrays) or jnp.shape(batch.retained) != shape[:1]:
        raise ValueError(
            f"token arrays must be [B, T] and retained [B]; log-probs are {shape}, the rest "
            f"{[jnp.shape(array) for array in arrays]}, retained {jnp.shape(batch.retained)}"
        )
