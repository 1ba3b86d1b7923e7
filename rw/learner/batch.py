"""From finished groups to padded micro-batches, on the host: V and rewards, sequences in rows, token counts.

Shapes come from few buckets so that nothing compiles after warm-up; no number depends on which bucket a row falls into,
nor on which sequences share a row. Knows no model and no optimiser.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rw.core.advantages import token_advantage
from rw.core.losses import count_tokens
from rw.core.rewards import is_retained, trajectory_rewards
from rw.errors import ConfigError, DataError
from rw.learner.packing import arrange, bucket_of
from rw.types import (
    NO_MODE,
    POLICY_SEGMENTS,
    Advantages,
    Group,
    GroupBatch,
    Segment,
    TokenBatch,
    TokenCounts,
    Trajectory,
)

PADDING_POSITION = -1  # attention reads no token at a negative position
NO_SEQUENCE = 0  # of padding in packed rows
PACKINGS = ("none", "packed")


@dataclasses.dataclass(frozen=True)
class BatchConfig:
    """Shapes of a micro-batch. Every pair of a length and a policy bucket that occurs is one compilation."""

    micro_batch: int = 8  # rows of a micro-batch, on all devices together
    packing: str = "none"  # none: one sequence a row | packed: several, which see nothing of each other
    length_buckets: tuple[int, ...] = (1024, 2048, 4096, 8192, 18432)  # T, tokens of a row: at last prompt + response
    policy_buckets: tuple[int, ...] = (128, 512, 2048)  # P, policy tokens of a row; a row with more takes P = T
    logprob_chunk: int = 128  # policy tokens of a row whose logits exist at a time
    old_policy: str = "current"  # π_old: current = π_θ itself, so the ratio is 1; sampler = the sampler's log-probs

    def __post_init__(self):
        for name in ("micro_batch", "logprob_chunk"):
            if getattr(self, name) < 1:
                raise ConfigError(f"batch.{name}={getattr(self, name)} must be at least 1")
        for name in ("length_buckets", "policy_buckets"):
            buckets = getattr(self, name)
            if not buckets or min(buckets) < 1 or list(buckets) != sorted(set(buckets)):
                raise ConfigError(f"batch.{name}={buckets} must be lengths of at least 1 in ascending order")
        for name, legal in (("old_policy", ("current", "sampler")), ("packing", PACKINGS)):
            if getattr(self, name) not in legal:
                raise ConfigError(f"batch.{name}={getattr(self, name)!r} is not one of {', '.join(legal)}")

    def shapes(self) -> list[tuple[int, int]]:
        """All (T, P) that a micro-batch can have."""
        return sorted({(t, min(p, t)) for t in self.length_buckets for p in (*self.policy_buckets, t)})


class Row(NamedTuple):
    """One sequence before padding, with what its tokens weigh."""

    name: str  # for error messages
    tokens: np.ndarray  # i32[T]
    segments: np.ndarray  # u8[T]
    sampled_logprobs: np.ndarray  # f32[T]
    advantage: Advantages  # f32 scalars
    forced: bool


class MicroBatch(NamedTuple):
    """Padded rows: whole sequences for the backbone, and only their policy tokens for the head and the loss.

    It goes to the devices as it is. Which sequence lies where is known on the host alone, by `layout`.
    """

    tokens: Any  # i32[B, T]
    positions: Any  # i32[B, T], 0 on the first token of each sequence, PADDING_POSITION beyond the last
    sequences: Any  # i32[B, T] in packed rows, 1, 2, … along a row and NO_SEQUENCE in padding; None in others
    predictors: Any  # i32[B, P], where the hidden state lies that predicts each policy token; 0 in padding
    policy: TokenBatch  # [B, P]: the policy tokens in order, then padding; old_logprobs are the sampler's


def group_batch(
    groups: Sequence[Group],
    *,
    reference_cost_usd: float,
    efficiency_weight: float,
    cold_start: bool,
    exhausted_is_invalid: bool = False,
    retry_cost: str = "accepted",
) -> GroupBatch:
    """Rewards, modes and V of groups, in the order given.

    A group with fewer rollouts than the largest is filled up outside V. A rollout without a single policy token has
    nothing to be learnt from and is left out of V too.

    Returns:
        numpy: rewards f64[G, K, 2] (NaN where not measured), mode i32[G, K], retained bool[G, K], forced bool[G].
    """
    count = max((len(group.rollouts) for group in groups), default=0)
    rewards = np.full((len(groups), count, 2), np.nan)
    mode = np.full((len(groups), count), NO_MODE, np.int32)
    retained = np.zeros((len(groups), count), bool)
    for g, group in enumerate(groups):
        for k, scored in enumerate(group.rollouts):
            trajectory = scored.trajectory
            rewards[g, k] = trajectory_rewards(scored, reference_cost_usd, exhausted_is_invalid, retry_cost)
            mode[g, k] = NO_MODE if trajectory.mode is None else int(trajectory.mode)
            measured = is_retained(trajectory, efficiency_weight, cold_start)
            retained[g, k] = measured and bool(policy_positions(trajectory.segments).size)
    forced = np.array([group.forced_mode is not None for group in groups], bool)
    return GroupBatch(rewards=rewards, mode=mode, retained=retained, forced=forced)


def policy_positions(segments: np.ndarray) -> np.ndarray:
    """i64[P]: where the router sampled, by segment alone: roles and texts say nothing about who wrote a token."""
    return np.flatnonzero(np.isin(segments, [int(segment) for segment in POLICY_SEGMENTS]))


def token_rows(groups: Sequence[Group], batch: GroupBatch, advantages: Advantages) -> list[Row]:
    """One row for each rollout of V, in the order of groups and rollouts; `batch` and `advantages` are of these groups.

    Raises:
        DataError: arrays of a trajectory differ in length, or a policy token has nothing before it.
    """
    grpo, mode, inner = (np.asarray(a, np.float32) for a in (advantages.grpo, advantages.mode, advantages.inner))
    rows = []
    for g, group in enumerate(groups):
        for k, scored in enumerate(group.rollouts):
            if batch.retained[g, k]:
                advantage = Advantages(grpo=grpo[g, k], mode=mode[g, k], inner=inner[g, k])
                rows.append(_row(scored.trajectory, advantage, group.forced_mode is not None))
    return rows


def plain_rows(trajectories: Sequence[Trajectory]) -> list[Row]:
    """One row a trajectory with no advantage, for supervised training. Raises DataError as `token_rows`."""
    zero = Advantages(grpo=np.float32(0), mode=np.float32(0), inner=np.float32(0))
    return [_row(trajectory, zero, trajectory.forced) for trajectory in trajectories]


def token_counts(rows: Sequence[Row]) -> TokenCounts:
    """N_mode, N_inner, N_KL of all rows of the global batch, which are the rollouts of V."""
    counts = [count_tokens(row.segments[None], np.ones(1, bool)) for row in rows]
    return TokenCounts(*(np.float32(sum(parts)) for parts in zip(*counts, strict=True))) if counts else _NO_TOKENS


def layout(rows: Sequence[Row], config: BatchConfig, *, by_length: bool) -> list[list[tuple[int, ...]]]:
    """For each micro-batch and each of its rows, the indices of the sequences that lie there; a function of lengths.

    Args:
        by_length: put sequences of like length together, which wastes least; otherwise keep their order.

    Raises:
        ConfigError: a sequence is longer than the largest length bucket.
    """
    lengths = [len(row.tokens) for row in rows]
    _check_longest(rows, config)
    packed = config.packing == "packed"
    return arrange(lengths, config.length_buckets, config.micro_batch, packed=packed, by_length=by_length)


def micro_batches(rows: Sequence[Row], config: BatchConfig, *, by_length: bool) -> list[MicroBatch]:
    """Sequences as `layout` places them, in padded micro-batches of numpy arrays, filled up with empty rows."""
    return [micro_batch(rows, part, config) for part in layout(rows, config, by_length=by_length)]


def micro_batch(rows: Sequence[Row], part: Sequence[tuple[int, ...]], config: BatchConfig) -> MicroBatch:
    """One micro-batch of a `layout` of these rows, which need not be all that it was made for."""
    return _pad([[rows[index] for index in row] for row in part], config)


def policy_places(rows: Sequence[Row], part: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, tuple[int, slice]]]:
    """(index of a sequence, where its policy tokens lie in an array [B, P] of that micro-batch) for each of `part`."""
    for b, row in enumerate(part):
        start = 0
        for index in row:
            stop = start + policy_positions(rows[index].segments).size
            yield index, (b, slice(start, stop))
            start = stop


def empty_micro_batch(length: int, policy: int, config: BatchConfig) -> MicroBatch:
    """A micro-batch of padding alone: contributes nothing to any sum, and compiles a shape."""
    return _pad([], config, shape=(length, policy))


def padding_share(rows: Sequence[Row], micros: Sequence[MicroBatch]) -> float:
    """The share of the token slots of at least one micro-batch, made of `rows`, that hold no token of these."""
    return 1 - sum(len(row.tokens) for row in rows) / sum(micro.tokens.size for micro in micros)


_NO_TOKENS = TokenCounts(np.float32(0), np.float32(0), np.float32(0))
_token_advantage = jax.jit(token_advantage)


def _row(trajectory: Trajectory, advantage: Advantages, forced: bool) -> Row:
    name = f"rollout {trajectory.rollout_index} of query {trajectory.query_id}"
    lengths = {len(trajectory.tokens), len(trajectory.segments), len(trajectory.sampled_logprobs)}
    if len(lengths) != 1:
        raise DataError(f"{name}: tokens, segments and log-probs differ in length, {sorted(lengths)}")
    positions = policy_positions(trajectory.segments)
    if positions.size and positions[0] == 0:
        raise DataError(f"{name}: its first token is marked as sampled, but nothing precedes it")
    return Row(name, trajectory.tokens, trajectory.segments, trajectory.sampled_logprobs, advantage, forced)


def _pad(parts: Sequence[Sequence[Row]], config: BatchConfig, shape: tuple[int, int] | None = None) -> MicroBatch:
    """One row for each of `parts`, which are the sequences it holds."""
    length, count = shape or _shape(parts, config)
    size = config.micro_batch
    tokens, sequences = np.zeros((size, length), np.int32), np.full((size, length), NO_SEQUENCE, np.int32)
    places = np.full((size, length), PADDING_POSITION, np.int32)
    predictors, targets = np.zeros((size, count), np.int32), np.zeros((size, count), np.int32)
    target_places = np.full((size, count), PADDING_POSITION, np.int32)
    segments = np.full((size, count), int(Segment.PAD), np.uint8)
    sampled, advantage = np.zeros((size, count), np.float32), np.zeros((3, size, count), np.float32)
    forced, real = np.zeros((size, count), bool), np.zeros(size, bool)
    for b, part in enumerate(parts):
        start = filled = 0
        for number, row in enumerate(part, 1):
            at = policy_positions(row.segments)
            whole, sampled_ones = slice(start, start + len(row.tokens)), slice(filled, filled + at.size)
            tokens[b, whole], sequences[b, whole], places[b, whole] = row.tokens, number, np.arange(len(row.tokens))
            predictors[b, sampled_ones], target_places[b, sampled_ones] = start + at - 1, at
            targets[b, sampled_ones], segments[b, sampled_ones] = row.tokens[at], row.segments[at]
            sampled[b, sampled_ones], forced[b, sampled_ones] = row.sampled_logprobs[at], row.forced
            advantage[:, b, sampled_ones] = np.array(row.advantage[:3], np.float32)[:, None]
            start, filled = whole.stop, sampled_ones.stop
        real[b] = bool(part)
    # A row may hold sequences of several groups, so each token is a row of its own here.
    token_advantages = np.asarray(_token_advantage(Advantages(*advantage), forced, segments[..., None]))[..., 0]
    policy = TokenBatch(
        tokens=targets,
        positions=target_places,
        segments=segments,
        advantage=token_advantages,
        old_logprobs=sampled,
        reference_logprobs=np.zeros((size, count), np.float32),
        retained=real,
    )
    return MicroBatch(tokens, places, sequences if config.packing == "packed" else None, predictors, policy)


def _check_longest(rows: Sequence[Row], config: BatchConfig) -> None:
    longest = max(rows, key=lambda row: len(row.tokens), default=None)
    if longest is not None and len(longest.tokens) > config.length_buckets[-1]:
        raise ConfigError(
            f"{longest.name} has {len(longest.tokens)} tokens, more than the largest of batch.length_buckets "
            f"{config.length_buckets}: add a bucket that holds prompt limit + response budget"
        )


def _shape(parts: Sequence[Sequence[Row]], config: BatchConfig) -> tuple[int, int]:
    """(T, P) of a micro-batch whose rows hold these sequences."""
    length = bucket_of(max(sum(len(row.tokens) for row in part) for part in parts), config.length_buckets)
    count = max(sum(policy_positions(row.segments).size for row in part) for part in parts)
    return length, min(bucket_of(count, config.policy_buckets) or length, length)
