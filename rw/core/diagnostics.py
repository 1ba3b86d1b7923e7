"""What rewards, advantages and log-probs say of a step: the one place that defines these metrics.

First statistics of groups, on the host in float64 (σ near its gate must not depend on rounding); then of tokens, pure
jax over [B, T] arrays of which only the policy tokens of retained rows are read. Those of trajectories: rw/metrics.py.
V is the set of retained rollouts. Knows no model, no file and no schedule.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from rw.core.losses import LossConfig, importance_ratio, kl_k3, policy_mask, segment_mask
from rw.core.masked import fill, masked_mean
from rw.types import NO_MODE, Advantages, GroupBatch, Mode, Segment, TokenBatch

COMPONENTS = ("task", "eff")
MODE_WORDS = {**{int(mode): mode.word for mode in Mode}, NO_MODE: "none"}
SEGMENT_WORDS = {Segment.MODE: "mode", Segment.INNER: "inner"}


# Groups: host, float64. A quantity with nothing to be measured on is left out, never reported as 0.


def reward_metrics(batch: GroupBatch, domains: Sequence[str]) -> dict[str, float]:
    """Rewards and accuracy over V, before any normalisation; all of it also per mode and per domain.

    `accuracy`: share of V that is correct; what broke the grammar counts as not correct.
    `reward/{task,eff}/{mean,std}`: mean and Bessel-corrected std over the rollouts of V whose reward was measured.
    `…/mode/{mode}` and `…/domain/{domain}`: the same over a part of V; mode `none` broke the grammar in its mode turn.
    `reward/task_eff_corr`: correlation of the two rewards over V.

    Args:
        batch: rewards f64[G, K, 2], NaN where not measured.
        domains: one a group.
    """
    rewards, retained, mode = _host(batch)
    domains = np.asarray(domains, object)
    parts = {"": retained}
    parts |= {f"/mode/{word}": retained & (mode == code) for code, word in MODE_WORDS.items()}
    parts |= {f"/domain/{name}": retained & (domains == name)[:, None] for name in sorted(set(domains))}
    result = {}
    for suffix, part in parts.items():
        if part.any():
            result[f"accuracy{suffix}"] = float(np.mean(rewards[part][:, 0] == 1))
        for c, component in enumerate(COMPONENTS):
            values = rewards[part][:, c]
            result |= _mean_std(f"reward/{component}", values[~np.isnan(values)], suffix)
    task, efficiency = rewards[retained & ~np.isnan(rewards).any(-1)].T
    if task.size > 1 and np.ptp(task) > 0 and np.ptp(efficiency) > 0:
        result["reward/task_eff_corr"] = float(np.corrcoef(task, efficiency)[0, 1])
    return result


def group_metrics(batch: GroupBatch, std_gate: float = 1e-4) -> dict[str, float]:
    """How much signal the groups hold, asked of each component by itself: a sum would hide one that is alive.

    `group/zero_var_frac/{task,eff,both}`: share of the groups with a retained rollout whose σ_c is below the gate, or
    has no meaning since |V| = 1. Groups with an unmeasured cost have no σ of efficiency: left out of `eff` and `both`.
    `group/size_hist/{n}`: number of groups with |V| = n.
    `group/modes_per_group`: mean number of modes in V of a free group; `group/multi_mode_frac`: share of free groups
    with two or more, without which A_mode is 0.
    """
    rewards, retained, mode = _host(batch)
    sizes = retained.sum(axis=1)
    result = {f"group/size_hist/{n}": float(np.sum(sizes == n)) for n in range(retained.shape[1] + 1)}
    gated = {name: [] for name in (*COMPONENTS, "both")}
    modes = []
    for g in np.flatnonzero(sizes):
        members = rewards[g][retained[g]]
        std = members.std(axis=0, ddof=1) if len(members) > 1 else np.zeros(2)
        gated["task"].append(std[0] < std_gate)
        if not np.isnan(members).any():
            gated["eff"].append(std[1] < std_gate)
            gated["both"].append(np.all(std < std_gate))
        if not batch.forced[g]:
            modes.append(len(set(mode[g][retained[g]].tolist()) - {NO_MODE}))
    result |= {f"group/zero_var_frac/{name}": float(np.mean(flags)) for name, flags in gated.items() if flags}
    if modes:
        result["group/modes_per_group"] = float(np.mean(modes))
        result["group/multi_mode_frac"] = float(np.mean(np.array(modes) >= 2))
    return result


def advantage_metrics(batch: GroupBatch, advantages: Advantages) -> dict[str, float]:
    """Mixed advantages as tokens get them: mode over the free rollouts of V, inner over all of V.

    `adv/{mode,inner}/{mean,std,absmax}`; std is Bessel-corrected. `adv/inner_zero_frac`: share of V alone in its mode.
    `adv/eff_of_dearest_correct`: mean over groups of the efficiency component of A_GRPO of the dearest correct
    rollout; above 0 it says that being correct outweighs any cost.
    """
    rewards, retained, mode = _host(batch)
    forced = np.asarray(batch.forced, bool)[:, None]
    values = {
        "mode": np.asarray(advantages.mode, np.float64)[retained & ~forced],
        "inner": np.where(forced, advantages.grpo, advantages.inner).astype(np.float64)[retained],
    }
    result = {}
    for name, array in values.items():
        result |= _mean_std(f"adv/{name}", array)
        if array.size:
            result[f"adv/{name}/absmax"] = float(np.abs(array).max())
    if retained.any():
        peers = retained[:, :, None] & retained[:, None, :] & (mode[:, :, None] == mode[:, None, :])
        result["adv/inner_zero_frac"] = float(np.mean(peers.sum(axis=-1)[retained] == 1))
    scores = np.where(retained & (rewards[..., 0] == 1), rewards[..., 1], np.nan)
    priced = np.flatnonzero(~np.isnan(scores).all(axis=1))
    if advantages.components is not None and priced.size:
        dearest = np.nanargmin(scores[priced], axis=1)
        result["adv/eff_of_dearest_correct"] = float(np.mean(np.asarray(advantages.components[0])[priced, dearest, 1]))
    return result


def _host(batch: GroupBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """rewards f64[G, K, 2], retained bool[G, K], mode i32[G, K]."""
    return np.asarray(batch.rewards, np.float64), np.asarray(batch.retained, bool), np.asarray(batch.mode)


def _mean_std(name: str, values: np.ndarray, suffix: str = "") -> dict[str, float]:
    if not values.size:
        return {}
    std = float(values.std(ddof=1)) if values.size > 1 else 0.0
    return {f"{name}/mean{suffix}": float(values.mean()), f"{name}/std{suffix}": std}


# Tokens: pure jax, the same under jit. Over no token a mean is 0, and a ratio 1, that of a policy to itself.


def policy_metrics(logprobs, batch: TokenBatch, config: LossConfig, entropy=None, sampled_logprobs=None):
    """All token metrics below, f32 scalars by name; those of `entropy` and the sampler where these arrays are given.

    Args:
        logprobs: f32[B, T], log π_θ; `batch` holds π_old, π_ref, advantages, segments and retained rows.
        entropy: f32[B, T] in nats, of the whole distribution at the sampling temperature.
        sampled_logprobs: f32[B, T], as the sampler recorded them.
    """
    mask = policy_mask(batch.segments, batch.retained)
    result = {
        **reference_metrics(logprobs, batch),
        **ratio_metrics(logprobs, batch.old_logprobs, mask),
        **clip_metrics(logprobs, batch, config),
    }
    if entropy is not None:
        result |= entropy_metrics(entropy, batch)
    if sampled_logprobs is not None:
        result |= sampler_metrics(logprobs, sampled_logprobs, mask)
    return result


def entropy_metrics(entropy, batch: TokenBatch):
    """`policy/entropy/{mode,inner}`: mean entropy in nats at the sampling temperature, per segment."""
    return _segment_means("policy/entropy", entropy, batch)


def reference_metrics(logprobs, batch: TokenBatch):
    """`policy/kl_ref/{mode,inner}`: mean k3 to the reference, per segment; `policy/kl_max`: its largest token."""
    mask = policy_mask(batch.segments, batch.retained)
    kl = kl_k3(fill(logprobs, mask), fill(batch.reference_logprobs, mask))
    return {**_segment_means("policy/kl_ref", kl, batch), "policy/kl_max": jnp.max(fill(kl, mask), initial=0)}


def ratio_metrics(logprobs, old_logprobs, mask):
    """π_θ / π_old over the tokens of `mask`. With one update a batch it is 1 before it: an alarm, not a curve.

    `policy/ratio/{mean,min,max,p99}`; `policy/approx_kl_old/{k1,k3}`: mean of -log r, and of r - 1 - log r.
    """
    logprobs, old_logprobs = fill(logprobs, mask), fill(old_logprobs, mask)
    ratio = importance_ratio(logprobs, old_logprobs)
    return {
        "policy/ratio/mean": jnp.where(jnp.any(mask), masked_mean(ratio, mask), 1),
        "policy/ratio/min": _or_one(jnp.min(fill(ratio, mask, jnp.inf), initial=jnp.inf), mask),
        "policy/ratio/max": _or_one(jnp.max(fill(ratio, mask, -jnp.inf), initial=-jnp.inf), mask),
        "policy/ratio/p99": _or_one(_quantile(ratio, mask, 0.99), mask),
        "policy/approx_kl_old/k1": masked_mean(old_logprobs - logprobs, mask),
        "policy/approx_kl_old/k3": masked_mean(kl_k3(old_logprobs, logprobs), mask),
    }


def clip_metrics(logprobs, batch: TokenBatch, config: LossConfig):
    """Share of policy tokens whose loss a clip holds, so that they carry no policy gradient; the sign of A decides.

    `policy/clip_frac/low`: r < 1 - η₋ and A < 0. `high`: r > 1 + η₊ and A > 0. `dual`: r > c and A < 0.
    """
    mask = policy_mask(batch.segments, batch.retained)
    ratio = importance_ratio(fill(logprobs, mask), fill(batch.old_logprobs, mask))
    worse, better = batch.advantage < 0, batch.advantage > 0
    clipped = {
        "low": worse & (ratio < 1 - config.clip_low),
        "high": better & (ratio > 1 + config.clip_high),
        "dual": worse & (ratio > config.dual_clip),
    }
    return {f"policy/clip_frac/{name}": masked_mean(flags.astype(ratio.dtype), mask) for name, flags in clipped.items()}


def sampler_metrics(logprobs, sampled_logprobs, mask):
    """Trainer against sampler on the same ids, over the tokens of `mask`; per token, since a mean hides the few.

    `sampler/logp_diff/{mean_abs,p95,max}`: |log π_θ - log π_sampler|. `sampler/ratio_outside_10pct`: share of tokens
    whose ratio π_θ / π_sampler leaves [0.9, 1.1].
    """
    difference = fill(logprobs, mask) - fill(sampled_logprobs, mask)
    absolute = jnp.abs(difference)
    outside = jnp.abs(jnp.expm1(difference)) > 0.1
    return {
        "sampler/logp_diff/mean_abs": masked_mean(absolute, mask),
        "sampler/logp_diff/p95": jnp.where(jnp.any(mask), _quantile(absolute, mask, 0.95), 0),
        "sampler/logp_diff/max": jnp.max(fill(absolute, mask), initial=0),
        "sampler/ratio_outside_10pct": masked_mean(outside.astype(absolute.dtype), mask),
    }


def _segment_means(name: str, values, batch: TokenBatch):
    return {
        f"{name}/{word}": masked_mean(values, segment_mask(batch.segments, batch.retained, segment))
        for segment, word in SEGMENT_WORDS.items()
    }


def _quantile(values, mask, q):
    """Quantile by linear interpolation over the slots of `mask`; NaN for none."""
    return jnp.nanquantile(jnp.where(mask, values, jnp.nan), q)


def _or_one(value, mask):
    return jnp.where(jnp.any(mask), value, 1)
