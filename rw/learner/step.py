"""One COMET-GRPO step: groups in, a new state and metrics out.

What can be computed while other groups are still under way is begun before (`begin`, `finish`; streaming.py); `step` is
for groups that are all there. Knows no rollouts, no files and no schedule: what changes with the data position is
passed in.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from rw.core.advantage_contract import check_advantages, check_groupwise
from rw.core.advantages import ADVANTAGES, AdvantageConfig, resolve
from rw.core.diagnostics import advantage_metrics
from rw.core.losses import LossConfig
from rw.errors import ConfigError
from rw.learner.batch import (
    BatchConfig,
    MicroBatch,
    Row,
    empty_micro_batch,
    group_batch,
    held_tokens,
    token_counts,
    token_rows,
)
from rw.learner.diagnostics import of_tokens
from rw.learner.mode_support import ModeCandidates, SupportTerm, candidate_rows
from rw.learner.optimizer import Optimizer
from rw.learner.placement import Placement
from rw.learner.policy_loss import LOSS_TERMS, PolicyLoss
from rw.learner.programs import GradientSum, advance, make_update, say_if_skipped
from rw.learner.streamed_gradient import StreamedSums
from rw.learner.streaming import (
    REGIMES,
    Results,
    RowKey,
    StepWork,
    check_same_rows,
    declaration_config,
    declarations,
    nothing,
    piece_config,
    portions,
    row_keys,
)
from rw.model.attention import check_backend
from rw.model.config import ModelConfig
from rw.types import Advantages, Group, GroupBatch, Mode, TokenCounts, TrainState

TERMS = ("mode", "inner", "kl", "support")


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
    """What a step depends on besides the model, the optimiser and the groups."""

    batch: BatchConfig = BatchConfig()
    loss: LossConfig = LossConfig()
    advantage: AdvantageConfig = AdvantageConfig(efficiency_weight=0.0)  # its cold_start is set by each step
    advantage_function: str | Callable = "comet"  # a name, "package.module:function" or a function
    reference_cost_usd: float = 0.0070716653  # C_ref
    retry_cost: str = "accepted"  # one of types.RETRY_COSTS
    exhausted_is_invalid: bool = False
    support_floor: float = 0.05  # δ
    logprob_temperature: float = 0.8  # the sampling temperature, for π_θ, π_old and π_ref alike
    deterministic: bool = False  # rows in the order of groups and rollouts; otherwise by length, which pads least
    regime: str = "collect"  # collect: gradients when all groups are there | stream: as they come

    def __post_init__(self):
        if self.regime not in REGIMES:
            raise ConfigError(f"regime={self.regime!r} is not one of {', '.join(REGIMES)}")
        if not self.logprob_temperature > 0:
            raise ConfigError(f"logprob_temperature={self.logprob_temperature} must be above 0")
        if not 0 < self.support_floor < 1 / len(Mode):
            raise ConfigError(f"support floor {self.support_floor} must lie between 0 and 1/{len(Mode)}")


class Learner:
    """Computes steps. Holds the frozen reference and the compiled programs; the state is passed in and given back."""

    def __init__(
        self,
        model_config: ModelConfig,
        optimizer: Optimizer,
        reference_params: Any,
        config: LearnerConfig,
        mesh: jax.sharding.Mesh | None = None,
    ):
        """`reference_params` are only read and must stay alive; `init_state`, which copies, may have them too."""
        check_backend(model_config.attention)  # before a rollout is paid for
        self.model_config, self.config = model_config, config
        self.placement = Placement(mesh, reference_params, config.batch)
        self.reference_params = self.placement.params(reference_params)
        self._advantage_function = resolve(config.advantage_function)
        self._advantage_name = getattr(config.advantage_function, "__qualname__", str(config.advantage_function))
        if config.regime == "stream" and self._advantage_function not in ADVANTAGES.values():
            check_groupwise(self._advantage_function, self._advantage_name, config.advantage)
        self.loss = PolicyLoss(model_config, config.batch, config.loss, config.logprob_temperature)
        self._gradient = GradientSum(self.loss.divided, self.placement.shardings)
        self._streamed = StreamedSums(self.loss, self._gradient, self.placement)
        self._reference = jax.jit(self.loss.logprobs)
        self._update = make_update(optimizer)
        self._support = SupportTerm(model_config, config.batch, config.support_floor, self.placement)

    def step(
        self,
        state: TrainState,
        groups: Sequence[Group],
        *,
        cold_start: bool,
        support_coefficient: float = 0.0,
        mode_candidates: ModeCandidates | None = None,
    ) -> tuple[TrainState, dict[str, float]]:
        """One update from one data batch.

        Args:
            state: given away; the new one takes its place.
            groups: all groups of the batch, in any order.
            cold_start: task component only, one global token mean, no support term.
            support_coefficient: λ_b.
            mode_candidates: scores the modes (`RouterProtocol.mode_candidates`); None leaves the support term out.

        Returns:
            (state with step and data position one further, metrics by name). Where every rollout is excluded, and where
            loss or gradient is not finite, parameters and moments are those given.
        """
        with self.placement.scope():
            return self._step(state, None, groups, cold_start, support_coefficient, mode_candidates)

    def begin(self, params: Any, *, cold_start: bool, all_forced: bool = False) -> StepWork:
        """The work of a step whose groups are still under way: hand them to it as they are complete, and have it done
        piece by piece; `finish` ends it.

        Args:
            params: the state's; only read. Until `finish`, nothing may consume them.
            all_forced: every group of the step has an assigned mode, so that no mode token is sampled.
        """
        refer = (lambda micro: self.reference_logprobs(self.placement.batch(micro))) if self._reads_reference else None
        gradient = None
        if self.config.regime == "stream":
            gradient = self._streamed.begin(params, cold_start=cold_start, all_forced=all_forced)
        return StepWork(
            functools.partial(self._prepared, cold_start),
            refer,
            gradient,
            self.config.batch,
            self.placement.ways,
            cold_start=cold_start,
            in_order=self.config.deterministic,
            scope=self.placement.scope,
        )

    def finish(
        self,
        work: StepWork,
        state: TrainState,
        groups: Sequence[Group],
        *,
        support_coefficient: float = 0.0,
        mode_candidates: ModeCandidates | None = None,
    ) -> tuple[TrainState, dict[str, float]]:
        """As `step`, from what `work` did of it and what it did not; raises what one of its pieces raised."""
        with self.placement.scope():
            return self._step(state, work, groups, work.cold_start, support_coefficient, mode_candidates)

    def _step(self, state, work, groups, cold_start, support_coefficient, mode_candidates):
        started = time.perf_counter()
        batch, advantages, rows = self._rows(groups, cold_start)
        keyed = dict(zip(row_keys(_in_order(groups), batch), rows, strict=True))
        early = (0, 0) if work is None else work.counts
        done = nothing() if work is None else work.results(groups, keyed)
        if self.config.regime == "stream" and work is not None and self._advantage_function not in ADVANTAGES.values():
            check_same_rows(work.rows_alone(groups), keyed, self._advantage_name)
        counts = token_counts(rows)
        late = {key: row for key, row in keyed.items() if key not in done.rows}
        made = self._micro_batches(late, done.references)
        micros = self._placed(made, with_reference=self._reads_reference and not done.references)
        referenced = time.perf_counter()
        normalisers = self._normalisers(counts, cold_start)
        weights = (1.0, 1.0, self.config.loss.kl_coefficient)
        total, value, terms = self._settle(state.params, done, normalisers)
        total, late_value, late_terms, records = self._policy_gradient(
            state.params, micros, normalisers, weights, total
        )
        value, terms = value + late_value, {name: terms.get(name, 0.0) + late_terms[name] for name in late_terms}
        records = [*done.records, *records]
        support = {}
        if mode_candidates is not None and not cold_start:
            total, support = self._add_support(total, state.params, groups, mode_candidates, support_coefficient)
        value = value + support_coefficient * support.get("loss/support", 0.0)
        metrics = {**terms, **of_tokens(records, self.config.loss)}
        if rows:
            held = done.held_tokens + sum(map(held_tokens, made))
            metrics["data/padding_share"] = 1 - held / (done.slots + sum(micro.tokens.size for micro in made))
            state, update = self._update(state, total, np.float32(value))
            say_if_skipped(state)
            metrics.update({name: float(x) for name, x in update.items()})
        else:
            state = advance(state)
            logging.warning("step %d: every rollout is excluded; no update", int(state.step))
        metrics.update(advantage_metrics(batch, advantages), **support)
        metrics.update({"loss/total": float(value), "lambda_b": support_coefficient, "cold_start": float(cold_start)})
        metrics.update({"N_mode": float(counts.mode), "N_inner": float(counts.inner), "N_KL": float(counts.kl)})
        metrics.update(rows=float(len(rows)), micro_batches=float(len(micros) + len(done.terms)))
        if rows and work is not None:
            metrics.update({"perf/early_reference": early[0] / len(rows), "perf/early_gradient": early[1] / len(rows)})
        metrics["nonfinite_skips"] = float(np.asarray(state.nonfinite_skips)[1])
        finished = time.perf_counter()
        learnt = referenced - done.learn_s
        metrics.update({"perf/reference_s": learnt - started, "perf/update_s": finished - learnt})
        return state, metrics

    def gradients(
        self,
        params: Any,
        groups: Sequence[Group],
        terms: Sequence[str] = TERMS,
        *,
        cold_start: bool = False,
        mode_candidates: ModeCandidates | None = None,
    ) -> dict[str, Any]:
        """The gradient of each term of the loss alone, without its coefficient (β, λ_b) and without clipping."""
        with self.placement.scope():
            return self._term_gradients(params, groups, terms, cold_start, mode_candidates)

    def _term_gradients(self, params, groups, terms, cold_start, mode_candidates):
        _, _, rows = self._rows(groups, cold_start)
        micros = self._placed(self._micro_batches(dict(enumerate(rows)), {}), "kl" in terms)
        normalisers = self._normalisers(token_counts(rows), cold_start)
        result = {}
        for term in terms:
            if term == "support":
                zeros = self._gradient.zeros(params)
                result[term], _ = self._add_support(zeros, params, groups, mode_candidates, 1.0)
            else:
                weights = tuple(float(term == name) for name in TERMS[:3])
                result[term] = self._policy_gradient(params, micros, normalisers, weights)[0]
        return result

    def reference_logprobs(self, micro: MicroBatch) -> jax.Array:
        """f32[B, P]: log π_ref of the policy tokens of a placed micro-batch."""
        return self._reference(self.reference_params, micro)

    def warm_up(self, state: TrainState) -> None:
        """Compiles every shape that a micro-batch can have; the state is left as it is."""
        with self.placement.scope():
            self._compile(state)

    def _compile(self, state: TrainState) -> None:
        config, streams = self.config.batch, self.config.regime == "stream"
        total, micros = self._gradient.zeros(state.params), []
        for length, policy in config.shapes():
            total, micro = self._compile_shape(total, state.params, length, policy, config)
            if policy == min(config.policy_buckets[0], length):  # declarations are short
                total = self._support.compile(state.params, micro, total)
            micros.append(micro)
        if streams:
            declared = declaration_config(config)
            for length, policy in declared.shapes():
                total, _ = self._compile_shape(total, state.params, length, policy, declared)
        of_pieces = piece_config(config, self.placement.ways)
        if of_pieces != config:
            micros = []
            for length, policy in of_pieces.shapes():
                total, micro = self._compile_shape(total, state.params, length, policy, of_pieces)
                micros.append(micro)
        jax.block_until_ready(total)
        if streams:
            self._streamed.compile(state.params, micros)

    def _compile_shape(self, total, params, length: int, policy: int, config: BatchConfig) -> tuple[Any, MicroBatch]:
        """(`total`, unchanged in value; the micro-batch of padding that was compiled for)."""
        micro = self.placement.batch(empty_micro_batch(length, policy, config))
        if self._reads_reference:
            self.reference_logprobs(micro)
        zero, weights = TokenCounts(*(np.float32(0),) * 3), np.zeros(len(LOSS_TERMS), np.float32)
        return self._gradient.add(total, params, micro, zero, weights)[0], micro

    @property
    def _reads_reference(self) -> bool:
        return bool(self.config.loss.kl_coefficient)

    def _rows(self, groups: Sequence[Group], cold_start: bool) -> tuple[GroupBatch, Advantages, list[Row]]:
        groups = _in_order(groups)
        config = dataclasses.replace(self.config.advantage, cold_start=cold_start)
        batch = self._group_batch(groups, cold_start)
        if not groups:
            return batch, Advantages(*(np.zeros((0, 0), np.float32),) * 3), []
        own_copy = GroupBatch(*(np.array(array) for array in batch))  # a function may write into what it is given
        advantages = self._advantage_function(own_copy, config)
        check_advantages(advantages, self._advantage_name, batch)
        return batch, advantages, token_rows(groups, batch, advantages)

    def _group_batch(self, groups: Sequence[Group], cold_start: bool) -> GroupBatch:
        return group_batch(
            groups,
            reference_cost_usd=self.config.reference_cost_usd,
            efficiency_weight=self.config.advantage.efficiency_weight,
            cold_start=cold_start,
            exhausted_is_invalid=self.config.exhausted_is_invalid,
            retry_cost=self.config.retry_cost,
        )

    def _prepared(self, cold_start: bool, group: Group) -> dict[RowKey, Row]:
        """The rows of a group that came early. In `collect` nothing reads an advantage of them."""
        if self.config.regime == "stream":
            batch, _, rows = self._rows([group], cold_start)
        else:
            batch = self._group_batch([group], cold_start)
            rows = token_rows([group], batch, Advantages(*(np.zeros(batch.mode.shape, np.float32),) * 3))
        return dict(zip(row_keys([group], batch), rows, strict=True))

    def _micro_batches(self, rows: Mapping[RowKey, Row], references: Mapping[RowKey, np.ndarray]) -> list[MicroBatch]:
        """On the host, with what is known of the reference's log-probs: those of all rows, or of none."""
        made = portions(rows, self.config.batch, by_length=not self.config.deterministic)
        return [portion.micro_batch(self.config.batch, references) for portion in made]

    def _placed(self, micros: Sequence[MicroBatch], with_reference: bool) -> list[MicroBatch]:
        """On the devices; with the reference's log-probs computed where that is asked for."""
        placed = [self.placement.batch(micro) for micro in micros]
        if not with_reference:
            return placed
        scored = [(micro, self.reference_logprobs(micro)) for micro in placed]
        jax.block_until_ready(scored)
        return [m._replace(policy=m.policy._replace(reference_logprobs=reference)) for m, reference in scored]

    def _normalisers(self, counts: TokenCounts, cold_start: bool) -> TokenCounts:
        """The denominators of the mode, inner and KL sums.

        One global token mean is the segment-wise loss with both counts set to their sum, so that leaving cold start
        compiles nothing anew.
        """
        if cold_start or self.config.loss.reduction == "global":
            return TokenCounts(mode=counts.mode + counts.inner, inner=counts.mode + counts.inner, kl=counts.kl)
        return counts

    def _settle(self, params: Any, done: Results, normalisers: TokenCounts) -> tuple[Any, float, dict[str, float]]:
        """(gradient, value, terms) of the rows that were streamed: their sums divided, and the pass over first turns
        where the sums hold no mode tokens. (None, 0, nothing) where none was."""
        if not done.total:
            return None, 0.0, {}
        total, terms = self._streamed.divided(done, normalisers)
        kl_coefficient = self.config.loss.kl_coefficient
        if not done.is_whole:
            declared, references = declarations(done.rows, done.references)
            config = declaration_config(self.config.batch)
            made = portions(declared, config, by_length=not self.config.deterministic, one_query=True)
            micros = self._placed([portion.micro_batch(config, references) for portion in made], with_reference=False)
            weights = (1.0, 0.0, kl_coefficient)
            total, _, of_modes, _ = self._policy_gradient(params, micros, normalisers, weights, total)
            terms = {name: terms[name] + of_modes.get(name, 0.0) for name in terms}
        return total, terms["loss/pg_mode"] + terms["loss/pg_inner"] + kl_coefficient * terms["loss/kl"], terms

    def _policy_gradient(
        self, params: Any, micros: Sequence[MicroBatch], normalisers: TokenCounts, weights, total=None
    ):
        """(gradient, value, terms, records) of the weighted loss over all micro-batches, on top of `total`."""
        total, results = self._gradient.zeros(params) if total is None else total, []
        weights = np.asarray(weights, np.float32)
        for micro in micros:
            total, result = self._gradient.add(total, params, micro, normalisers, weights)
            results.append(result)
        results = jax.device_get(results)
        terms = {name: float(sum(terms[name] for _, (terms, _) in results)) for name in LOSS_TERMS}
        if not self.config.loss.kl_coefficient:
            del terms["loss/kl"]  # it was measured against nothing
        value = float(sum(value for value, _ in results))
        return total, value, terms, [record for _, (_, record) in results]

    def _add_support(self, total: Any, params: Any, groups, mode_candidates: ModeCandidates, coefficient: float):
        """The gradient with λ_b times the support term's added, and the term's metrics."""
        rows = candidate_rows(_in_order(groups), mode_candidates)
        micros = self._support.micro_batches(rows, by_length=not self.config.deterministic)
        loss, mode_support, slope = self._support.loss_and_slope(self._support.scores(params, micros, len(rows)))
        if coefficient:
            total = self._support.add_gradient(total, params, micros, slope, coefficient)
        metrics = {f"mode/p_bar/{mode.word}": float(share) for mode, share in zip(Mode, mode_support, strict=True)}
        return total, {"loss/support": loss, **metrics}


def _in_order(groups: Sequence[Group]) -> list[Group]:
    """Arrival order must not matter, not even in rounding."""
    return sorted(groups, key=lambda group: group.index)
