import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rw.core.losses import (
    LossConfig,
    clipped_token_loss,
    comet_loss,
    count_tokens,
    importance_ratio,
    kl_k3,
    loss_sums,
    normalise_sums,
    policy_mask,
)
from rw.errors import ConfigError
from rw.types import Segment, TokenBatch, TokenCounts

PAD, PROMPT, INJECTED, OBSERVATION, MODE, INNER = Segment
CONFIG = LossConfig()
k3_and_slope = jax.jit(jax.value_and_grad(kl_k3))
loss_and_metrics = jax.jit(comet_loss, static_argnums=3)
value_and_grad = jax.jit(jax.value_and_grad(comet_loss, has_aux=True), static_argnums=3)


def random_batch(rows, width, seed=0, dtype=np.float32) -> tuple[TokenBatch, np.ndarray]:
    """Rows of uneven length with every segment; old and reference log-probs off by about 0.3."""
    rng = np.random.default_rng(seed)
    logprobs = -rng.exponential(1.0, (rows, width))
    lengths = rng.integers(3, width + 1, (rows, 1))
    segments = np.where(np.arange(width) < lengths, rng.integers(1, 6, (rows, width)), PAD)
    batch = TokenBatch(
        tokens=np.zeros((rows, width), np.int32),
        positions=np.zeros((rows, width), np.int32),
        segments=segments.astype(np.uint8),
        advantage=rng.normal(size=(rows, width)).astype(dtype),
        old_logprobs=(logprobs + rng.normal(size=(rows, width)) * 0.3).astype(dtype),
        reference_logprobs=(logprobs + rng.normal(size=(rows, width)) * 0.3).astype(dtype),
        retained=rng.random(rows) < 0.8,
    )
    return batch, logprobs.astype(dtype)


def tokens(segments, advantage=1.0, ratio=1.0, reference=0.0, retained=True) -> tuple[TokenBatch, np.ndarray]:
    """A batch from literal rows; log-probs are 0 and the old ones -log(ratio)."""
    segments = np.array(segments, np.uint8)

    def like(values):
        return np.broadcast_to(np.asarray(values, np.float32), segments.shape)

    batch = TokenBatch(
        tokens=np.zeros(segments.shape, np.int32),
        positions=np.zeros(segments.shape, np.int32),
        segments=segments,
        advantage=like(advantage),
        old_logprobs=-np.log(like(ratio)),
        reference_logprobs=like(reference),
        retained=np.broadcast_to(np.asarray(retained), segments.shape[:1]),
    )
    return batch, np.zeros(segments.shape, np.float32)


def rows(batch, part) -> TokenBatch:
    return TokenBatch(*(array[part] for array in batch))


def counts_of(batch) -> TokenCounts:
    return count_tokens(batch.segments, batch.retained)


# The token loss


@pytest.mark.parametrize(
    "advantage, ratio, loss, slope",
    [
        (-2.0, 10.0, 6.0, 0.0),  # dual clip
        (-2.0, 0.1, 1.6, 0.0),  # clipped from below
        (2.0, 10.0, -2.4, 0.0),  # clipped from above
        (2.0, 0.5, -1.0, -2.0),
        (-2.0, 2.9, 5.8, 2.0),  # beyond 1 + η and still below c: a negative token is not clipped from above
        (2.0, 1.0, -2.0, -2.0),
        (-2.0, 1.0, 2.0, 2.0),
        (0.0, 10.0, 0.0, 0.0),
    ],
)
def test_clipped_token_loss_and_its_slope(advantage, ratio, loss, slope):
    value, gradient = jax.value_and_grad(lambda r: clipped_token_loss(r, advantage, 0.2, 0.2, 3.0))(ratio)
    assert float(value) == pytest.approx(loss, abs=1e-6)
    assert float(gradient) == pytest.approx(slope, abs=1e-6)


@given(st.floats(-3, 3), st.floats(0.01, 30))
def test_clipped_token_loss_agrees_with_a_scalar_oracle(advantage, ratio):
    want = -min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
    want = min(want, -3 * advantage) if advantage < 0 else want
    got = float(clipped_token_loss(np.float32(ratio), np.float32(advantage), 0.2, 0.2, 3.0))
    assert got == pytest.approx(want, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("advantage, loss", [(2.0, -2.4), (-2.0, 6.0)])
@pytest.mark.parametrize("log_ratio", [25.0, 100.0, 1e4, np.inf])
def test_a_ratio_that_would_overflow_is_clipped_with_a_clean_gradient(advantage, loss, log_ratio):
    def token_loss(logprob):
        return clipped_token_loss(importance_ratio(logprob, jnp.float32(-log_ratio)), advantage, 0.2, 0.2, 3.0)

    value, gradient = jax.value_and_grad(token_loss)(jnp.float32(-1.0))
    assert (float(value), float(gradient)) == (pytest.approx(loss), 0.0)


def test_a_ratio_that_vanishes_has_a_clean_gradient():
    gradient = jax.grad(lambda logprob: clipped_token_loss(importance_ratio(logprob, 0.0), 1.0, 0.2, 0.2, 3.0))(-1e4)
    assert float(gradient) == 0.0


# The KL term


@pytest.mark.parametrize("d", [-3.0, -0.5, 0.0, 0.7, 5.0, 19.0])
def test_k3_and_its_gradient(d):
    value, gradient = k3_and_slope(jnp.float32(-1.0), jnp.float32(-1.0 + d))
    assert float(value) == pytest.approx(math.exp(d) - d - 1, rel=1e-5, abs=1e-7)
    assert float(gradient) == pytest.approx(1 - math.exp(d), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("d", [20.5, 88.0, 200.0, 1e6, np.inf])
def test_k3_is_held_at_twenty_without_gradient_above(d):
    value, gradient = k3_and_slope(jnp.float32(0.0), jnp.float32(d))
    assert float(value) == pytest.approx(math.exp(20) - 21, rel=1e-6)
    assert float(gradient) == 0.0


@given(st.floats(-10, 19))
def test_k3_is_never_negative(d):
    assert float(kl_k3(jnp.float32(0), jnp.float32(d))) >= -1e-6


def test_k3_keeps_small_differences_that_exp_would_round_away():
    assert float(kl_k3(jnp.float32(0), jnp.float32(1e-3))) == pytest.approx(5.0017e-7, rel=1e-3)


def test_at_the_reference_the_kl_term_and_its_gradient_vanish():
    batch, logprobs = tokens([[MODE, INNER, INNER]], advantage=0.0)
    (loss, metrics), gradient = value_and_grad(logprobs, batch, counts_of(batch), LossConfig(kl_coefficient=1.0))
    assert float(loss) == float(metrics["loss/kl"]) == 0.0
    np.testing.assert_array_equal(gradient, np.zeros((1, 3)))


def test_the_kl_coefficient_has_an_effect():
    batch, logprobs = random_batch(4, 9)
    gradients = [value_and_grad(logprobs, batch, counts_of(batch), LossConfig(kl_coefficient=c))[1] for c in (0, 1e-3)]
    mask = policy_mask(batch.segments, batch.retained)
    d = np.where(mask, batch.reference_logprobs - logprobs, 0)
    want = 1e-3 * (1 - np.exp(d)) / np.count_nonzero(mask)
    np.testing.assert_allclose(gradients[1] - gradients[0], want, atol=1e-7)
    assert np.max(np.abs(want)) > 1e-6


def test_a_gated_group_keeps_its_kl_gradient_and_an_excluded_one_loses_both():
    batch, logprobs = tokens([[MODE, INNER], [MODE, INNER]], advantage=0.0, reference=-0.5, retained=[True, False])
    (loss, metrics), gradient = value_and_grad(logprobs, batch, counts_of(batch), CONFIG)
    assert float(metrics["loss/pg_mode"]) == float(metrics["loss/pg_inner"]) == 0.0
    np.testing.assert_allclose(gradient, [[1e-3 * (1 - math.exp(-0.5)) / 2] * 2, [0, 0]], rtol=1e-5)


# Masks


@pytest.mark.parametrize("hole", [np.nan, np.inf, -np.inf, 100.0])
def test_slots_outside_the_policy_tokens_change_neither_loss_nor_gradient(hole):
    batch, logprobs = random_batch(6, 11)
    counts = counts_of(batch)
    mask = np.asarray(policy_mask(batch.segments, batch.retained))
    dirty = batch._replace(
        advantage=np.where(mask, batch.advantage, hole),
        old_logprobs=np.where(mask, batch.old_logprobs, hole),
        reference_logprobs=np.where(mask, batch.reference_logprobs, -hole),
    )
    (loss, _), gradient = value_and_grad(logprobs, batch, counts, CONFIG)
    (dirty_loss, _), dirty_gradient = value_and_grad(np.where(mask, logprobs, hole), dirty, counts, CONFIG)
    assert float(loss) == float(dirty_loss)
    np.testing.assert_array_equal(gradient, dirty_gradient)
    np.testing.assert_array_equal(np.asarray(gradient) != 0, mask)


def test_a_policy_token_that_is_not_finite_shows_in_the_loss():
    batch, logprobs = tokens([[MODE, INNER, INNER]])
    logprobs = np.array([[0.0, np.nan, 0.0]], np.float32)
    assert math.isnan(float(loss_and_metrics(logprobs, batch, counts_of(batch), CONFIG)[0]))


def test_gradient_reaches_only_the_logits_that_predict_policy_tokens():
    segments = [[PROMPT, PROMPT, MODE, MODE, INJECTED, OBSERVATION, INNER, INNER, INJECTED, PAD]]
    batch, _ = tokens(segments, reference=-1.0)
    ids = np.arange(10)[None] % 4

    def loss(logits):
        following = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), ids[:, 1:, None], axis=-1)[..., 0]
        logprobs = jnp.concatenate([jnp.zeros((1, 1)), following], axis=1)
        return comet_loss(logprobs, batch._replace(old_logprobs=logprobs), counts_of(batch), CONFIG)[0]

    logits = np.random.default_rng(0).normal(size=(1, 10, 4)).astype(np.float32)
    gradient = jax.jit(jax.grad(loss))(logits)
    reached = np.flatnonzero(np.any(np.asarray(gradient)[0] != 0, axis=-1))
    np.testing.assert_array_equal(reached, [1, 2, 5, 6])  # each one before a MODE or INNER token


def test_old_and_reference_logprobs_and_advantages_carry_no_gradient():
    batch, logprobs = random_batch(3, 8)
    arrays = (batch.old_logprobs, batch.reference_logprobs, batch.advantage)

    def loss(old, reference, advantage):
        part = batch._replace(old_logprobs=old, reference_logprobs=reference, advantage=advantage)
        return comet_loss(logprobs, part, counts_of(batch), CONFIG)[0]

    for gradient in jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*arrays):
        assert not np.any(gradient)


def test_on_policy_the_gradient_is_minus_the_advantage_over_its_count():
    batch, logprobs = tokens([[MODE, INNER, INNER, INNER, OBSERVATION]], advantage=[[2.0, 1.0, -1.0, 0.5, 9.0]])
    (loss, _), gradient = value_and_grad(logprobs, batch, counts_of(batch), CONFIG)
    np.testing.assert_allclose(gradient, [[-2.0, -1 / 3, 1 / 3, -0.5 / 3, 0.0]], rtol=1e-6)


# Normalisers


def test_counts_leave_out_excluded_rows_and_everything_not_sampled():
    segments = np.array([[PROMPT, MODE, INNER, INNER], [MODE, MODE, OBSERVATION, INNER], [INNER, INJECTED, PAD, PAD]])
    counts = count_tokens(segments, np.array([True, False, True]))
    assert counts == TokenCounts(mode=1.0, inner=3.0, kl=4.0)
    assert counts.mode.dtype == np.float64


def test_rows_of_ten_and_ninety_tokens_are_averaged_over_tokens_not_rows():
    ten, ninety = [INNER] * 10 + [PAD] * 80, [INNER] * 90
    advantage = np.array([[-1.0], [0.0]])
    batch, logprobs = tokens([ten, ninety], advantage=advantage)
    counts = counts_of(batch)
    assert float(loss_and_metrics(logprobs, batch, counts, CONFIG)[0]) == pytest.approx(0.1, rel=1e-6)
    parts = [loss_and_metrics(logprobs[i : i + 1], rows(batch, slice(i, i + 1)), counts, CONFIG)[0] for i in range(2)]
    assert float(sum(parts)) == pytest.approx(0.1, rel=1e-6)


@functools.partial(jax.jit, static_argnums=3)
def term_gradients(logprobs, batch, counts, config):
    """The gradient of each term alone, f32[3, B, T]."""

    def terms(logprobs):
        sums = loss_sums(logprobs, batch, config)
        alone = [sums._replace(**{other: 0.0 for other in sums._fields if other != term}) for term in sums._fields]
        return jnp.stack([normalise_sums(term, counts, config)[0] for term in alone])

    return jax.jacrev(terms)(logprobs)


@pytest.mark.parametrize("x64, dtype, tolerance", [(False, np.float32, 1e-5), (True, np.float64, 1e-10)])
@pytest.mark.parametrize("reduction", ["segment", "global"])
def test_gradients_of_each_term_do_not_depend_on_the_number_of_micro_batches(x64, dtype, tolerance, reduction):
    batch, logprobs = random_batch(8, 24, dtype=dtype)
    counts, config = counts_of(batch), LossConfig(reduction=reduction)
    with jax.enable_x64(x64):
        whole = np.asarray(term_gradients(logprobs, batch, counts, config))
        for parts in (2, 4, 8):
            slices = [slice(i, i + 8 // parts) for i in range(0, 8, 8 // parts)]
            pieces = [term_gradients(logprobs[part], rows(batch, part), counts, config) for part in slices]
            for term, want in zip(np.concatenate(pieces, axis=1), whole, strict=True):
                assert np.linalg.norm(term - want) <= tolerance * np.linalg.norm(want) > 0


def test_one_row_or_one_row_per_turn_is_the_same_loss():
    turns = [[MODE, INNER, INNER], [INNER, OBSERVATION, INNER], [INNER, INNER, INNER]]
    advantage = np.array([[0.5, 1.0, 1.0]] + [[1.0] * 3] * 2)
    together, logprobs = tokens([sum(turns, [])], advantage=advantage.reshape(1, 9), ratio=1.1, reference=-0.2)
    apart, apart_logprobs = tokens(turns, advantage=advantage, ratio=1.1, reference=-0.2)
    loss = loss_and_metrics(logprobs, together, counts_of(together), CONFIG)[0]
    apart_loss = loss_and_metrics(apart_logprobs, apart, counts_of(apart), CONFIG)[0]
    assert float(loss) == pytest.approx(float(apart_loss), rel=1e-6)


def test_padding_does_not_change_the_loss():
    batch, logprobs = random_batch(4, 16)

    def widen(array):
        return np.pad(array, ((0, 0), (0, 48)))

    wide = TokenBatch(*(widen(array) for array in batch[:-1]), batch.retained)
    narrow_loss = loss_and_metrics(logprobs, batch, counts_of(batch), CONFIG)[0]
    wide_loss = loss_and_metrics(widen(logprobs), wide, counts_of(wide), CONFIG)[0]
    assert float(wide_loss) == pytest.approx(float(narrow_loss), rel=1e-6)


def test_mode_and_inner_have_their_own_means_or_share_one():
    batch, logprobs = tokens([[MODE, INNER, INNER, INNER]], advantage=[[1.0, 2.0, 2.0, 2.0]])
    counts = counts_of(batch)
    loss, metrics = loss_and_metrics(logprobs, batch, counts, CONFIG)
    assert (float(metrics["loss/pg_mode"]), float(metrics["loss/pg_inner"]), float(loss)) == (-1.0, -2.0, -3.0)
    loss, metrics = loss_and_metrics(logprobs, batch, counts, LossConfig(reduction="global"))
    assert (float(metrics["loss/pg_mode"]), float(metrics["loss/pg_inner"]), float(loss)) == (-0.25, -1.5, -1.75)


def test_the_kl_term_has_its_own_count_in_both_reductions():
    batch, logprobs = tokens([[MODE, INNER, INNER, PAD]], advantage=0.0, reference=-0.5)
    for reduction in ("segment", "global"):
        metrics = loss_and_metrics(logprobs, batch, counts_of(batch), LossConfig(reduction=reduction))[1]
        assert float(metrics["loss/kl"]) == pytest.approx(math.exp(-0.5) - 0.5, rel=1e-5)


@pytest.mark.parametrize("segments", [[[PROMPT, OBSERVATION, PAD]], [[PROMPT, INNER, INNER]], [[PROMPT, MODE, PAD]]])
def test_an_empty_term_is_skipped(segments):
    batch, logprobs = tokens(segments)
    (loss, metrics), gradient = value_and_grad(logprobs, batch, counts_of(batch), CONFIG)
    counts = counts_of(batch)
    assert float(metrics["loss/pg_mode"]) == -float(counts.mode > 0)
    assert float(metrics["loss/pg_inner"]) == -float(counts.inner > 0)
    assert np.all(np.isfinite(gradient)) and float(loss) == -float(counts.kl > 0)


def test_a_batch_that_is_excluded_as_a_whole_gives_zero():
    batch, logprobs = tokens([[MODE, INNER]] * 2, reference=-0.5, retained=False)
    (loss, _), gradient = value_and_grad(logprobs, batch, counts_of(batch), CONFIG)
    assert float(loss) == 0.0 and not np.any(gradient)


# The door


@pytest.mark.parametrize(
    "values",
    [{"dual_clip": 1.0}, {"dual_clip": 0.5}, {"clip_low": 1.0}, {"clip_high": -0.1}, {"kl_coefficient": -1.0}],
)
def test_illegal_coefficients_are_refused(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        LossConfig(**values)


def test_unknown_reductions_and_keys_are_refused():
    with pytest.raises(ConfigError, match="'mean'.*segment.*global"):
        LossConfig(reduction="mean")
    with pytest.raises(TypeError, match="clip_ratio_c"):
        LossConfig(clip_ratio_c=3.0)


def test_shapes_are_checked_at_the_door():
    batch, logprobs = tokens([[MODE, INNER]])
    with pytest.raises(ValueError, match=r"\[B, T\]"):
        comet_loss(logprobs[:, :1], batch, counts_of(batch), CONFIG)
    with pytest.raises(ValueError, match="retained"):
        comet_loss(logprobs, batch._replace(retained=np.array([True, True])), counts_of(batch), CONFIG)
