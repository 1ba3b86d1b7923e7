"""How many rows a micro-batch should have here: candidates are timed on full rows, and the fastest is taken.

Knows no config of a run and no files: what fits into memory is asked of the caller.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from rw.core.losses import LossConfig
from rw.learner.batch import BatchConfig, MicroBatch, Row, micro_batches
from rw.learner.placement import Placement
from rw.learner.policy_loss import LOSS_TERMS, PolicyLoss
from rw.learner.programs import GradientSum
from rw.model.config import ModelConfig
from rw.model.qwen3 import init_params, shapes_of
from rw.sharding import param_shardings
from rw.types import Advantages, Segment, TokenCounts

WORTH = 0.97  # of the best rate: a smaller micro-batch that reaches it pads less and needs less memory
RUNS = 3  # timed, after the one that compiles; the fastest counts, for other programs only slow one down


class Choice(NamedTuple):
    """What was chosen, and the rate of each candidate that was timed."""

    micro_batch: int
    tokens_per_s: dict[int, float]


def candidates(ways: int, rows: int) -> list[int]:
    """Powers of two times `ways`, the devices that share a micro-batch; the last one holds `rows` or is near it."""
    sizes = [ways]
    while 2 * sizes[-1] <= rows:
        sizes.append(2 * sizes[-1])
    return sizes


def choose(sizes: Sequence[int], rate: Callable[[int], float], fits: Callable[[int], bool]) -> Choice:
    """The smallest size that comes near the best rate.

    Larger ones are not tried once one does not fit, or two in a row were slower than the best. The first of the sizes
    is timed whether it fits or not: there is none smaller.

    Args:
        sizes: ascending, at least one.
        rate: tokens per second with a size.
        fits: whether memory suffices for a size.
    """
    rates: dict[int, float] = {}
    for size in sizes:
        if rates and not fits(size):
            break
        rates[size] = rate(size)
        if len(rates) > 2 and max(list(rates.values())[-2:]) < max(rates.values()):
            break
    best = max(rates.values())
    return Choice(next(size for size, found in rates.items() if found >= WORTH * best), rates)


def measure(
    model_config: ModelConfig,
    batch: BatchConfig,
    loss: LossConfig,
    mesh: jax.sharding.Mesh | None,
    sizes: Sequence[int],
    fits: Callable[[int], bool],
) -> Choice:
    """Times gradients of `sizes` rows of the middle length bucket, all of them full, on random parameters."""
    shardings = None if mesh is None else param_shardings(mesh, shapes_of(model_config))
    params = init_params(jax.random.key(0), model_config, shardings)

    def rate(size: int) -> float:
        config = dataclasses.replace(batch, micro_batch=size)
        placement = Placement(mesh, params, config)
        gradient = GradientSum(PolicyLoss(model_config, config, loss, 1.0).divided, placement.shardings)
        with placement.scope():
            micro = full_micro_batch(config, model_config.vocab_size)
            placed, total = placement.batch(micro), gradient.zeros(params)
            counts, weights = TokenCounts(*(np.float32(1),) * 3), np.ones(len(LOSS_TERMS), np.float32)
            seconds = []
            for _ in range(1 + RUNS):
                started = time.perf_counter()
                total, _ = jax.block_until_ready(gradient.add(total, params, placed, counts, weights))
                seconds.append(time.perf_counter() - started)
        return micro.tokens.size / min(seconds[1:])

    return choose(sizes, rate, fits)


def full_micro_batch(config: BatchConfig, vocab_size: int) -> MicroBatch:
    """Rows without padding, each of another query: what was sampled, as much as a policy bucket holds, ends them."""
    length = config.length_buckets[len(config.length_buckets) // 2]
    sampled = min(config.policy_buckets[0], length - 1)
    segments = np.full(length, int(Segment.PROMPT), np.uint8)
    segments[length - sampled :] = int(Segment.INNER)
    tokens = np.random.default_rng(0).integers(0, vocab_size, (config.micro_batch, length)).astype(np.int32)
    one = Advantages(*(np.float32(1),) * 3)
    given = (segments, np.full(length, -1, np.float32), one, False)
    rows = [Row(f"row {number}", str(number), row, *given) for number, row in enumerate(tokens)]
    (micro,) = micro_batches(rows, dataclasses.replace(config, packing="none"), by_length=True)
    return micro
