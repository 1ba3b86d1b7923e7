"""The compiled parts that every learner shares: log-probs of policy tokens, summed gradients, one optimiser update.

Knows no loss by name and no groups: an objective is a function passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import logging

from rw.errors import TrainingDivergedError
from rw.learner.batch import MicroBatch
from rw.learner.optimizer import Optimizer
from rw.model.config import ModelConfig
from rw.model.logprobs import token_logprobs
from rw.model.qwen3 import hidden_states
from rw.sharding import replicated
from rw.types import TrainState

MAX_NONFINITE_IN_A_ROW = 3


def policy_logprobs(params: Any, model_config: ModelConfig, micro: MicroBatch, temperature: float, chunk: int):
    """(log-probs, entropies), each f32[B, P], of the policy tokens; finite but without meaning in padding.

    The head runs on policy tokens only: what Workers wrote is most of a row, and its logits are never needed.
    """
    options = {"segment_mask": micro.sequences, "prefixes": micro.prefixes, "places": micro.predictors}
    before, _ = hidden_states(params, model_config, micro.tokens, micro.positions, **options)  # [B, P, D]
    return token_logprobs(params, model_config, before, micro.policy.tokens, temperature, chunk, with_entropy=True)


class GradientSum:
    """Sums gradients of `objective(params, micro_batch, *arguments) -> (value, aux)` over micro-batches.

    The sum is at least float32 and its buffers are reused. Objectives divide by counts of the whole batch, so that the
    sum over all micro-batches is the gradient of the batch.
    """

    def __init__(self, objective: Callable, shardings: Any = None):
        self._shardings = shardings
        options = {} if shardings is None else {"out_shardings": (shardings, whole_copies(shardings))}

        def add(total, params, micro, *arguments):
            (value, aux), gradient = jax.value_and_grad(objective, has_aux=True)(params, micro, *arguments)
            return jax.tree.map(lambda s, g: s + g.astype(s.dtype), total, gradient), (value, aux)

        self._add = jax.jit(add, donate_argnums=0, **options)

    def zeros(self, params: Any) -> Any:
        """A gradient tree of zeros, lying as the parameters do."""
        return jax.tree.map(lambda leaf: jnp.zeros_like(leaf, jnp.promote_types(leaf.dtype, jnp.float32)), params)

    def add(self, total: Any, params: Any, micro: MicroBatch, *arguments: Any) -> tuple[Any, tuple[Any, Any]]:
        """(total with the micro-batch's gradient added, (value, aux)); `total` is given away."""
        return self._add(total, params, micro, *arguments)


def whole_copies(shardings: Any) -> jax.sharding.Sharding:
    """For what the host reads of a result: no process of several could read the parts that others hold."""
    return replicated(jax.tree.leaves(shardings)[0].mesh)


def make_update(optimizer: Optimizer) -> Callable[[TrainState, Any, Any], tuple[TrainState, dict[str, jax.Array]]]:
    """A compiled `(state, gradient, loss) -> (state, metrics)`; the state is given away.

    Where loss or gradient is not finite, parameters and moments stay as they are and the skip is counted; the step and
    the data position move on in either case, so that a poisoned batch is not met again.
    """

    def update(state: TrainState, gradient: Any, loss: jax.Array):
        grad_norm = optax.global_norm(gradient)
        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        params = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), state.params, updates)
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), (params, opt_state), (state.params, state.opt_state)
        )
        metrics = {
            "grad_norm": grad_norm,
            "update_norm": jnp.where(finite, optax.global_norm(updates), 0),
            "param_norm": optax.global_norm(state.params),
            "lr": optimizer.learning_rate(state.opt_state),
        }
        in_row, in_all = state.nonfinite_skips
        skips = jnp.where(finite, jnp.stack([0, in_all]), jnp.stack([in_row + 1, in_all + 1]))
        state = state._replace(params=params, opt_state=opt_state, nonfinite_skips=skips.astype(jnp.int32))
        return advance(state), metrics

    return jax.jit(update, donate_argnums=0)


def advance(state: TrainState) -> TrainState:
    """The state after a step that touched nothing but its position."""
    return state._replace(step=state.step + 1, data_batch_index=state.data_batch_index + 1)


def say_if_skipped(state: TrainState) -> None:
    """A warning where the update just made was skipped."""
    in_row, step = int(np.asarray(state.nonfinite_skips)[0]), int(state.step)
    if in_row:
        logging.warning("step %d: loss or gradient is not finite; update skipped (%d in a row)", step, in_row)


def check_not_diverged(state: TrainState) -> None:
    """Raises TrainingDivergedError at the third skipped update in a row, and at every further one.

    Not a part of the step, whose result is worth keeping: weights and moments are those of the last finite update.
    """
    in_row, step = int(np.asarray(state.nonfinite_skips)[0]), int(state.step)
    if in_row >= MAX_NONFINITE_IN_A_ROW:
        raise TrainingDivergedError(
            f"loss or gradient was not finite in {in_row} steps in a row, the last of them step {step}: look at the "
            "last trajectories; the same command goes on at the next batch, a lower optimizer.learning_rate needs a "
            "new workdir"
        )
