"""Token metrics are over the tokens of the batch, wherever the micro-batches put them."""

import numpy as np
import pytest

from rw.core.losses import LossConfig
from rw.learner.diagnostics import TokenRecord, of_tokens
from rw.types import Segment, TokenBatch

M, I = int(Segment.MODE), int(Segment.INNER)


def record(segments, logprobs, retained, *, sampled=None, entropy=0.0):
    """A micro-batch of [B, P] tokens; what is not a policy token of a retained row holds NaN."""
    segments, retained = np.array(segments, np.uint8), np.array(retained)
    held = np.isin(segments, [M, I]) & retained[:, None]
    fill = lambda values: np.where(held, values, np.nan).astype(np.float32)  # noqa: E731
    logprobs = np.array(logprobs)
    policy = TokenBatch(
        tokens=segments,
        positions=segments,
        segments=segments,
        advantage=fill(np.ones_like(logprobs)),
        old_logprobs=fill(logprobs),
        reference_logprobs=fill(logprobs + 0.5),
        retained=retained,
    )
    sampled = logprobs if sampled is None else np.array(sampled)
    return TokenRecord(policy, fill(logprobs), fill(sampled), fill(np.full_like(logprobs, entropy)))


def test_means_and_quantiles_are_of_the_whole_batch():
    first = record([[M, I, 0], [I, I, I]], [[-1.0, -2.0, 0.0], [-1.0, -1.0, -1.0]], [True, False], entropy=1.0)
    second = record([[I, I, I]], [[-1.0, -1.0, -3.0]], [True], sampled=[[-1.0, -1.0, -2.0]], entropy=5.0)
    metrics = of_tokens([first, second], LossConfig())
    assert metrics["policy/entropy/mode"] == pytest.approx(1)
    assert metrics["policy/entropy/inner"] == pytest.approx((1 + 3 * 5) / 4)
    assert metrics["policy/kl_ref/inner"] == pytest.approx(np.exp(0.5) - 1.5, rel=1e-5)
    assert metrics["sampler/logp_diff/max"] == 1 and metrics["sampler/logp_diff/mean_abs"] == pytest.approx(1 / 5)
    assert metrics["sampler/ratio_outside_10pct"] == pytest.approx(1 / 5)
    assert metrics["policy/ratio/max"] == 1


def test_what_was_not_measured_is_left_out():
    forced = record([[I, I]], [[-1.0, -2.0]], [True])
    metrics = of_tokens([forced], LossConfig(kl_coefficient=0.0))
    assert "policy/entropy/inner" in metrics and "policy/entropy/mode" not in metrics
    assert not any(name.startswith("policy/kl_") for name in metrics)
    assert of_tokens([], LossConfig()) == {}
    assert of_tokens([record([[I, I]], [[-1.0, -2.0]], [False])], LossConfig()) == {}
