"""From finished groups to padded micro-batches, on the host: V and rewards, sequences in rows, token counts.

Shapes come from few buckets so that nothing compiles after warm-up; no number depends on which bucket a row falls into,
nor on which sequences share a row. Knows no model and no optimiser.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rw.core.advantages import token_advantage
from rw.core.losses import count_tokens
from rw.core.rewards import is_retained, trajectory_rewards
from rw.errors import ConfigError, DataError
from rw.learner.packing import Family, arrange, arrange_families, bucket_of
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
PACKINGS = ("none", "packed", "shared")


@dataclasses.dataclass(frozen=True)
class BatchConfig:
    """Shapes of a micro-batch. Every pair of a length and a policy bucket that occurs is one compilation."""

    micro_batch: int = 8  # rows of a micro-batch, on all devices together; 0: rw train measures which number suits it
    # none: one sequence a row | packed: several, which see nothing of each other | shared: packed, and what the
    # sequences of a query begin with lies in their row once
    packing: str = "none"
    length_buckets: tuple[int, ...] = (1024, 2048, 4096, 8192, 18432)  # T, tokens of a row: at last prompt + response
    policy_buckets: tuple[int, ...] = (128, 512, 2048)  # P, policy tokens of a row; a row with more takes P = T
    logprob_chunk: int = 128  # policy tokens of a row whose logits exist at a time
    old_policy: str = "current"  # π_old: current = π_θ itself, so the ratio is 1; sampler = the sampler's log-probs

    def __post_init__(self):
        for name, least in (("micro_batch", 0), ("logprob_chunk", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"batch.{name}={getattr(self, name)} must be at least {least}")
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
    query_id: str  # sequences of a query begin alike
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
    positions: Any  # i32[B, T], place in the sequence, PADDING_POSITION beyond the last
    sequences: Any  # i32[B, T] in packed rows, 1, 2, … along a row and NO_SEQUENCE in padding; None in others
    # i32[B, T] in shared rows, None in others: of what follows a shared beginning, the number of that beginning, which
    # counts as a sequence; of any other token its sequence.
    prefixes: Any
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


def layout(
    rows: Sequence[Row], config: BatchConfig, *, by_length: bool, one_query: bool = False
) -> list[list[tuple[int, ...]]]:
    """For each micro-batch and each of its rows, the indices of the sequences that lie there.

    A function of lengths and, in shared rows, of what the sequences of a query have in common.

    Args:
        by_length: put sequences of like length together, which wastes least; otherwise keep their order.
        one_query: shared rows hold sequences of one query only, so that few are long.

    Raises:
        ConfigError: a sequence is longer than the largest length bucket.
    """
    lengths = [len(row.tokens) for row in rows]
    _check_longest(rows, config)
    if config.packing != "shared":
        packed = config.packing == "packed"
        return arrange(lengths, config.length_buckets, config.micro_batch, packed=packed, by_length=by_length)
    options = {"packed": not one_query, "by_length": by_length}
    return arrange_families(_families(rows), lengths, config.length_buckets, config.micro_batch, **options)


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


def held_tokens(micro: MicroBatch) -> int:
    """Token slots of a micro-batch on the host that hold a token; what several sequences share is one."""
    return int(np.count_nonzero(micro.positions != PADDING_POSITION))


def padding_share(micros: Sequence[MicroBatch]) -> float:
    """The share of the token slots of at least one micro-batch on the host that hold no token."""
    return 1 - sum(map(held_tokens, micros)) / sum(micro.tokens.size for micro in micros)


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
    arrays = (trajectory.tokens, trajectory.segments, trajectory.sampled_logprobs)
    return Row(name, trajectory.query_id, *arrays, advantage, forced)


def _families(rows: Sequence[Row]) -> list[Family]:
    """The rows by query, in the order of each query's first."""
    members: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        members.setdefault(row.query_id, []).append(index)
    return [Family(_shared_length([rows[index] for index in family]), family) for family in members.values()]


def _shared_length(rows: Sequence[Row]) -> int:
    """How many tokens several rows begin with alike. Policy tokens are never among them: each is learnt from apart."""
    if len(rows) == 1:
        return 0
    ends = ([len(row.tokens), *policy_positions(row.segments)[:1]] for row in rows)
    most = min(map(min, ends))
    beginnings = np.stack([row.tokens[:most] for row in rows])
    differing = np.flatnonzero((beginnings != beginnings[0]).any(axis=0))
    return int(differing[0]) if differing.size else most


def _pad(parts: Sequence[Sequence[Row]], config: BatchConfig, shape: tuple[int, int] | None = None) -> MicroBatch:
    """One row for each of `parts`, which are the sequences it holds."""
    runs = [_runs(part, config) for part in parts]
    length, count = shape or _shape(runs, config)
    tokens, places, sequences, prefixes, predictors = _backbone_arrays(runs, config.micro_batch, (length, count))
    packed, shared = config.packing != "none", config.packing == "shared"
    policy = _policy_arrays(parts, config.micro_batch, count)
    return MicroBatch(tokens, places, sequences if packed else None, prefixes if shared else None, predictors, policy)


def _runs(part: Sequence[Row], config: BatchConfig) -> list[tuple[int, list[Row]]]:
    """The sequences of one row as (shared length, sequences that begin with the same so many tokens), in order."""
    if config.packing != "shared":
        return [(0, [row]) for row in part]
    runs = [list(run) for _, run in itertools.groupby(part, key=lambda row: row.query_id)]
    return [(_shared_length(run), run) for run in runs]


def _backbone_arrays(runs: Sequence[Sequence[tuple[int, list[Row]]]], size: int, shape: tuple[int, int]):
    """(tokens, positions, sequences, prefixes) i32[B, T], predictors i32[B, P]."""
    length, count = shape
    tokens, predictors = np.zeros((size, length), np.int32), np.zeros((size, count), np.int32)
    places = np.full((size, length), PADDING_POSITION, np.int32)
    sequences, prefixes = (np.full((size, length), NO_SEQUENCE, np.int32) for _ in range(2))
    for b, row_runs in enumerate(runs):
        start = filled = number = 0
        for shared, run in row_runs:
            begun, prefix = start, None
            if shared:
                number = prefix = number + 1
                beginning = slice(start, start + shared)
                tokens[b, beginning], places[b, beginning] = run[0].tokens[:shared], np.arange(shared)
                sequences[b, beginning] = prefixes[b, beginning] = prefix
                start = beginning.stop
            for row in run:
                number += 1
                own, at = slice(start, start + len(row.tokens) - shared), policy_positions(row.segments)
                tokens[b, own], places[b, own] = row.tokens[shared:], np.arange(shared, len(row.tokens))
                sequences[b, own], prefixes[b, own] = number, prefix or number
                before = at - 1
                before += np.where(before < shared, begun, start - shared)  # where it lies in the row
                predictors[b, filled : filled + at.size] = before
                start, filled = own.stop, filled + at.size
    return tokens, places, sequences, prefixes, predictors


def _policy_arrays(parts: Sequence[Sequence[Row]], size: int, count: int) -> TokenBatch:
    """The policy tokens of each row's sequences one after the other, then padding."""
    targets, positions = np.zeros((size, count), np.int32), np.full((size, count), PADDING_POSITION, np.int32)
    segments = np.full((size, count), int(Segment.PAD), np.uint8)
    sampled, advantage = np.zeros((size, count), np.float32), np.zeros((3, size, count), np.float32)
    forced = np.zeros((size, count), bool)
    for b, part in enumerate(parts):
        start = 0
        for row in part:
            at = policy_positions(row.segments)
            place = (b, slice(start, start + at.size))
            targets[place], positions[place], segments[place] = row.tokens[at], at, row.segments[at]
            sampled[place], forced[place] = row.sampled_logprobs[at], row.forced
            advantage[:, *place] = np.array(row.advantage[:3], np.float32)[:, None]
            start += at.size
    # A row may hold sequences of several groups, so each token is a row of its own here.
    token_advantages = np.asarray(_token_advantage(Advantages(*advantage), forced, segments[..., None]))[..., 0]
    return TokenBatch(
        tokens=targets,
        positions=positions,
        segments=segments,
        advantage=token_advantages,
        old_logprobs=sampled,
        reference_logprobs=np.zeros((size, count), np.float32),
        retained=np.arange(size) < len(parts),
    )


def _check_longest(rows: Sequence[Row], config: BatchConfig) -> None:
    longest = max(rows, key=lambda row: len(row.tokens), default=None)
    if longest is not None and len(longest.tokens) > config.length_buckets[-1]:
        raise ConfigError(
            f"{longest.name} has {len(longest.tokens)} tokens, more than the largest of batch.length_buckets "
            f"{config.length_buckets}: add a bucket that holds prompt limit + response budget"
        )


def _shape(runs: Sequence[Sequence[tuple[int, list[Row]]]], config: BatchConfig) -> tuple[int, int]:
    """(T, P) of a micro-batch whose rows hold these sequences."""
    used = (sum(len(row.tokens) - n for n, run in part for row in run) + sum(n for n, _ in part) for part in runs)
    sampled = (sum(policy_positions(row.segments).size for _, run in part for row in run) for part in runs)
    length = bucket_of(max(used), config.length_buckets)
    return length, min(bucket_of(max(sampled), config.policy_buckets) or length, length)
