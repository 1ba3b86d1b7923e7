"""Shapes and numerics of one Qwen3 model. No arrays here, and nothing of training or sampling."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from rw.errors import ConfigError

ATTENTION_BACKENDS = ("xla", "chunked_xla", "splash", "pallas_gpu", "cudnn")
REMAT_POLICIES = (
    "none",
    "nothing_saveable",
    "attention_saveable",  # what heads read: spares backends that recompute their weights themselves a third pass
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
)
SAVED_ATTENTION = "attention"  # its name in a layer, for the policy above
DTYPES = ("float32", "bfloat16", "float16", "float64")  # float64 needs jax_enable_x64
_COUNTS = ("vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ff", "attention_chunk")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A Qwen3 decoder in float32 unless said otherwise; raises ConfigError on values that do not fit together."""

    vocab_size: int  # rows of the embedding: the tokenizer's ids, usually padded
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int  # free of d_model / n_heads: Qwen3-4B has 32 heads of 128 over a width of 2560
    d_ff: int
    rope_theta: float  # 1e6 in Qwen3, 5e6 in its 2507 variants
    norm_eps: float = 1e-6
    tied: bool = True  # the head is the embedding itself
    qk_norm: bool = True
    param_dtype: str = "float32"
    compute_dtype: str = "float32"
    attention: str = "xla"  # under a kernel's name (splash, pallas_gpu, cudnn) a cache is read by chunked_xla
    attention_chunk: int = 128  # queries and keys a step of chunked_xla: best on CPU, raise it on accelerators
    remat: str = "nothing_saveable"  # policy of each layer in the scanned forward

    def __post_init__(self):
        for name in _COUNTS:
            _require(getattr(self, name) >= 1, name, getattr(self, name), "an integer of at least 1")
        _require(self.rope_theta > 0, "rope_theta", self.rope_theta, "a number above 0")
        _require(self.norm_eps > 0, "norm_eps", self.norm_eps, "a number above 0")
        divisors = [n for n in range(1, self.n_heads + 1) if self.n_heads % n == 0]
        _require(self.n_kv_heads in divisors, "n_kv_heads", self.n_kv_heads, f"a divisor of n_heads, one of {divisors}")
        _require(self.head_dim % 2 == 0, "head_dim", self.head_dim, "an even number (rotary halves)")
        for name, legal in (
            ("param_dtype", DTYPES),
            ("compute_dtype", DTYPES),
            ("attention", ATTENTION_BACKENDS),
            ("remat", REMAT_POLICIES),
        ):
            _require(getattr(self, name) in legal, name, getattr(self, name), "one of " + ", ".join(legal))


def _require(fits: bool, name: str, value, legal: str) -> None:
    if not fits:
        raise ConfigError(f"model.{name}={value!r}: must be {legal}")


def wide(dtype):
    """The dtype in which sums and norms of `dtype` are taken: float32, or float64 where the model is in that."""
    return jnp.promote_types(dtype, jnp.float32)
