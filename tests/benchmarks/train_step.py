"""One COMET-GRPO step of a model of real size on whatever device is there: seconds, TFLOP/s, peak memory.

    python tests/benchmarks/train_step.py                       # Qwen3-0.6B's shape, 2 rows of 512 tokens: 17 GiB, CPU
    python tests/benchmarks/train_step.py --compute bfloat16 --rows 8 --tokens 2048 --attention cudnn      # a GPU
    python tests/benchmarks/train_step.py --layers 2 --width 128 --vocab 1024                              # small

The step is the learner's own: reference log-probs, gradients of every term, clip, AdamW in float32. Beside it the same
device multiplies large square matrices, in the same run: the share of that is what the step makes of the device.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import time

import jax
import jax.numpy as jnp
import numpy as np

from rw.core.advantages import AdvantageConfig
from rw.learner.batch import BatchConfig
from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.learner.state import init_state
from rw.learner.step import Learner, LearnerConfig
from rw.model.config import ModelConfig
from rw.model.qwen3 import init_params
from rw.types import Group, Mode, Query, ScoredTrajectory, Segment, Status, Trajectory, Verdict

QWEN3_06B = ModelConfig(
    vocab_size=151_936, d_model=1024, n_layers=28, n_heads=16, n_kv_heads=8, head_dim=128, d_ff=3072, rope_theta=1e6,
    attention="chunked_xla",
)  # fmt: skip
POLICY_SHARE = 4  # one token in so many was sampled by the router; the others are prompt and replies


def main() -> None:
    known = parse()
    model = dataclasses.replace(
        QWEN3_06B,
        n_layers=known.layers,
        d_model=known.width,
        d_ff=3 * known.width,
        vocab_size=known.vocab,
        compute_dtype=known.compute,
        attention=known.attention,
    )
    params = init_params(jax.random.key(0), model)
    optimizer = Optimizer(OptimizerConfig())
    policy = known.tokens // POLICY_SHARE
    batch = BatchConfig(micro_batch=known.micro_batch, length_buckets=(known.tokens,), policy_buckets=(policy,))
    learner = Learner(model, optimizer, params, LearnerConfig(batch=batch, advantage=AdvantageConfig(0.0)))
    state = init_state(params, optimizer, seed=0)
    group = recorded_group(known.rows, known.tokens, policy, model.vocab_size)
    seconds = []
    for _ in range(known.steps + 1):  # the first one compiles
        started = time.perf_counter()
        state, metrics = learner.step(state, [group], cold_start=True)
        seconds.append(time.perf_counter() - started)
        print(f"step {len(seconds) - 1}: {seconds[-1]:.1f} s, gradient norm {metrics['grad_norm']:.3f}", flush=True)
    ceiling = matmul_flops(model.compute_dtype)
    work = step_flops(model, known.rows, known.tokens, policy)
    best = min(seconds[1:])
    print(
        json.dumps(
            {
                "device": jax.devices()[0].device_kind,
                "parameters": sum(x.size for x in params.values()),
                "rows": known.rows,
                "tokens": known.tokens,
                "compile_s": round(seconds[0] - best, 1),
                "step_s": round(best, 2),
                "tokens_per_s": round(known.rows * known.tokens / best, 1),
                "tflops": round(work / best / 1e12, 4),
                "share_of_matmul": round(work / best / ceiling, 3),
                "host_peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
                "device_peak_gib": round(device_peak() / 2**30, 2),
            }
        )
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("layers", 28), ("width", 1024), ("vocab", 151_936), ("rows", 2), ("tokens", 512)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1, help="timed after the one that compiles")
    parser.add_argument("--compute", default="float32")
    parser.add_argument("--attention", default="chunked_xla")
    return parser.parse_args()


def recorded_group(rows: int, tokens: int, policy: int, vocab: int) -> Group:
    """A group of full rows, whose last tokens are the router's; every other rollout is right."""
    rng = np.random.default_rng(0)
    segments = np.full(tokens, int(Segment.OBSERVATION), np.uint8)
    segments[-policy:] = int(Segment.INNER)
    rollouts = []
    for k in range(rows):
        trajectory = Trajectory(
            query_id="q",
            rollout_index=k,
            mode=Mode.SINGLE,
            forced=True,
            tokens=rng.integers(0, vocab, tokens).astype(np.int32),
            segments=segments,
            sampled_logprobs=np.full(tokens, -1, np.float32),
            prompt_length=1,
            calls=(),
            answer="a",
            status=Status.ANSWERED,
        )
        rollouts.append(ScoredTrajectory(trajectory, Verdict(k % 2 == 0)))
    return Group(0, Query("q", "simulated", "math", "?", "a"), Mode.SINGLE, tuple(rollouts))


def step_flops(model: ModelConfig, rows: int, tokens: int, policy: int) -> float:
    """Floating-point operations of a step: forward 2, backward 4 a weight and token, and 2 for the reference.

    What rematerialisation computes again does not count, as usual.
    """
    attention = (2 * model.n_heads + 2 * model.n_kv_heads) * model.head_dim * model.d_model
    layer = attention + 3 * model.d_model * model.d_ff
    scores = 2 * model.n_heads * model.head_dim * tokens / 2  # q·k and weights·v, half of the square
    per_token = model.n_layers * (layer + scores)
    return 8.0 * rows * (tokens * per_token + policy * model.d_model * model.vocab_size)


def matmul_flops(dtype: str) -> float:
    """Of square matrices, best of five."""
    size = 4096 if jax.default_backend() != "cpu" else 2048
    a = jnp.ones((size, size), dtype)
    product = jax.jit(jnp.dot)
    product(a, a).block_until_ready()
    best = np.inf
    for _ in range(5):
        started = time.perf_counter()
        product(a, a).block_until_ready()
        best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 / best


def device_peak() -> float:
    """Bytes, where the device reports them; else 0."""
    stats = jax.devices()[0].memory_stats() or {}
    return float(stats.get("peak_bytes_in_use", 0))


if __name__ == "__main__":
    main()
