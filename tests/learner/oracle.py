"""The loss of a batch written once more, the slow way: dense logits [N, T, V], masks from segments, nothing shared with
the learner but the model and the advantages."""

import jax
import jax.numpy as jnp
import numpy as np

from rw.core.advantages import AdvantageConfig, comet, grpo
from rw.learner.batch import group_batch
from rw.model.qwen3 import hidden_states
from rw.types import Segment

TEMPERATURE = 0.8


def dense_logprobs(params, model, tokens, lengths, temperature):
    """f32[N, T]: log-prob of each token given what precedes it, 0 at the first."""
    positions = jnp.where(jnp.arange(tokens.shape[1]) < lengths[:, None], jnp.arange(tokens.shape[1]), -1)
    hidden, _ = hidden_states(params, model, tokens, positions)
    logits = jnp.einsum("ntd,vd->ntv", hidden, params["model.embed_tokens.weight"]) / temperature
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits)[:, :-1], tokens[:, 1:, None], axis=2)[..., 0]
    return jnp.pad(chosen, ((0, 0), (1, 0)))


def dense_arrays(groups, *, efficiency_weight=0.0, cold_start=False, advantage=comet, width=64):
    """tokens, lengths, and the weight of each token in the mode, inner and KL sums, each divided by its count."""
    batch = group_batch(
        groups, reference_cost_usd=0.0070716653, efficiency_weight=efficiency_weight, cold_start=cold_start
    )
    advantages = advantage(batch, AdvantageConfig(efficiency_weight, cold_start))
    size = sum(len(group.rollouts) for group in groups)
    tokens, lengths = np.zeros((size, width), np.int32), np.zeros(size, np.int32)
    in_mode, in_inner, token_advantage = (np.zeros((size, width)) for _ in range(3))
    row = 0
    for g, group in enumerate(groups):
        for k, scored in enumerate(group.rollouts):
            trajectory = scored.trajectory
            n = lengths[row] = len(trajectory.tokens)
            tokens[row, :n] = trajectory.tokens
            if batch.retained[g, k]:
                in_mode[row, :n] = trajectory.segments == Segment.MODE
                in_inner[row, :n] = trajectory.segments == Segment.INNER
            inner = advantages.grpo if group.forced_mode is not None else advantages.inner
            token_advantage[row] = np.where(in_mode[row], advantages.mode[g, k], inner[g, k])
            row += 1
    in_policy = in_mode + in_inner
    counts = (in_mode.sum(), in_inner.sum())
    if cold_start or advantage is grpo:
        counts = (in_policy.sum(), in_policy.sum())
    return {
        "tokens": tokens,
        "lengths": lengths,
        "mode": in_mode * token_advantage / max(counts[0], 1),
        "inner": in_inner * token_advantage / max(counts[1], 1),
        "kl": in_policy / max(in_policy.sum(), 1),
    }


def term_loss(params, model, reference_params, arrays, weights):
    """weights · (mode, inner, kl). At a ratio of 1 no clip acts, so a token's loss is -rA."""
    tokens, lengths = arrays["tokens"], arrays["lengths"]
    logprobs = dense_logprobs(params, model, tokens, lengths, TEMPERATURE)
    reference = dense_logprobs(reference_params, model, tokens, lengths, TEMPERATURE)
    ratio = jnp.exp(logprobs - jax.lax.stop_gradient(logprobs))
    d = reference - logprobs
    mode, inner = -(ratio * arrays["mode"]).sum(), -(ratio * arrays["inner"]).sum()
    return weights[0] * mode + weights[1] * inner + weights[2] * (arrays["kl"] * (jnp.exp(d) - d - 1)).sum()


def support_arrays(groups, mode_candidates, width=24):
    """tokens i32[U, 3, T], lengths and content starts i32[U, 3] of the batch's unique queries."""
    queries = list({group.query.id: group.query for group in groups}.values())
    tokens = np.zeros((len(queries), 3, width), np.int32)
    lengths, starts = np.zeros((len(queries), 3), np.int32), np.zeros((len(queries), 3), np.int32)
    for u, query in enumerate(queries):
        prefix, contents = mode_candidates(query)
        for m, content in enumerate(contents):
            starts[u, m], lengths[u, m] = len(prefix), len(prefix) + len(content)
            tokens[u, m, : lengths[u, m]] = np.concatenate([prefix, content])
    return tokens, lengths, starts


def support_loss(params, model, tokens, lengths, starts, floor=0.05):
    """(1/3) Σ_m max(0, log δ - log p̄_m) over the mean of the softmax of summed log-probs, and p̄."""
    flat = dense_logprobs(params, model, tokens.reshape(-1, tokens.shape[-1]), lengths.reshape(-1), 1.0)
    places = jnp.arange(tokens.shape[-1])
    content = (places >= starts[..., None]) & (places < lengths[..., None])
    scores = jnp.where(content, flat.reshape(tokens.shape), 0).sum(-1)
    mean = jax.nn.softmax(scores, axis=1).mean(0)
    return jnp.maximum(0, jnp.log(floor) - jnp.log(mean + 1e-12)).mean(), mean
