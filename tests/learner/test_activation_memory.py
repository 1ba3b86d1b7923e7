"""What a micro-batch's gradient holds in between grows with its tokens, not with their square."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rw.core.advantages import AdvantageConfig
from rw.learner.batch import BatchConfig, empty_micro_batch
from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.learner.step import LOSS_TERMS, Learner, LearnerConfig
from rw.model.config import ModelConfig
from rw.model.qwen3 import init_params
from rw.types import TokenCounts

pytestmark = pytest.mark.full

MODEL = ModelConfig(
    vocab_size=512, d_model=32, n_layers=3, n_heads=4, n_kv_heads=2, head_dim=16, d_ff=64, rope_theta=1e4,
    attention="chunked_xla", attention_chunk=64, remat="nothing_saveable",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """Compiled as in a run: memory is planned by the optimised program."""


def temporaries(length, packing="none", **model):
    """Bytes that the compiled gradient of one row of `length` tokens holds besides arguments and results.

    Half of its tokens are the policy's. The row exists as shapes only.
    """
    config = dataclasses.replace(MODEL, **model)
    params = jax.eval_shape(lambda: init_params(jax.random.key(0), config))
    batch = BatchConfig(1, packing, (length,), (length // 2,), logprob_chunk=64)
    learner = Learner(config, Optimizer(OptimizerConfig()), params, LearnerConfig(batch, advantage=AdvantageConfig(0)))
    micro = empty_micro_batch(length, length // 2, batch)
    total = jax.eval_shape(lambda: jax.tree.map(jnp.zeros_like, params))
    counts, weights = TokenCounts(*(np.float32(1),) * 3), np.ones(len(LOSS_TERMS), np.float32)
    program = learner._gradient._add.lower(total, params, micro, counts, weights).compile()
    return program.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("packing", ["none", "packed"])
def test_twice_the_tokens_take_twice_the_memory(packing):
    small, middle, large = (temporaries(length, packing) for length in (1024, 2048, 4096))
    assert 1.8 < middle / small < 2.2 and 1.8 < large / middle < 2.2


def test_the_longest_rows_take_as_much_a_token_as_short_ones():
    assert temporaries(18432) / 18432 == pytest.approx(temporaries(2048) / 2048, rel=0.1)


def test_plain_attention_does_not():
    """The measure can tell: this is what the others avoid."""
    assert temporaries(2048, attention="xla") > 3 * temporaries(1024, attention="xla")
