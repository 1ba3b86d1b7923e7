"""Golden vectors of the reference implementation, in float32 and under x64, eager and under jit."""

import json
import pathlib

import jax
import numpy as np
import pytest

from rw.core.advantages import AdvantageConfig, comet
from rw.core.losses import LossConfig, comet_loss, count_tokens
from rw.core.schedule import forced_ratio
from rw.core.support import support_loss
from rw.types import GroupBatch, Mode, Segment, TokenBatch

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "data" / "comet_golden.json").read_text())
PRECISIONS = [(False, np.float32, 1e-5, 1e-5), (True, np.float64, 1e-9, 1e-8)]
PRECISION = pytest.mark.parametrize("x64, dtype, tolerance, gradient_tolerance", PRECISIONS, ids=["float32", "x64"])
jitted_comet = jax.jit(comet, static_argnums=1)
value_and_grad = jax.jit(jax.value_and_grad(comet_loss, has_aux=True), static_argnums=3)
SEGMENT_CODES = np.array([Segment.OBSERVATION, Segment.MODE, Segment.INNER], np.uint8)


def group_batch(group, dtype) -> GroupBatch:
    return GroupBatch(
        rewards=np.stack([group["r_task"], group["r_eff"]], axis=-1).astype(dtype)[None],
        mode=np.array([[Mode[mode.upper()] for mode in group["mode"]]], np.int32),
        retained=np.array([group["retained"]]),
        forced=np.array([False]),
    )


def token_batch(case, dtype) -> tuple[TokenBatch, np.ndarray]:
    segments = SEGMENT_CODES[np.array(case["segment"])]
    by_segment = {
        Segment.MODE: np.array(case["advantage_mode"])[:, None],
        Segment.INNER: np.array(case["advantage_inner"])[:, None],
    }
    advantage = sum(np.where(segments == segment, values, 0.0) for segment, values in by_segment.items())
    batch = TokenBatch(
        tokens=np.zeros(segments.shape, np.int32),
        positions=np.broadcast_to(np.arange(segments.shape[1], dtype=np.int32), segments.shape),
        segments=segments,
        advantage=advantage.astype(dtype),
        old_logprobs=np.array(case["logprob_old"], dtype),
        reference_logprobs=np.array(case["logprob_ref"], dtype),
        retained=np.array(case["retained"]),
    )
    return batch, np.array(case["logprob"], dtype)


@PRECISION
@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_advantages_match_every_golden_group(x64, dtype, tolerance, gradient_tolerance, jitted):
    function = jitted_comet if jitted else comet
    for group in GOLDEN["groups"]:
        config = AdvantageConfig(efficiency_weight=group["alpha"], cold_start=group["cold_start"])
        with jax.enable_x64(x64):
            advantages = function(group_batch(group, dtype), config)
        assert advantages.grpo.dtype == dtype
        for name in ("grpo", "mode", "inner"):
            np.testing.assert_allclose(
                getattr(advantages, name)[0],
                group[f"advantage_{name}"],
                rtol=0,
                atol=tolerance,
                err_msg=f"{group['name']} {name}",
            )


@PRECISION
@pytest.mark.parametrize("case", GOLDEN["losses"])
def test_loss_and_gradient_match_golden(case, x64, dtype, tolerance, gradient_tolerance):
    batch, logprobs = token_batch(case, dtype)
    counts = count_tokens(batch.segments, batch.retained)
    config = LossConfig(kl_coefficient=case["beta"])
    with jax.enable_x64(x64):
        (loss, metrics), gradient = value_and_grad(logprobs, batch, counts, config)
    assert loss.dtype == dtype
    got = [loss, metrics["loss/pg_mode"], metrics["loss/pg_inner"], metrics["loss/kl"]]
    want = [case["loss_total"], case["loss_mode"], case["loss_inner"], case["loss_kl"]]
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    want_gradient = np.array(case["grad_logprob"])
    scale = max(np.linalg.norm(want_gradient), 1.0)
    assert np.linalg.norm(np.asarray(gradient, np.float64) - want_gradient) <= gradient_tolerance * scale


@PRECISION
@pytest.mark.parametrize("case", GOLDEN["support"])
def test_support_loss_matches_golden(case, x64, dtype, tolerance, gradient_tolerance):
    with jax.enable_x64(x64):
        loss, support = jax.jit(support_loss)(np.array(case["scores"], dtype), 0.05)
    assert loss.dtype == dtype
    np.testing.assert_allclose(loss, case["loss"], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(support, case["p_bar"], rtol=tolerance, atol=tolerance)


def test_forced_ratio_matches_golden():
    for index, ratio in GOLDEN["forced_ratio"].items():
        assert forced_ratio(int(index)) == ratio
