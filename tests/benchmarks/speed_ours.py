"""rw's part in `speed.py`: `gen` through the sampler engine, `step` through the learner, and the logits of both."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import time
from collections.abc import Sequence

import jax
import numpy as np
import speed_work as work

from rw.core.advantages import AdvantageConfig
from rw.core.losses import LossConfig
from rw.kept_memory import keep_memory
from rw.learner.batch import BatchConfig
from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.learner.publish import publish
from rw.learner.state import init_state
from rw.learner.step import Learner, LearnerConfig
from rw.model.config import ModelConfig
from rw.model.hf import is_turned
from rw.model.logprobs import logits as head_logits
from rw.model.qwen3 import LAYER_PREFIX, Params, hidden_states, shapes_of
from rw.sampler.device import DeviceThread
from rw.sampler.engine import EngineConfig, SamplerEngine
from rw.sampler.interface import EpisodeId, SampledTurn, SamplingConfig, TurnRequest
from rw.types import Advantages, Group, Mode, Query, ScoredTrajectory, Segment, Status, Trajectory, Verdict

ENGINE = EngineConfig(
    slots=work.ROWS,
    lengths=(work.PROMPT, work.PROMPT + work.NEW // 2, work.PROMPT + work.NEW),
    decode_widths=(work.ROWS,),
    prefill_rows=(4,),
    prefill_chunk=work.PROMPT,
    prefill_tokens=work.ROWS * work.PROMPT,
    steps_per_dispatch=32,
    work_cache="rows",  # all have one length
)
BATCH = BatchConfig(
    micro_batch=4, length_buckets=(work.PROMPT + work.NEW,), policy_buckets=(work.NEW,), logprob_chunk=work.NEW
)


class EndlessCodec:
    """What the engine asks of a tokenizer: every id of the model exists, and none of them ends a turn."""

    def __init__(self, vocab: int):
        self.vocab_size = vocab
        self.end_tokens = frozenset((vocab,))  # not an id
        self.token_bytes = [b""] * vocab


def model_of(shape: work.Shape) -> ModelConfig:
    """The settings that a user would take for a small model on CPU."""
    return ModelConfig(
        vocab_size=shape.vocab,
        d_model=shape.width,
        n_layers=shape.layers,
        n_heads=shape.heads,
        n_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        d_ff=shape.ff,
        rope_theta=work.ROPE_THETA,
        norm_eps=work.NORM_EPS,
        attention="xla",
        remat="none",
    )


def stacked(shape: work.Shape, config: ModelConfig) -> Params:
    """The work's weights as rw has them: turned, and one array for all layers."""
    given, params = work.weights(shape), {}
    for name in shapes_of(config):
        inner = name.removeprefix(LAYER_PREFIX)
        in_layers = inner != name
        names = [f"{LAYER_PREFIX}{layer}.{inner}" for layer in range(shape.layers)] if in_layers else [name]
        arrays = [given[n].T if is_turned(n, given[n].ndim) else given[n] for n in names]
        params[name] = jax.numpy.asarray(np.stack(arrays) if in_layers else arrays[0])
    return params


class Generation:
    """An engine with the work's weights on an event loop of its own."""

    def __init__(self, shape: work.Shape, config: EngineConfig = ENGINE, episodes: int | None = None):
        model = model_of(shape)
        self.loop = asyncio.new_event_loop()
        self.device = DeviceThread()
        sampling = SamplingConfig(work.TEMPERATURE, work.TOP_P)
        codec = EndlessCodec(shape.vocab)
        self.engine = SamplerEngine(codec, model, sampling, config, self.device, key_seed=0, episodes=episodes)
        self._batches = itertools.count()
        self.loop.run_until_complete(self.engine.publish(publish(stacked(shape, model), model, version=1)))
        self.loop.run_until_complete(self.engine.warm_up())

    def sample(self, prompts: Sequence[np.ndarray], new: int) -> list[SampledTurn]:
        """`new` tokens for every prompt, all at once."""
        return self.loop.run_until_complete(self._sample(prompts, new, next(self._batches)))

    async def _sample(self, prompts, new: int, batch: int) -> list[SampledTurn]:
        episodes = [EpisodeId(batch, f"q{i}", 0) for i in range(len(prompts))]
        requests = [TurnRequest(e, 0, p, len(p), new, ()) for e, p in zip(episodes, prompts, strict=True)]
        turns = await asyncio.gather(*(self.engine.generate(request) for request in requests))
        for episode in episodes:
            await self.engine.release(episode)
        return turns

    def close(self) -> None:
        """Ends the engine, its thread and its loop."""
        self.loop.run_until_complete(self.engine.close())
        self.device.close()
        self.loop.close()


def gen(shape: work.Shape) -> work.Run:
    """Everything is compiled when this returns: what that took is told with the first run."""
    started = time.perf_counter()
    generation = Generation(shape)
    atexit.register(generation.close)
    facts = {"warm_up_s": time.perf_counter() - started}
    prompts = list(work.token_rows(shape)[:, : work.PROMPT])

    def run():
        tokens = sum(len(turn.tokens) for turn in generation.sample(prompts, work.NEW))
        if tokens != work.ROWS * work.NEW:
            raise RuntimeError(f"sampled {tokens} tokens instead of {work.ROWS * work.NEW}")
        return facts

    return run


def step(shape: work.Shape, batch: BatchConfig = BATCH) -> work.Run:
    """One whole learner step a run, from recorded groups to new parameters."""
    model = model_of(shape)
    params = stacked(shape, model)
    optimizer = Optimizer(
        OptimizerConfig(learning_rate=work.LEARNING_RATE, weight_decay=work.WEIGHT_DECAY, clip_norm=work.CLIP_NORM)
    )
    config = LearnerConfig(
        batch=batch,
        loss=LossConfig(clip_low=work.CLIP, clip_high=work.CLIP, kl_coefficient=work.KL),
        advantage=AdvantageConfig(efficiency_weight=0.0),
        advantage_function=given_advantages,
        logprob_temperature=work.TEMPERATURE,
    )
    learner = Learner(model, optimizer, params, config)
    state = init_state(params, optimizer, seed=0)
    groups = recorded_groups(shape)

    def run():
        nonlocal state
        state, metrics = learner.step(state, groups, cold_start=True)
        jax.block_until_ready(state.params)
        return {"grad_norm": metrics["grad_norm"], "micro_batches": metrics["micro_batches"]}

    return run


def given_advantages(batch, config) -> Advantages:
    """The work's own, whatever the rewards are."""
    values = work.advantages().reshape(batch.retained.shape)
    return Advantages(grpo=values, mode=values, inner=values)


def recorded_groups(shape: work.Shape) -> list[Group]:
    """The work's rows as rollouts whose last half the router sampled."""
    segments = np.repeat([Segment.PROMPT, Segment.INNER], [work.PROMPT, work.NEW]).astype(np.uint8)
    rows = work.token_rows(shape).reshape(-1, work.GROUP, len(segments))
    return [
        Group(g, Query(f"q{g}", "made up", "math", "?", "a"), Mode.SINGLE, tuple(_rollouts(g, part, segments)))
        for g, part in enumerate(rows)
    ]


def _rollouts(group: int, rows: np.ndarray, segments: np.ndarray) -> list[ScoredTrajectory]:
    return [
        ScoredTrajectory(
            Trajectory(
                query_id=f"q{group}",
                rollout_index=k,
                mode=Mode.SINGLE,
                forced=True,
                tokens=tokens,
                segments=segments,
                sampled_logprobs=np.full(len(tokens), -1, np.float32),
                prompt_length=work.PROMPT,
                calls=(),
                answer="a",
                status=Status.ANSWERED,
            ),
            Verdict(k % 2 == 0),
        )
        for k, tokens in enumerate(rows)
    ]


def machine(shape: work.Shape) -> work.Run:
    """What the machine gives at the moment: large float32 products, and a pass over what a decode step reads."""
    square = jax.numpy.ones((2048, 2048))
    memory = jax.numpy.ones(max(shape.layers * shape.layer_weights + shape.head_weights, 1 << 22))
    product = jax.jit(jax.numpy.dot)
    scaled = jax.jit(lambda x: x * 1.0001, donate_argnums=0)

    def run():
        nonlocal memory
        seconds = {"product": [], "pass": []}
        for _ in range(5):
            started = time.perf_counter()
            product(square, square).block_until_ready()
            between = time.perf_counter()
            memory = scaled(memory).block_until_ready()
            seconds["product"].append(between - started)
            seconds["pass"].append(time.perf_counter() - between)
        return {"flops": 2 * 2048**3 / min(seconds["product"]), "bytes_s": 2 * memory.nbytes / min(seconds["pass"])}

    return run


def logits(shape: work.Shape) -> tuple[np.ndarray, dict]:
    """(f32[LOGIT_ROWS, T, V] of the learner's forward, how far the engine's log-probs are from that forward's)."""
    model = model_of(shape)
    params = stacked(shape, model)
    forward = jax.jit(lambda tokens: _all_logits(params, model, tokens))
    generation = Generation(shape)
    prompts = list(work.token_rows(shape)[: work.LOGIT_ROWS, : work.PROMPT])
    turns = generation.sample(prompts, work.NEW)
    generation.close()
    rows = np.stack([np.concatenate([p, turn.tokens]) for p, turn in zip(prompts, turns, strict=True)])
    before = jax.nn.log_softmax(forward(rows)[:, work.PROMPT - 1 : -1] / work.TEMPERATURE)
    expected = np.take_along_axis(np.asarray(before), rows[:, work.PROMPT :, None], axis=-1)[..., 0]
    error = np.abs(expected - np.stack([turn.logprobs for turn in turns])).max()
    return np.asarray(forward(work.token_rows(shape)[: work.LOGIT_ROWS])), {"sampler_logprob_error": float(error)}


def _all_logits(params: Params, model: ModelConfig, tokens):
    positions = jax.numpy.broadcast_to(jax.numpy.arange(tokens.shape[1]), tokens.shape)
    return head_logits(params, model, hidden_states(params, model, tokens, positions)[0])


if __name__ == "__main__":
    keep_memory()  # as `rw train` does
    work.take_part({"gen": gen, "step": step, "machine": machine}, logits)
