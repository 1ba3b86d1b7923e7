"""Steps that begin before their last group is there: the same gradient as a step that waits for all of them."""

import copy
import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from rw.core.advantages import AdvantageConfig, comet
from rw.core.losses import LossConfig
from rw.errors import ConfigError
from rw.learner.batch import BatchConfig, plain_rows, policy_positions
from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.learner.state import fingerprint, init_state
from rw.learner.step import Learner, LearnerConfig
from rw.learner.streaming import RowQueue, declarations
from rw.types import Segment, Status

from .conftest import MODEL, make_groups, mode_candidates, relative_difference, replace_rollout

LAMBDA = 0.4
CONFIG = LearnerConfig(
    batch=BatchConfig(micro_batch=4, length_buckets=(64,), policy_buckets=(24,), logprob_chunk=16),
    loss=LossConfig(kl_coefficient=0.05),
    advantage=AdvantageConfig(0.3),
    regime="stream",
)
OPTIMIZER = Optimizer(OptimizerConfig(learning_rate=1e-3))
SUPPORT = {"support_coefficient": LAMBDA, "mode_candidates": mode_candidates}


@pytest.fixture(scope="module")
def stream(reference_params):
    return Learner(MODEL, OPTIMIZER, reference_params, CONFIG)


def variant(learner, **changes):
    """The same compiled programs under another config of what is done on the host."""
    other = copy.copy(learner)
    other.config = dataclasses.replace(learner.config, **changes)
    return other


@pytest.fixture(scope="module")
def groups():
    """Six groups of four, forced and free, ragged; two rollouts lost, one without an inner token."""
    groups = make_groups(0)
    for g, k in ((1, 2), (3, 0)):
        groups = replace_rollout(groups, g, k, status=Status.INFRASTRUCTURE_FAILURE)
    first = groups[4].rollouts[1].trajectory
    stop = np.flatnonzero(first.segments == Segment.MODE)[-1] + 1
    arrays = {name: getattr(first, name)[:stop] for name in ("tokens", "segments", "sampled_logprobs")}
    return replace_rollout(groups, 4, 1, **arrays, status=Status.TERMINAL_INVALID, answer=None)


def streamed(learner, params, groups, early, *, cold_start=False, all_forced=False, **options):
    """(state, metrics) of a step whose first `early` groups came, and were worked on, before the others."""
    state = init_state(params, OPTIMIZER, 0)
    work = learner.begin(state.params, cold_start=cold_start, all_forced=all_forced)
    for group in groups[:early]:
        work.add(group)
        while work.piece():
            pass
    return learner.finish(work, state, groups, **options)


def check_alike(one, other):
    (state, metrics), (other_state, other_metrics) = one, other
    assert metrics["grad_norm"] == pytest.approx(other_metrics["grad_norm"], rel=1e-5)
    assert relative_difference(other_state.opt_state[1].mu, state.opt_state[1].mu) < 1e-5
    free = {"micro_batches", "data/padding_share", "update_norm"}  # the first update is the gradient's sign
    assert {name for name in metrics if "early" not in name} == set(other_metrics)
    for name in other_metrics.keys() - free:
        if not name.startswith("perf/"):
            assert metrics[name] == pytest.approx(other_metrics[name], rel=2e-5, abs=2e-6), name


def test_the_gradient_is_that_of_a_step_that_waits(stream, params, groups):
    expected = stream.step(init_state(params, OPTIMIZER, 0), groups, cold_start=False, **SUPPORT)
    shares = []
    for early in (0, 3, 6):
        found = streamed(stream, params, groups[::-1], early, **SUPPORT)
        check_alike(found, expected)
        shares.append((found[1]["perf/early_reference"], found[1]["perf/early_gradient"]))
    assert shares[0] == (0, 0) and shares[0] < shares[1] < shares[2] and shares[2] > (0.9, 0.9)


def test_a_group_without_rollouts_changes_nothing(stream, params, groups):
    empty = [dataclasses.replace(group, rollouts=()) if g == 1 else group for g, group in enumerate(groups)]
    expected = stream.step(init_state(params, OPTIMIZER, 0), empty, cold_start=False, **SUPPORT)
    check_alike(streamed(stream, params, empty, 6, **SUPPORT), expected)


def test_with_one_divisor_for_all_terms_no_pass_over_first_turns_is_needed(stream, params, groups, monkeypatch):
    options = {"cold_start": True}
    expected = stream.step(init_state(params, OPTIMIZER, 0), groups, **options)
    forced = make_groups(1, forced=lambda index: True)
    of_forced = stream.step(init_state(params, OPTIMIZER, 0), forced, cold_start=False)
    monkeypatch.setattr("rw.learner.step.declarations", None)
    check_alike(streamed(stream, params, groups, 5, **options), expected)
    check_alike(streamed(stream, params, forced, 5, all_forced=True), of_forced)


def test_in_order_no_bit_depends_on_when_groups_came(stream, params, groups):
    endings, in_order = set(), variant(stream, deterministic=True)
    for early in (0, 2, 5, 6):
        state, metrics = streamed(in_order, params, groups, early, **SUPPORT)
        assert metrics["perf/early_gradient"] == 0 or early
        endings.add(fingerprint((state.params, state.opt_state)))
    assert len(endings) == 1
    check_alike((state, metrics), in_order.step(init_state(params, OPTIMIZER, 0), groups, cold_start=False, **SUPPORT))


def test_collect_streams_the_reference_alone(stream, params, groups):
    learner = variant(stream, regime="collect")
    expected = learner.step(init_state(params, OPTIMIZER, 0), groups, cold_start=False, **SUPPORT)
    found = streamed(learner, params, groups, 4, **SUPPORT)
    check_alike(found, expected)
    assert found[1]["perf/early_reference"] > 0.5 and found[1]["perf/early_gradient"] == 0


def test_ragged_lengths_compile_nothing_after_warm_up(stream, params):
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, duration, **_: compiled.append(name) if "backend_compile" in name else None
    )
    stream.warm_up(init_state(params, OPTIMIZER, 0))
    streamed(stream, params, make_groups(6), 3, **SUPPORT)  # small host-side shapes, the update
    compiled.clear()
    for seed, bounds in enumerate(((18, 30), (30, 48), (18, 48), (18, 20)), 7):
        streamed(stream, params, make_groups(seed, lengths=bounds), seed - 6, cold_start=seed == 8, **SUPPORT)
    assert compiled == []


def test_an_error_in_a_piece_ends_the_step(stream, params, groups, monkeypatch):
    work = stream.begin(params, cold_start=False)

    def broken(*_):
        raise RuntimeError("no memory left")

    monkeypatch.setattr(stream, "_reference", broken)
    work.add(groups[0])
    assert not work.piece() and not work.piece()
    with pytest.raises(RuntimeError, match="no memory left"):
        stream.finish(work, init_state(params, OPTIMIZER, 0), groups)


def centred(batch, config):
    """Looks at the whole batch."""
    advantages = comet(batch, config)
    return advantages._replace(grpo=advantages.grpo - advantages.grpo.mean() + batch.rewards.shape[0])


def test_advantages_that_look_beyond_a_group_are_refused(stream, reference_params, params, groups):
    make = lambda function: Learner(  # noqa: E731
        MODEL, OPTIMIZER, reference_params, dataclasses.replace(CONFIG, advantage_function=function)
    )
    with pytest.raises(ConfigError, match="'centred' gives a free group with all modes another grpo alone"):
        make(centred)
    make(partial(comet))
    unlike_its_trial = copy.copy(stream)
    unlike_its_trial._advantage_function = centred
    for early in (3, 0):  # whatever came early enough to be streamed
        with pytest.raises(ConfigError, match="when its group was alone and .* set regime='collect'"):
            streamed(unlike_its_trial, params, groups, early)


@pytest.mark.full
@pytest.mark.parametrize(
    "change",
    [
        {"loss": LossConfig(kl_coefficient=0.0)},
        {"loss": LossConfig(kl_coefficient=0.05, reduction="global")},
        {"batch": dataclasses.replace(CONFIG.batch, packing="packed", micro_batch=2)},
        {"batch": dataclasses.replace(CONFIG.batch, packing="shared", micro_batch=2)},
        {"batch": dataclasses.replace(CONFIG.batch, old_policy="sampler")},
    ],
    ids=["without_kl", "one_token_mean", "packed", "shared", "old_policy_of_the_sampler"],
)
def test_variants_of_the_loss_and_of_rows(reference_params, params, groups, change):
    learner = Learner(MODEL, OPTIMIZER, reference_params, dataclasses.replace(CONFIG, **change))
    for one in (learner, variant(learner, deterministic=True)):
        expected = one.step(init_state(params, OPTIMIZER, 0), groups, cold_start=False, **SUPPORT)
        for early in (3, 6):
            check_alike(streamed(one, params, groups, early, **SUPPORT), expected)


def test_parameters_and_reference_stay_as_they_are_while_pieces_run(stream, params, groups):
    before = fingerprint((params, stream.reference_params))
    streamed(stream, params, groups, 6)
    assert fingerprint((params, stream.reference_params)) == before


def rows_by_key(groups):
    return {(g.index, k): row for g in groups for k, row in enumerate(plain_rows([s.trajectory for s in g.rollouts]))}


def test_rows_are_taken_in_their_order_or_the_longest_first(groups):
    rows = rows_by_key(groups[:2])  # eight, for micro-batches of four
    first, *others = list(rows)
    for in_order in (True, False):
        queue = RowQueue(CONFIG.batch, in_order)
        queue.add({first: rows[first]})
        assert queue.take(rest=False) is None
        queue.add({key: rows[key] for key in others})
        taken = [queue.take(rest=False), queue.take(rest=True)]
        assert queue.take(rest=True) is None
        keys = [key for portion in taken for key in portion.keys]
        lengths = [[len(row.tokens) for row in portion.rows] for portion in taken]
        assert sorted(keys) == list(rows) and (keys == list(rows)) == in_order
        assert in_order or min(lengths[0]) >= max(lengths[1])


def test_in_order_what_shares_a_micro_batch_does_not_depend_on_when_it_is_taken(groups):
    rows = rows_by_key(groups[:3])
    eager, late = RowQueue(CONFIG.batch, in_order=True), RowQueue(CONFIG.batch, in_order=True)
    taken = []
    for key, row in rows.items():
        for queue in (eager, late):
            queue.add({key: row})
        taken.append(eager.take(rest=False))
    assert [p.keys for p in taken if p] == [late.take(rest=False).keys for _ in range(3)]


def test_a_declaration_ends_with_the_last_mode_token_and_has_no_other_policy_token(groups):
    rows = rows_by_key(groups)
    references = {key: np.arange(policy_positions(row.segments).size) for key, row in rows.items()}
    declared, known = declarations(rows, references)
    free = {(group.index, k) for group in groups for k in range(4) if group.forced_mode is None}
    assert declared.keys() == known.keys() == free
    for key, row in declared.items():
        kept = policy_positions(row.segments)
        assert kept[-1] == len(row.tokens) - 1 and set(row.segments[kept]) == {Segment.MODE}
        np.testing.assert_array_equal(row.tokens, rows[key].tokens[: len(row.tokens)])
        np.testing.assert_array_equal(known[key], np.arange(kept.size))  # the first policy tokens are the mode's
