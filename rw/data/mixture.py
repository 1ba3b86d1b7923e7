"""The mixture of data sets that a run trains on: so many questions of each in every batch, in epochs of their own.

Batch b is a pure function of (seed, b, questions, quotas). A run that is continued therefore asks for the batch after
its last trained one and needs no position stored beside it: what a loader had fetched ahead was never trained on. Knows
neither files nor configs.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import grain
import numpy as np

from rw.data.order import Turns, batch_indices
from rw.data.quotas import Quota, check_quotas
from rw.errors import DataError
from rw.types import Query

POOL = "all"  # the name of all questions together, where there are no quotas


class Mixture:
    """Batches of questions by index.

    Args:
        queries: all questions to train on, ids different.
        quotas: how many of each data set a batch holds; a data set without one is not used. Empty: all as one pool.
        batch: questions a batch.

    Raises:
        DataError: a quota whose data set is not there or has too few questions, a data set with two quotas, or quotas
            that do not make up the batch.
    """

    def __init__(self, queries: Sequence[Query], quotas: Sequence[Quota], batch: int, seed: int):
        self.batch_size = batch
        self._seed = _derived(seed, "places in a batch")
        by_name: dict[str, list[Query]] = {}
        for query in queries:
            by_name.setdefault(query.dataset if quotas else POOL, []).append(query)
        if quotas:
            check_quotas(quotas, batch)
        self._parts = [_part(quota, by_name, seed) for quota in quotas or (Quota(POOL, (batch,)),)]

    def __len__(self) -> int:
        return sys.maxsize  # epochs follow one another without end

    def __getitem__(self, data_batch_index: int) -> list[Query]:
        """The questions of batch b; several data sets are shuffled, so that every host's slice has some of each."""
        batch = [
            part.queries[index]
            for part in self._parts
            if part.turns.of(data_batch_index)
            for index in batch_indices(part.seed, data_batch_index, len(part.queries), part.turns.counts)
        ]
        if len(self._parts) == 1:
            return batch
        return [batch[place] for place in np.random.default_rng([self._seed, data_batch_index]).permutation(len(batch))]

    def dataset(self, shard: int = 0, shards: int = 1) -> grain.MapDataset:
        """The batches as grain has them: item b is batch b, however many workers read ahead.

        Args:
            shard: which of `shards` equal slices of every batch is wanted: that of a host.
        """
        if self.batch_size % shards or not 0 <= shard < shards:
            raise DataError(f"shard {shard} of {shards}: a batch of {self.batch_size} has no such equal part")
        whole, part = grain.MapDataset.source(self), self.batch_size // shards
        return whole if shards == 1 else whole.map(lambda batch: batch[shard * part : (shard + 1) * part])

    def passes(self, batches: int) -> dict[str, float]:
        """How often the first `batches` batches pass over each data set; POOL where all are one."""
        return {part.name: part.turns.taken_before(batches) / len(part.queries) for part in self._parts}


class _Part(NamedTuple):
    """A data set of the mixture."""

    name: str
    turns: Turns
    queries: tuple[Query, ...]
    seed: int


def _part(quota: Quota, by_name: Mapping[str, Sequence[Query]], seed: int) -> _Part:
    queries = tuple(by_name.get(quota.dataset, ()))
    if not queries:
        there = ", ".join(sorted(by_name)) or "none"
        raise DataError(f"quota {quota}: there are no questions of that data set to train on; those there: {there}")
    if max(quota.counts) > len(queries):
        raise DataError(f"{quota}: a batch cannot hold so many different ones of {len(queries)} questions")
    if quota.dataset != POOL:  # data sets of one size must not be passed over in one order
        seed = _derived(seed, quota.dataset)
    return _Part(quota.dataset, Turns(quota.counts), queries, seed)


def _derived(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8])
