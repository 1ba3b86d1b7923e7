"""What tunix has, in `speed.py`: its own sampler, and its GRPO learner's update with its own reference log-probs.

Runs in an environment of its own: google-tunix. The model comes from a safetensors directory through tunix's loader.
"""

from __future__ import annotations

import logging
import os
import pathlib
import tempfile

os.environ["TQDM_DISABLE"] = "1"
os.environ["WANDB_MODE"] = "disabled"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import optax
import speed_work as work
from flax import nnx
from safetensors.numpy import save_file
from tunix.generate.sampler import CacheConfig, Sampler
from tunix.models.qwen3.model import ModelConfig, Qwen3
from tunix.models.qwen3.params import create_model_from_safe_tensors
from tunix.rl.common import TrainExample
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rl_cluster import ClusterConfig, RLCluster, RLTrainingConfig, Role
from tunix.rl.rollout.base_rollout import RolloutConfig

logging.disable(logging.WARNING)
MESH = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))


class NumberWords:
    """A tokenizer of decimal numbers. Its end token is no id of the model, so that no row ends early."""

    def __init__(self, shape: work.Shape):
        self._beyond = shape.vocab

    def encode(self, text: str, **options) -> list[int]:
        return list(map(int, text.split()))

    def decode(self, ids, **options) -> str:
        return " ".join(str(i) for i in ids)

    def bos_id(self) -> int | None:
        return None

    def eos_id(self) -> int:
        return self._beyond

    def pad_id(self) -> int:
        return work.PAD


def load(shape: work.Shape) -> Qwen3:
    """The model in float32 with the work's weights."""
    config = ModelConfig(
        num_layers=shape.layers,
        vocab_size=shape.vocab,
        embed_dim=shape.width,
        hidden_dim=shape.ff,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rope_theta=work.ROPE_THETA,
        norm_eps=work.NORM_EPS,
        use_tied_embedding=True,
    )
    with tempfile.TemporaryDirectory(prefix="speed_tunix_") as folder:
        save_file(work.weights(shape), pathlib.Path(folder) / "model.safetensors")
        return create_model_from_safe_tensors(folder, config, MESH, dtype=jnp.float32)


def gen(shape: work.Shape) -> work.Run:
    """The sampler with a cache no longer than the work needs."""
    cache = CacheConfig(work.PROMPT + work.NEW, shape.layers, shape.kv_heads, shape.head_dim)
    words = NumberWords(shape)
    sampler = Sampler(load(shape), words, cache)
    prompts = [words.decode(row) for row in work.token_rows(shape)[:, : work.PROMPT]]

    def run():
        made = sampler(
            prompts,
            max_generation_steps=work.NEW,
            max_prompt_length=work.PROMPT,
            temperature=work.TEMPERATURE,
            top_p=work.TOP_P,
            seed=0,
        )
        count = sum(len(tokens) for tokens in made.tokens)
        if count != work.ROWS * work.NEW:
            raise RuntimeError(f"the sampler made {count} tokens instead of {work.ROWS * work.NEW}")
        return {}

    return run


def step(shape: work.Shape) -> work.Run:
    """Reference log-probs and update of a fixed batch, by the cluster that its learner has set up."""
    cluster = _cluster(shape)
    tokens = jnp.asarray(work.token_rows(shape))
    prompts, sampled = tokens[:, : work.PROMPT], tokens[:, work.PROMPT :]

    def of_reference() -> jax.Array:
        return cluster.get_ref_per_token_logps(prompts, sampled, pad_id=work.PAD, eos_id=shape.vocab)

    old = of_reference()  # given; before the first step the two are one

    def run():
        example = TrainExample(
            prompt_ids=prompts,
            prompt_mask=jnp.ones_like(prompts, bool),
            completion_ids=sampled,
            completion_mask=jnp.ones_like(sampled, bool),
            advantages=jnp.asarray(work.advantages()),
            ref_per_token_logps=of_reference(),
            old_per_token_logps=old,
        )
        cluster.update_actor([example], None)
        jax.block_until_ready(nnx.state(cluster.actor_trainer.model, nnx.Param))
        return {}

    return run


def _cluster(shape: work.Shape) -> RLCluster:
    training = RLTrainingConfig(
        actor_optimizer=optax.adamw(work.LEARNING_RATE, weight_decay=work.WEIGHT_DECAY), eval_every_n_steps=1_000_000
    )
    rollouts = RolloutConfig(
        max_tokens_to_generate=work.NEW,
        max_prompt_length=work.PROMPT,
        temperature=work.TEMPERATURE,
        top_p=work.TOP_P,
        kv_cache_size=work.PROMPT + work.NEW,
    )
    cluster = RLCluster(
        actor=load(shape),
        reference=load(shape),
        tokenizer=NumberWords(shape),
        cluster_config=ClusterConfig(
            role_to_mesh=dict.fromkeys((Role.ACTOR, Role.REFERENCE, Role.ROLLOUT), MESH),
            training_config=training,
            rollout_config=rollouts,
        ),
    )
    loss = GRPOConfig(num_generations=work.GROUP, beta=work.KL, epsilon=work.CLIP, kl_loss_mode="low_var_kl")
    GRPOLearner(rl_cluster=cluster, reward_fns=_no_reward, algo_config=loss)  # puts its loss into the cluster
    return cluster


def _no_reward(prompts, completions, **options):
    return [0.0] * len(completions)


def logits(shape: work.Shape) -> tuple[np.ndarray, dict]:
    """f32[LOGIT_ROWS, T, V] of tunix's forward."""
    tokens = jnp.asarray(work.token_rows(shape)[: work.LOGIT_ROWS])
    length = tokens.shape[1]
    seen = jnp.broadcast_to(jnp.tri(length, dtype=bool), (len(tokens), length, length))
    values, _ = load(shape)(tokens, jnp.broadcast_to(jnp.arange(length), tokens.shape), None, seen)
    return np.asarray(values), {"jax_version": jax.__version__}


if __name__ == "__main__":
    work.take_part({"gen": gen, "step": step}, logits)
