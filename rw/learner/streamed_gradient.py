"""Gradients of rows that are learnt from before the counts of the batch are known: sums that are divided later.

With one divisor for all terms a row's whole gradient is one sum. Otherwise those of its inner tokens, policy loss and
KL, are two; its mode tokens have a third divisor and are left to a pass over first turns. Knows no rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rw.learner.batch import MicroBatch
from rw.learner.placement import Placement
from rw.learner.policy_loss import INNER_TERMS, LOSS_TERMS, PolicyLoss
from rw.learner.programs import GradientSum, whole_copies
from rw.learner.streaming import Results, StreamedGradient
from rw.types import TokenCounts

_UNDIVIDED = TokenCounts(*(np.float32(1),) * 3)


class SplitGradientSum:
    """Sums the gradient of each entry of `objective(params, micro_batch) -> (values f32[n], aux)` by itself.

    One forward pass serves all entries, and one backward pass each: as one batched pass its products of three axes took
    longer on CPU. The sums are at least float32 and their buffers are reused.
    """

    def __init__(self, objective: Callable, count: int, shardings: Any = None):
        options = {} if shardings is None else {"out_shardings": ((shardings,) * count, whole_copies(shardings))}

        def add(total, params, micro):
            values, pull, aux = jax.vjp(lambda p: objective(p, micro), params, has_aux=True)
            parts = [pull(one)[0] for one in jnp.eye(count, dtype=values.dtype)]
            pairs = zip(total, parts, strict=True)
            return tuple(jax.tree.map(lambda s, g: s + g.astype(s.dtype), *pair) for pair in pairs), aux

        self._add = jax.jit(add, donate_argnums=0, **options)

    def add(self, total: tuple[Any, ...], params: Any, micro: MicroBatch) -> tuple[tuple[Any, ...], Any]:
        """(the sums with the micro-batch's gradients added, aux); `total` is given away."""
        return self._add(total, params, micro)


class StreamedSums:
    """The streamed sums of one learner's loss, and what becomes of them when the counts are known."""

    def __init__(self, loss: PolicyLoss, gradient: GradientSum, placement: Placement):
        """`gradient`: of `loss.divided`, which serves where there is one divisor."""
        self._gradient, self._placement = gradient, placement
        self._kl_coefficient, self._is_global = loss.loss.kl_coefficient, loss.loss.reduction == "global"
        self._split = SplitGradientSum(loss.inner_sums, len(INNER_TERMS), placement.shardings)
        whole = {} if placement.shardings is None else {"out_shardings": placement.shardings}
        self._combine = jax.jit(_weighted_sum, donate_argnums=0, **whole)

    def begin(self, params: Any, *, cold_start: bool, all_forced: bool) -> StreamedGradient:
        """Sums of a step that starts from `params`, which are only read."""
        has_one_divisor = cold_start or all_forced or self._is_global
        if self._kl_coefficient and not has_one_divisor:
            return StreamedGradient(
                zeros=lambda: self._zeros(params, len(INNER_TERMS)),
                add=lambda total, micro: self._split.add(total, params, self._placement.batch(micro)),
                is_whole=False,
            )
        weights = np.asarray((1, 1, self._kl_coefficient) if has_one_divisor else (0, 1, 0), np.float32)

        def add(total, micro):
            placed = self._placement.batch(micro)
            summed, (_, aux) = self._gradient.add(total[0], params, placed, _UNDIVIDED, weights)
            return (summed,), aux

        return StreamedGradient(lambda: self._zeros(params, 1), add, is_whole=has_one_divisor)

    def divided(self, done: Results, normalisers: TokenCounts) -> tuple[Any, dict[str, float]]:
        """(gradient of the weighted loss, loss terms) of the rows that were streamed; takes `done.total` out."""
        first, *others = done.total.pop()
        if done.is_whole:
            factors, divisors = (1 / float(normalisers.kl),), (float(normalisers.kl),) * len(LOSS_TERMS)
        else:
            # No inner token at all leaves a sum of 0, whatever it is divided by.
            divisors = (1.0, max(float(normalisers.inner), 1.0), float(normalisers.kl))
            factors = (1 / divisors[1], self._kl_coefficient / divisors[2])[: 1 + len(others)]
        total = self._combine(first, tuple(others), factors)
        summed = LOSS_TERMS if done.is_whole else INNER_TERMS
        sums = {name: sum(terms[name] for terms in done.terms) if name in summed else 0.0 for name in LOSS_TERMS}
        return total, {name: sums[name] / divisor for name, divisor in zip(LOSS_TERMS, divisors, strict=True)}

    def compile(self, params: Any, micros: Sequence[MicroBatch]) -> None:
        """Compiles what placed micro-batches of every shape need, beside the gradient with one divisor."""
        jax.block_until_ready(self._combine(self._gradient.zeros(params), (), (0.0,)))
        if self._kl_coefficient and not self._is_global:
            total = self._zeros(params, len(INNER_TERMS))
            for micro in micros:
                total, _ = self._split.add(total, params, micro)
            jax.block_until_ready(self._combine(total[0], total[1:], (0.0,) * len(total)))

    def _zeros(self, params: Any, count: int) -> tuple[Any, ...]:
        return tuple(self._gradient.zeros(params) for _ in range(count))


def _weighted_sum(first, others, factors):
    return jax.tree.map(
        lambda *leaves: sum(factor * leaf for factor, leaf in zip(factors, leaves, strict=True)), first, *others
    )
