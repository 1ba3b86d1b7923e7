"""Gradients of each term alone over 1, 2, 4 and 8 micro-batches of unequal rows, in single and in double precision."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rw.core.advantages import AdvantageConfig
from rw.learner import programs
from rw.learner.batch import BatchConfig
from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.learner.step import TERMS, Learner, LearnerConfig

from .conftest import MODEL, make_groups, mode_candidates, relative_difference

pytestmark = pytest.mark.full


def gradients(params, reference_params, model, micro_batch, lengths, by_length):
    batch = BatchConfig(
        micro_batch=micro_batch, length_buckets=lengths, policy_buckets=(16, 64), logprob_chunk=16
    )
    config = LearnerConfig(batch=batch, advantage=AdvantageConfig(0.3), deterministic=not by_length)
    learner = Learner(model, Optimizer(OptimizerConfig()), reference_params, config)
    return learner.gradients(params, make_groups(0, count=4), TERMS, mode_candidates=mode_candidates)


def check(params, reference_params, model, tolerance):
    whole = gradients(params, reference_params, model, 16, (64,), by_length=False)
    for micro_batch, lengths in ((8, (64,)), (4, (32, 48, 64)), (2, (64, 128)), (2, (128,))):
        parts = gradients(params, reference_params, model, micro_batch, lengths, by_length=micro_batch == 4)
        for term in TERMS:
            difference = relative_difference(whole[term], parts[term])
            assert difference < tolerance, (term, micro_batch, lengths, difference)


def test_in_single_precision(params, reference_params):
    check(params, reference_params, MODEL, 1e-5)


def toy_hidden_states(params, config, tokens, positions):
    """A causal mean of embeddings through one layer, in the dtype of its parameters; the router computes in float32."""
    real = (positions >= 0)[..., None]
    embedded = jnp.where(real, params["model.embed_tokens.weight"][tokens], 0)
    mean = jnp.cumsum(embedded, axis=1) / jnp.arange(1, tokens.shape[1] + 1)[:, None]
    return jnp.tanh(mean @ params["model.layers.self_attn.q_proj.weight"]), None


def toy_token_logprobs(params, config, hidden, targets, temperature, chunk, with_entropy):
    logprobs = jax.nn.log_softmax(hidden @ params["model.embed_tokens.weight"].T / temperature)
    return jnp.take_along_axis(logprobs, targets[..., None], -1)[..., 0], -(jnp.exp(logprobs) * logprobs).sum(-1)


def test_in_double_precision(monkeypatch):
    monkeypatch.setattr(programs, "hidden_states", toy_hidden_states)
    monkeypatch.setattr(programs, "token_logprobs", toy_token_logprobs)
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        params, reference_params = (
            {
                "model.embed_tokens.weight": jnp.asarray(rng.normal(size=(MODEL.vocab_size, 32)) / 4),
                "model.layers.self_attn.q_proj.weight": jnp.asarray(rng.normal(size=(32, 32))),
            }
            for _ in range(2)
        )
        assert params["model.embed_tokens.weight"].dtype == jnp.float64
        check(params, reference_params, dataclasses.replace(MODEL, n_layers=1), 1e-10)
