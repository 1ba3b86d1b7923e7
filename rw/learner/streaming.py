"""What a step learns before its last rollout has ended.

Groups are handed over as they are complete, and `piece` computes one micro-batch of what they left to do, whenever the
device has nothing else to do: the reference's log-probs first, and in the regime `stream` then forward and backward
passes. The loss divides by counts of the whole batch, which nobody knows yet, so gradients are summed undivided, apart
for each divisor. Tokens of mode turns, which have a divisor of their own, wait for the end of the step: a pass over
first turns is short.

Knows no advantage function, no optimiser and no engine.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rw.errors import ConfigError
from rw.learner.batch import (
    BatchConfig,
    MicroBatch,
    Row,
    held_tokens,
    layout,
    micro_batch,
    policy_places,
    policy_positions,
)
from rw.types import Group, GroupBatch, Segment

REGIMES = ("collect", "stream")
RowKey = tuple[int, int]  # (group index, rollout's place in its group)


class Portion(NamedTuple):
    """Rows of one micro-batch."""

    keys: Sequence[RowKey]
    rows: Sequence[Row]
    part: Sequence[tuple[int, ...]]  # indices into `rows`, as of `layout`

    def micro_batch(self, config: BatchConfig, references: Mapping[RowKey, np.ndarray]) -> MicroBatch:
        """Padded numpy arrays; `references` are the reference's log-probs of each row's policy tokens, or none."""
        micro = micro_batch(self.rows, self.part, config)
        if not references:
            return micro
        filled = np.zeros(micro.policy.reference_logprobs.shape, next(iter(references.values())).dtype)
        for index, place in policy_places(self.rows, self.part):
            filled[place] = references[self.keys[index]]
        return micro._replace(policy=micro.policy._replace(reference_logprobs=filled))

    def split(self, values: np.ndarray) -> Iterator[tuple[RowKey, np.ndarray]]:
        """Each row's part of an array [B, P]."""
        for index, place in policy_places(self.rows, self.part):
            yield self.keys[index], values[place]


class RowQueue:
    """Rows that wait for a micro-batch to be full of them.

    In order: which rows share one depends on the order of `add` alone, not on when they are taken. Otherwise the
    longest are taken first, beside others of like length, which pads least.
    """

    def __init__(self, config: BatchConfig, in_order: bool):
        self._config, self._in_order = config, in_order
        self._waiting: dict[RowKey, Row] = {}
        self._ready: collections.deque[Portion] = collections.deque()

    def add(self, rows: Mapping[RowKey, Row]) -> None:
        self._waiting.update(rows)
        while self._in_order and (portion := self._cut(rest=False)):
            self._ready.append(portion)

    def take(self, rest: bool) -> Portion | None:
        """The next full micro-batch, or None; with `rest` also what would fill none."""
        return self._ready.popleft() if self._ready else self._cut(rest)

    def _cut(self, rest: bool) -> Portion | None:
        keys, rows = list(self._waiting), list(self._waiting.values())
        parts = layout(rows, self._config, by_length=not self._in_order)
        chosen = [part for part in parts if rest or len(part) == self._config.micro_batch]
        if not chosen:
            return None
        part = chosen[0 if self._in_order else -1]
        taken = [index for row in part for index in row]
        for index in taken:
            del self._waiting[keys[index]]
        place = {index: number for number, index in enumerate(taken)}
        part = [tuple(place[index] for index in row) for row in part]
        return Portion([keys[index] for index in taken], [rows[index] for index in taken], part)


def portions(rows: Mapping[RowKey, Row], config: BatchConfig, *, by_length: bool, one_query=False) -> list[Portion]:
    """All rows in micro-batches, as `batch.layout` has them."""
    keys, values = list(rows), list(rows.values())
    return [Portion(keys, values, part) for part in layout(values, config, by_length=by_length, one_query=one_query)]


def piece_config(config: BatchConfig, ways: int) -> BatchConfig:
    """Shapes of what is done in one piece. Where a row holds several sequences, so many as a whole group, a micro-batch
    is of `ways` rows, the fewest that the devices can split: more would take many groups to fill it."""
    return config if config.packing == "none" else dataclasses.replace(config, micro_batch=ways)


def declaration_config(config: BatchConfig) -> BatchConfig:
    """Shapes of rows that hold the mode turns of a query's rollouts behind their prompt."""
    return dataclasses.replace(config, packing="shared", policy_buckets=config.policy_buckets[:1])


def row_keys(groups: Sequence[Group], batch: GroupBatch) -> list[RowKey]:
    """The keys of `batch.token_rows` of the same groups."""
    return [(group.index, k) for g, group in enumerate(groups) for k in np.flatnonzero(batch.retained[g]).tolist()]


def declarations(
    rows: Mapping[RowKey, Row], references: Mapping[RowKey, np.ndarray]
) -> tuple[dict[RowKey, Row], dict[RowKey, np.ndarray]]:
    """The rows that have mode tokens, up to the last of these and with no other policy token; and what is known of
    their reference."""
    declared, known = {}, {}
    for key, row in sorted(rows.items()):
        at = np.flatnonzero(row.segments == int(Segment.MODE))
        if not at.size:
            continue
        stop = at[-1] + 1
        segments = np.where(row.segments == int(Segment.INNER), int(Segment.OBSERVATION), row.segments)[:stop]
        arrays = {"tokens": row.tokens[:stop], "sampled_logprobs": row.sampled_logprobs[:stop]}
        declared[key] = row._replace(segments=segments.astype(np.uint8), **arrays)
        if key in references:
            known[key] = references[key][np.isin(policy_positions(row.segments), at)]
    return declared, known


def check_same_rows(alone: Mapping[RowKey, Row], rows: Mapping[RowKey, Row], advantage_name: str) -> None:
    """Raises ConfigError where a row's advantage was another when its group was the only one."""
    for key, row in alone.items():
        if not np.allclose(row.advantage[:3], rows[key].advantage[:3], rtol=1e-4, atol=1e-5):
            one, all_ = (" ".join(f"{float(a):.6g}" for a in r.advantage[:3]) for r in (row, rows[key]))
            raise ConfigError(
                f"advantage {advantage_name!r} gave {row.name} {one} when its group was alone and {all_} in the "
                "batch: regime='stream' needs one that looks at each group by itself; set regime='collect'"
            )


class Results(NamedTuple):
    """What was streamed: everything, half of it or nothing."""

    references: Mapping[RowKey, np.ndarray]  # log π_ref of each row's policy tokens
    rows: Mapping[RowKey, Row]  # whose gradients are in `total`
    # The gradient sums, one a divisor; nothing where no row is in them. Who takes them takes them out: they are large.
    total: list[tuple[Any, ...]]
    terms: Sequence[Mapping[str, float]]  # undivided sums of the loss terms, one mapping a micro-batch
    records: Sequence[Any]  # diagnostics.TokenRecord, one a micro-batch
    slots: int  # token slots of these micro-batches, padding included
    held_tokens: int  # that hold a token
    learn_s: float  # that gradients took after the last rollout had ended
    is_whole: bool  # whether `total` has all loss terms of a row, or those of its inner tokens alone


def nothing() -> Results:
    """Of a step in which nothing was begun early."""
    return Results({}, {}, [], (), (), 0, 0, 0.0, is_whole=True)


class StreamedGradient(NamedTuple):
    """How rows are learnt from before the counts are known."""

    zeros: Callable[[], tuple[Any, ...]]
    add: Callable[[tuple[Any, ...], MicroBatch], tuple[tuple[Any, ...], tuple[Any, Any]]]  # (total, (terms, record))
    is_whole: bool  # see Results


class StepWork:
    """One step's work: `add` on any thread, all else on the device thread. Holds the parameters it was begun with."""

    def __init__(
        self,
        prepare: Callable[[Group], Mapping[RowKey, Row]],
        refer: Callable[[MicroBatch], jax.Array] | None,
        gradient: StreamedGradient | None,
        config: BatchConfig,
        ways: int,
        *,
        cold_start: bool,
        in_order: bool,
        scope: Callable[[], contextlib.AbstractContextManager],
    ):
        """
        Args:
            prepare: the rows of a complete group.
            refer: f32[B, P] log-probs of the reference; None where nothing reads them.
            gradient: None where gradients wait for the end of the step.
            ways: over which devices split rows.
            in_order: everything added is computed, and what shares a micro-batch depends on the order of `add` alone.
            scope: within which programs are called.
        """
        self.cold_start = cold_start
        self._prepare, self._refer, self._gradient = prepare, refer, gradient
        self._config, self._piece_config = config, piece_config(config, ways)
        self._in_order, self._scope = in_order, scope
        self._inbox: collections.deque[Group] = collections.deque()
        self._added: set[int] = set()
        self._to_refer, self._to_learn = (RowQueue(self._piece_config, in_order) for _ in range(2))
        self._references: dict[RowKey, np.ndarray] = {}
        self._rows: dict[RowKey, Row] = {}
        self._total: tuple[Any, ...] | None = None
        self._terms: list[Mapping[str, float]] = []
        self._records: list[Any] = []
        self._slots = self._held_tokens = 0
        self._learn_s = 0.0
        self._error: Exception | None = None

    def add(self, group: Group) -> None:
        """A group is complete. Cheap: it is looked at by the next `piece`."""
        self._added.add(group.index)
        self._inbox.append(group)

    def piece(self) -> bool:
        """Computes one micro-batch; False where there is none to compute now. Never raises: `results` does."""
        if self._error is not None:
            return False
        try:
            with self._scope():
                return self._piece(rest=False)
        except Exception as error:  # whatever it was, the step that is finished later must end with it
            self._error = error
            return False

    @property
    def counts(self) -> tuple[int, int]:
        """Rows (whose reference is known, that are learnt from) so far."""
        return len(self._references), len(self._rows)

    def results(self, groups: Sequence[Group], rows: Mapping[RowKey, Row]) -> Results:
        """What there is when the last rollout has ended; in order, all of it. Raises what a piece raised.

        Args:
            groups: all of the step.
            rows: theirs. Where the reference's log-probs of some are known, those of the others are computed.
        """
        learnt_s = self._learn_s
        if self._in_order and self._error is None:
            for group in sorted(groups, key=lambda group: group.index):
                if group.index not in self._added:
                    self.add(group)
            while self._piece(rest=False) or self._piece(rest=True):
                pass
        if self._error is not None:
            raise self._error
        if self._references and (lacking := {key: rows[key] for key in rows if key not in self._references}):
            self._refer_rows(portions(lacking, self._config, by_length=not self._in_order), self._config)
        is_whole = self._gradient is None or self._gradient.is_whole
        total, self._total = [] if self._total is None else [self._total], None
        sums, sizes = (total, self._terms, self._records), (self._slots, self._held_tokens)
        return Results(self._references, self._rows, *sums, *sizes, self._learn_s - learnt_s, is_whole)

    def rows_alone(self, groups: Sequence[Group]) -> dict[RowKey, Row]:
        """The rows of each group as they are when it is the only one."""
        return {key: row for group in groups for key, row in self._prepare(group).items()}

    def _piece(self, rest: bool) -> bool:
        self._unpack()
        if portion := self._to_refer.take(rest):
            self._refer_rows([portion], self._piece_config)
            if self._gradient is not None:
                self._to_learn.add(dict(zip(portion.keys, portion.rows, strict=True)))
        elif self._gradient is not None and (portion := self._to_learn.take(rest)):
            self._learn(portion)
        else:
            return False
        return True

    def _unpack(self) -> None:
        while self._inbox:
            rows = self._prepare(self._inbox.popleft())
            (self._to_learn if self._refer is None else self._to_refer).add(rows)

    def _refer_rows(self, portions: Sequence[Portion], config: BatchConfig) -> None:
        """All are dispatched before the first is waited for."""
        made = [(portion, self._refer(portion.micro_batch(config, {}))) for portion in portions]
        for portion, logprobs in made:
            self._references.update((key, part.copy()) for key, part in portion.split(np.asarray(logprobs)))

    def _learn(self, portion: Portion) -> None:
        started = time.perf_counter()
        micro = portion.micro_batch(self._piece_config, self._references)
        total = self._gradient.zeros() if self._total is None else self._total
        self._total = None  # given away
        self._total, (terms, record) = self._gradient.add(total, micro)
        terms, record = jax.device_get((terms, record))  # waits, so that a piece is over when it returns
        self._terms.append({name: float(value) for name, value in terms.items()})
        self._records.append(record)
        self._rows.update(zip(portion.keys, portion.rows, strict=True))
        self._slots, self._held_tokens = self._slots + micro.tokens.size, self._held_tokens + held_tokens(micro)
        self._learn_s += time.perf_counter() - started
