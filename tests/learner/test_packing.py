"""Packed rows are the rows one by one: same losses, gradients and log-probs, and nothing seen of a neighbour.

So are shared rows, where what the sequences of a query begin with lies once.
"""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from rw.core.advantages import AdvantageConfig
from rw.core.losses import LossConfig
from rw.errors import ConfigError
from rw.learner.batch import (
    NO_SEQUENCE,
    PADDING_POSITION,
    BatchConfig,
    held_tokens,
    layout,
    micro_batches,
    padding_share,
    plain_rows,
    policy_places,
    policy_positions,
    token_counts,
)
from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.learner.programs import policy_logprobs
from rw.learner.state import init_state
from rw.learner.step import TERMS, Learner, LearnerConfig
from rw.learner.supervised import SupervisedConfig, SupervisedLearner
from rw.model import attention, attention_kernels
from rw.model.qwen3 import init_params
from rw.sharding import make_mesh
from rw.types import Segment

from .conftest import MODEL, make_groups, mode_candidates, relative_difference

PLAIN = BatchConfig(micro_batch=2, length_buckets=(64, 256), policy_buckets=(64,), logprob_chunk=16)
PACKED = dataclasses.replace(PLAIN, packing="packed", policy_buckets=(192,))
SHARED = dataclasses.replace(PACKED, packing="shared", length_buckets=(256,))
BOTH = pytest.mark.parametrize("config", [PACKED, SHARED], ids=["packed", "shared"])
OPTIMIZER = Optimizer(OptimizerConfig(learning_rate=1e-3))


def learner_of(batch, reference_params, mesh=None, model=MODEL, **options):
    options = {"loss": LossConfig(kl_coefficient=0.05), "advantage": AdvantageConfig(0.3), **options}
    return Learner(model, OPTIMIZER, reference_params, LearnerConfig(batch=batch, **options), mesh)


def rows_of(groups):
    return plain_rows([scored.trajectory for group in groups for scored in group.rollouts])


def placed(rows, config, by_length=True):
    """(the layout of rows, its micro-batches)."""
    return layout(rows, config, by_length=by_length), micro_batches(rows, config, by_length=by_length)


@pytest.fixture(scope="module")
def groups():
    """Sequences of 18 to 50 tokens, forced and free."""
    return make_groups(3, count=3)


@pytest.fixture(scope="module")
def learners(reference_params):
    """One of unpacked rows, one of packed and one of shared ones."""
    return [learner_of(batch, reference_params) for batch in (PLAIN, PACKED, SHARED)]


# What the arrays hold


def test_packing_leaves_less_padding():
    rows = rows_of(make_groups(0, count=8))
    shares = {}
    for config in (PLAIN, PACKED):
        for by_length in (False, True):
            shares[config.packing, by_length] = padding_share(micro_batches(rows, config, by_length=by_length))
    assert shares["packed", True] <= shares["packed", False] < shares["none", True] <= shares["none", False]
    assert shares["packed", True] < 0.2 < 0.35 < shares["none", True]


def test_every_sequence_is_what_its_beginning_and_its_own_tokens_spell(groups):
    rows = rows_of(groups)
    short = dataclasses.replace(SHARED, length_buckets=(64, 256))
    # Of four prompts of at least 5 tokens a row that is long enough needs one.
    for config, by_length, least in ((short, False, 1), (short, True, 1), (SHARED, True, 3 * 5 * len(groups))):
        saved = 0
        for part, micro in zip(*placed(rows, config, by_length), strict=True):
            assert ((micro.prefixes == NO_SEQUENCE) == (micro.sequences == NO_SEQUENCE)).all()
            saved += sum(len(rows[index].tokens) for row in part for index in row) - held_tokens(micro)
            for index, (b, place) in policy_places(rows, part):
                row, number = rows[index], micro.sequences[b, micro.predictors[b, place][-1]]
                own = micro.sequences[b] == number
                prefix = set(micro.prefixes[b, own]) - {number}
                seen = own | np.isin(micro.sequences[b], list(prefix))
                np.testing.assert_array_equal(micro.tokens[b, seen], row.tokens)
                np.testing.assert_array_equal(micro.positions[b, seen], np.arange(len(row.tokens)))
                at = policy_positions(row.segments)
                np.testing.assert_array_equal(micro.predictors[b, place], np.flatnonzero(seen)[at - 1])
                np.testing.assert_array_equal(micro.policy.positions[b, place], at)
                np.testing.assert_array_equal(micro.policy.tokens[b, place], row.tokens[at])
        assert saved >= least


def test_what_is_learnt_from_is_never_shared():
    """Not even where rollouts are the same to the last token: each has policy tokens of its own."""
    (group,) = make_groups(0, count=1, rollouts=1)
    rows = rows_of([group]) * 3
    ((part,), (micro,)) = placed(rows, SHARED)
    first = policy_positions(rows[0].segments)[0]
    assert part == [(0, 1, 2)] and held_tokens(micro) == first + 3 * (len(rows[0].tokens) - first)
    assert np.count_nonzero(micro.policy.segments) == token_counts(rows).kl


@pytest.mark.parametrize("by_length", [False, True])
def test_every_policy_token_is_predicted_within_its_own_sequence(groups, by_length):
    rows = rows_of(groups)
    seen = []
    parts, micros = placed(rows, PACKED, by_length)
    for part, micro in zip(parts, micros, strict=True):
        assert micro.sequences.shape == micro.tokens.shape
        assert ((micro.sequences == NO_SEQUENCE) == (micro.positions == PADDING_POSITION)).all()
        for b, p in np.argwhere(micro.policy.segments != Segment.PAD):
            before = micro.predictors[b, p]
            assert micro.sequences[b, before] == micro.sequences[b, before + 1] != NO_SEQUENCE
            assert micro.positions[b, before] + 1 == micro.positions[b, before + 1] == micro.policy.positions[b, p]
            assert micro.tokens[b, before + 1] == micro.policy.tokens[b, p]
            row = rows[part[b][micro.sequences[b, before] - 1]]
            at = micro.policy.positions[b, p]
            assert row.tokens[at] == micro.policy.tokens[b, p] and row.segments[at] == micro.policy.segments[b, p]
            assert row.sampled_logprobs[at] == micro.policy.old_logprobs[b, p]
            seen.append((part[b][micro.sequences[b, before] - 1], int(at)))
    counts = token_counts(rows)
    assert len(seen) == len(set(seen)) == counts.mode + counts.inner
    assert any(len(row) > 1 for part in parts for row in part)


def test_advantages_follow_their_sequence(groups, learners):
    _, _, rows = learners[1]._rows(groups, cold_start=False)
    found = set()
    for part, micro in zip(*placed(rows, PACKED), strict=True):
        for b, p in np.argwhere(micro.policy.segments != Segment.PAD):
            row = rows[part[b][micro.sequences[b, micro.predictors[b, p]] - 1]]
            grpo, mode, inner, _ = row.advantage
            is_mode = micro.policy.segments[b, p] == Segment.MODE
            assert micro.policy.advantage[b, p] == (mode if is_mode else grpo if row.forced else inner)
            found.add((row.forced, bool(is_mode)))
    assert found == {(True, False), (False, False), (False, True)}


# What the model makes of them


def logprobs_of(params, rows, config, model=MODEL):
    """{(sequence, position): log-prob} of all policy tokens."""
    run = jax.jit(lambda micro: policy_logprobs(params, model, micro, 0.8, config.logprob_chunk)[0])
    result = {}
    for part, micro in zip(*placed(rows, config), strict=True):
        values = np.asarray(run(micro))
        for index, (b, place) in policy_places(rows, part):
            keys = [(index, int(at)) for at in micro.policy.positions[b, place]]
            result.update(zip(keys, values[b, place], strict=True))
    return result


def test_log_probs_of_every_token_are_those_of_the_sequence_alone(params, groups):
    rows = rows_of(groups)
    alone = logprobs_of(params, rows, PLAIN)
    assert len(alone) == token_counts(rows).kl > 100
    chunked = dataclasses.replace(MODEL, attention="chunked_xla", attention_chunk=24)
    for config, model in ((PACKED, MODEL), (SHARED, MODEL), (SHARED, chunked)):
        found = logprobs_of(params, rows, config, model)
        assert alone.keys() == found.keys()
        np.testing.assert_allclose([found[key] for key in alone], list(alone.values()), atol=1e-5)


@BOTH
def test_a_changed_sequence_changes_no_bit_of_its_neighbours(params, groups, config):
    rows = rows_of(groups)
    neighbours = next(row for part in layout(rows, config, by_length=True) for row in part if len(row) > 2)
    before = logprobs_of(params, rows, config)
    for victim in neighbours[:3]:
        changed, tokens = list(rows), rows[victim].tokens.copy()
        kept = 5 if config is SHARED else 0  # of the prompt: with another one it would share less
        tokens[kept:] = (tokens[kept:] + 17) % MODEL.vocab_size
        changed[victim] = rows[victim]._replace(tokens=tokens)
        after = logprobs_of(params, changed, config)
        assert all(before[key] == after[key] for key in before if key[0] != victim)
        assert any(before[key] != after[key] for key in before if key[0] == victim)


@pytest.mark.parametrize("config", [PLAIN, PACKED, SHARED], ids=lambda config: config.packing)
def test_padding_is_known_by_its_place_and_never_by_its_id(params, groups, config):
    # Each ends with the id that padding has.
    rows = [row._replace(tokens=np.append(row.tokens[:-1], np.int32(0))) for row in rows_of(groups)]
    (*_, micro) = micro_batches(rows, config, by_length=False)
    run = jax.jit(lambda micro: policy_logprobs(params, MODEL, micro, 0.8, config.logprob_chunk)[0])
    is_padding = micro.positions == PADDING_POSITION
    ids = np.arange(is_padding.size, dtype=np.int32).reshape(is_padding.shape) % MODEL.vocab_size
    other = micro._replace(tokens=np.where(is_padding, ids, micro.tokens))
    real = micro.policy.segments != Segment.PAD
    assert is_padding.any() and np.array_equal(np.asarray(run(micro))[real], np.asarray(run(other))[real])
    micros = micro_batches(rows, config, by_length=False)
    found = np.concatenate([micro.policy.tokens[micro.policy.segments != Segment.PAD] for micro in micros])
    assert np.count_nonzero(found == 0) >= len(rows) and len(found) == token_counts(rows).kl


def check_same_gradients(learners, params, groups, terms):
    expected, *others = (
        learner.gradients(params, groups, terms, mode_candidates=mode_candidates) for learner in learners
    )
    for found in others:
        for term in terms:
            assert relative_difference(expected[term], found[term]) < 1e-5, term


def test_each_term_of_the_gradient_is_that_of_unpacked_rows(params, groups, learners):
    check_same_gradients(learners, params, groups, TERMS[:3])


@pytest.mark.full
def test_by_attention_in_chunks_too(params, reference_params, groups):
    model = dataclasses.replace(MODEL, attention="chunked_xla", attention_chunk=24)
    learners = [learner_of(batch, reference_params, model=model) for batch in (PLAIN, PACKED, SHARED)]
    check_same_gradients(learners, params, groups, TERMS)


@pytest.mark.full
def test_in_double_precision_and_over_several_micro_batches(groups):
    model = dataclasses.replace(MODEL, param_dtype="float64", compute_dtype="float64")
    with jax.enable_x64(True):
        params, other = (init_params(jax.random.key(seed), model) for seed in (0, 1))
        reference_params = jax.tree.map(lambda p, q: p + 0.05 * q, params, other)
        results = []
        for batch in (
            PLAIN,
            PACKED,
            dataclasses.replace(PACKED, micro_batch=1),
            dataclasses.replace(PACKED, length_buckets=(64,)),
            SHARED,
            dataclasses.replace(SHARED, micro_batch=1),
            dataclasses.replace(SHARED, length_buckets=(64,)),
        ):
            for deterministic in (False, True):
                learner = learner_of(batch, reference_params, model=model, deterministic=deterministic)
                results.append(learner.gradients(params, groups, TERMS, mode_candidates=mode_candidates))
        for result in results[1:]:
            assert all(relative_difference(results[0][term], result[term]) < 1e-10 for term in TERMS)


def check_same_step(plain, other, params, groups, **options):
    options = {"cold_start": False, **options}
    expected, metrics = plain.step(init_state(params, OPTIMIZER, 0), groups, **options)
    state = init_state(other.placement.params(params), OPTIMIZER, 0)
    state, packed_metrics = other.step(state, groups, **options)
    assert relative_difference(expected.opt_state[1].mu, state.opt_state[1].mu) < 1e-5
    assert relative_difference(expected.opt_state[1].nu, state.opt_state[1].nu) < 1e-5
    assert packed_metrics.keys() == metrics.keys()
    differing = {"data/padding_share", "micro_batches", "perf/reference_s", "perf/update_s"}
    for name in metrics.keys() - differing:
        assert packed_metrics[name] == pytest.approx(metrics[name], rel=1e-5, abs=1e-6), name
    return metrics, packed_metrics


@pytest.mark.parametrize("old_policy", ["current", pytest.param("sampler", marks=pytest.mark.full)])
def test_a_step_is_that_of_unpacked_rows(params, reference_params, groups, learners, old_policy):
    plain, *others = learners
    if old_policy == "sampler":
        batches = [dataclasses.replace(learner.config.batch, old_policy="sampler") for learner in (plain, others[1])]
        plain, *others = (learner_of(batch, reference_params) for batch in batches)
    for other in others:
        metrics, packed = check_same_step(plain, other, params, groups)
        assert packed["data/padding_share"] < metrics["data/padding_share"] < 1
        assert packed["micro_batches"] < metrics["micro_batches"]


@pytest.mark.full
@BOTH
def test_a_step_on_a_mesh_is_that_of_unpacked_rows_on_one_device(params, reference_params, groups, learners, config):
    options = {"support_coefficient": 0.4, "mode_candidates": mode_candidates}
    on_mesh = learner_of(dataclasses.replace(config, micro_batch=4), reference_params, make_mesh((2, 2, 2)))
    check_same_step(learners[0], on_mesh, params, groups, **options)


@pytest.mark.full
@BOTH
def test_after_warm_up_packed_rows_compile_nothing(params, reference_params, groups, config):
    batch = dataclasses.replace(config, length_buckets=(256,), policy_buckets=(192,))
    learner, options = learner_of(batch, reference_params), {"cold_start": False, "mode_candidates": mode_candidates}
    state = init_state(params, OPTIMIZER, 0)
    learner.warm_up(state)
    programs = (learner._gradient._add, learner._reference, learner._support._logprobs, learner._support._gradient._add)
    sizes = [program._cache_size() for program in programs]
    learner.step(state, groups, support_coefficient=0.4, **options)
    assert [program._cache_size() for program in programs] == sizes


@pytest.mark.full
def test_supervised_steps_too(params, groups):
    trajectories = [scored.trajectory for group in groups for scored in group.rollouts]
    states, metrics = [], []
    for batch in (PLAIN, PACKED, SHARED):
        learner = SupervisedLearner(MODEL, OPTIMIZER, params, SupervisedConfig(batch=batch, mode_weight=2.0))
        state, values = learner.step(init_state(params, OPTIMIZER, 0), trajectories)
        states.append(state)
        metrics.append(values)
    for state, values in zip(states[1:], metrics[1:], strict=True):
        assert relative_difference(states[0].opt_state[1].mu, state.opt_state[1].mu) < 1e-5
        for name in ("loss/total", "loss/mode", "loss/inner", "grad_norm"):
            assert metrics[0][name] == pytest.approx(values[name], rel=1e-5)
        assert values["data/padding_share"] < metrics[0]["data/padding_share"]


@pytest.mark.full
@pytest.mark.parametrize("packing", ["none", "packed", "shared"])
@pytest.mark.parametrize("backend", ["splash", "pallas_gpu"])
@pytest.mark.parametrize("shape", [None, (2, 2, 2)], ids=["one_device", "mesh"])
def test_a_learner_with_an_interpreted_kernel(backend, packing, shape, params, groups, monkeypatch):
    """Kernels within scanned, rematerialised layers, and each device's own part of a mesh; shared rows without them."""
    model = dataclasses.replace(MODEL, head_dim=16, remat="nothing_saveable")
    params, other = (init_params(jax.random.key(seed), model) for seed in (0, 1))
    plain = learner_of(PLAIN, other, model=model).gradients(params, groups, TERMS[:3])
    kernel = partial(getattr(attention_kernels, backend), interpret=True)
    monkeypatch.setitem(attention.KERNELS, backend, kernel)
    monkeypatch.setitem(attention_kernels.PLATFORMS, backend, ("cpu",))
    batch = BatchConfig(4, packing, (256,), (192,), logprob_chunk=16)
    mesh = None if shape is None else make_mesh(shape)
    learner = learner_of(batch, other, mesh, model=dataclasses.replace(model, attention=backend))
    found = learner.gradients(learner.placement.params(params), groups, TERMS[:3])
    for term in TERMS[:3]:
        assert relative_difference(plain[term], found[term]) < 1e-5, term


def test_learners_are_refused_where_their_attention_cannot_run(params, reference_params):
    model = dataclasses.replace(MODEL, attention="splash")
    with pytest.raises(ConfigError, match="model.attention='splash': not available on cpu"):
        learner_of(PACKED, reference_params, model=model)
    with pytest.raises(ConfigError, match="model.attention='splash': not available on cpu"):
        SupervisedLearner(model, OPTIMIZER, params, SupervisedConfig())
