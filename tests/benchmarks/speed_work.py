"""The work that `speed.py` times, and how a participant is told to do it. Numpy and the standard library only: every
participant imports this file in an environment of its own.

Random Qwen3 weights in float32 and 32 rows of 128 prompt and 128 new tokens:

    gen   sample the 128 new tokens of every row at temperature 0.8 and top-p 0.95, prefill included, no early end
    step  one GRPO update on whole rows: reference log-probs, clipped loss with KL, backward, global clip, AdamW
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

ROWS, PROMPT, NEW = 32, 128, 128
TEMPERATURE, TOP_P = 0.8, 0.95
GROUP = 4  # rows of a prompt, as far as advantages go
KL, CLIP, LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM = 0.04, 0.2, 1e-5, 1e-4, 1.0
ROPE_THETA, NORM_EPS = 1_000_000, 1e-6  # tunix 0.1.7 rotates by this theta whatever its config says
PAD = 0  # no row holds it
LOGIT_ROWS = 4  # rows whose logits are compared before anything is timed


@dataclasses.dataclass(frozen=True)
class Shape:
    """A Qwen3 decoder with tied embeddings."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    vocab: int

    @property
    def layer_weights(self) -> int:
        """Weights of one layer's matrices."""
        return self.width * (2 * (self.heads + self.kv_heads) * self.head_dim + 3 * self.ff)

    @property
    def head_weights(self) -> int:
        """Weights of the output head, which is the embedding."""
        return self.width * self.vocab


SHAPES = {
    "toy": Shape(layers=1, width=16, heads=2, kv_heads=1, head_dim=8, ff=24, vocab=64),  # for tests
    "small": Shape(layers=2, width=64, heads=4, kv_heads=2, head_dim=16, ff=192, vocab=1024),  # of rollout_speed.py
    "tiny": Shape(layers=4, width=256, heads=8, kv_heads=4, head_dim=32, ff=768, vocab=4096),
    "medium": Shape(layers=8, width=512, heads=8, kv_heads=4, head_dim=64, ff=1536, vocab=8192),
}


def weights(shape: Shape, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights by Hugging Face's names, matrices [out, in]: normal with deviation 0.05, norms around 1."""
    rng = np.random.default_rng(seed)
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (shape.vocab, shape.width)}
    for layer in range(shape.layers):
        inner = {
            "input_layernorm": (shape.width,),
            "self_attn.q_proj": (queries, shape.width),
            "self_attn.k_proj": (keys, shape.width),
            "self_attn.v_proj": (keys, shape.width),
            "self_attn.o_proj": (shape.width, queries),
            "self_attn.q_norm": (shape.head_dim,),
            "self_attn.k_norm": (shape.head_dim,),
            "post_attention_layernorm": (shape.width,),
            "mlp.gate_proj": (shape.ff, shape.width),
            "mlp.up_proj": (shape.ff, shape.width),
            "mlp.down_proj": (shape.width, shape.ff),
        }
        sizes |= {f"model.layers.{layer}.{name}": size for name, size in inner.items()}
    sizes["model.norm"] = (shape.width,)
    drawn = {}
    for name, size in sizes.items():
        noise = rng.standard_normal(size).astype(np.float32)
        drawn[f"{name}.weight"] = 1 + np.float32(0.1) * noise if len(size) == 1 else np.float32(0.05) * noise
    return drawn


def token_rows(shape: Shape) -> np.ndarray:
    """i32[ROWS, PROMPT + NEW], none of them PAD or another of the first three ids."""
    return np.random.default_rng(1).integers(3, shape.vocab, (ROWS, PROMPT + NEW), dtype=np.int32)


def advantages() -> np.ndarray:
    """f32[ROWS], of mean 0 and variance 1 within each group."""
    scores = np.random.default_rng(2).standard_normal((ROWS // GROUP, GROUP))
    centred = scores - scores.mean(axis=1, keepdims=True)
    return (centred / scores.std(axis=1, ddof=1, keepdims=True)).ravel().astype(np.float32)


def gen_floor(shape: Shape, flops: float, bytes_s: float) -> float:
    """Seconds that `gen` takes at least: prefill at the matmul rate, decode at that or at the memory's, whichever is
    slower; the head only where a token is drawn."""
    body, head = shape.layers * shape.layer_weights, shape.head_weights
    prefill = 2 * body * PROMPT + _attention(shape, range(1, PROMPT + 1)) + 2 * head
    contexts = range(PROMPT + 1, PROMPT + NEW)
    decode = 2 * (body + head) * len(contexts) + _attention(shape, contexts)
    keys_values = 2 * 4 * shape.layers * shape.kv_heads * shape.head_dim
    moved = len(contexts) * 4 * (body + head) + ROWS * keys_values * sum(contexts)
    return ROWS * prefill / flops + max(ROWS * decode / flops, moved / bytes_s)


def step_floor(shape: Shape, flops: float, bytes_s: float) -> float:
    """Seconds that `step` takes at least: the operations of four forwards (the reference's, and policy and backward as
    three), and AdamW reading four arrays of the parameters' size and writing three."""
    body, head = shape.layers * shape.layer_weights, shape.head_weights
    forward = 2 * body * (PROMPT + NEW) + _attention(shape, range(1, PROMPT + NEW + 1)) + 2 * head * NEW
    return 4 * ROWS * forward / flops + 7 * 4 * (body + head) / bytes_s


def _attention(shape: Shape, contexts: Sequence[int]) -> float:
    """Operations of one query over each of these numbers of keys, in all layers."""
    return 4.0 * shape.layers * shape.heads * shape.head_dim * sum(contexts)


Run = Callable[[], Mapping[str, Any]]  # does the work once; what it returns goes beside the seconds


def take_part(parts: Mapping[str, Callable[[Shape], Run]], logits: Callable[[Shape], tuple[np.ndarray, dict]]) -> None:
    """A participant's main: `script.py PART SHAPE` or `script.py logits SHAPE FILE`.

    Each line on stdin asks for one run, each JSON line on stdout tells the seconds of one; a first run, which compiles,
    is made without being asked for. Whatever libraries print goes to stderr.
    """
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    part, shape = sys.argv[1], SHAPES[sys.argv[2]]
    if part == "logits":
        values, facts = logits(shape)
        np.save(sys.argv[3], values)
        print(json.dumps(facts), file=channel)
        return
    run = parts[part](shape)
    print(json.dumps(_timed(run)), file=channel)
    for _ in sys.stdin:
        print(json.dumps(_timed(run)), file=channel)


def _timed(run: Run) -> dict[str, Any]:
    """`s` is the wall's; `cpu_s`, of all threads, tells how much of it other processes took where it is far below two a
    second on two cores."""
    started, used = time.perf_counter(), time.process_time()
    facts = run()
    return {"s": time.perf_counter() - started, "cpu_s": time.process_time() - used, **facts}
