"""What torch users have, in `speed.py`: transformers' generate, TRL's GRPO loss, and the same step in plain torch.

Runs in an environment of its own: torch, transformers, trl, numpy. Models come from a safetensors directory, as they do
for users.
"""

from __future__ import annotations

import logging
import os
import pathlib
import tempfile
from collections.abc import Callable

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import numpy as np
import speed_work as work
import torch
from datasets import Dataset
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

logging.disable(logging.WARNING)
TOKENS = torch.Tensor


def stored(shape: work.Shape) -> str:
    """A directory with the work's weights, as transformers reads them. It goes when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="speed_torch_")
    _kept.append(folder)
    config = Qwen3Config(
        vocab_size=shape.vocab,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.ff,
        rms_norm_eps=work.NORM_EPS,
        rope_parameters={"rope_type": "default", "rope_theta": float(work.ROPE_THETA)},
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        architectures=["Qwen3ForCausalLM"],
        dtype="float32",
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=work.PAD,
    )
    config.save_pretrained(folder.name)
    save_file(work.weights(shape), pathlib.Path(folder.name) / "model.safetensors", metadata={"format": "pt"})
    return folder.name


_kept: list[tempfile.TemporaryDirectory] = []


def load(shape: work.Shape) -> Qwen3ForCausalLM:
    """The model in float32. RuntimeError where transformers did not find or use an array."""
    model, report = Qwen3ForCausalLM.from_pretrained(stored(shape), dtype=torch.float32, output_loading_info=True)
    wrong = {kind: names for kind, names in report.items() if names}
    if wrong:
        raise RuntimeError(f"transformers did not load the weights as they are: {wrong}")
    return model


def rows(shape: work.Shape) -> TOKENS:
    """i64[ROWS, PROMPT + NEW]."""
    return torch.from_numpy(work.token_rows(shape).astype(np.int64))


def gen(shape: work.Shape) -> work.Run:
    """`generate`, with its cache."""
    model = load(shape).eval()
    prompts = rows(shape)[:, : work.PROMPT]
    everything = torch.ones_like(prompts)

    @torch.inference_mode()
    def run():
        made = model.generate(
            prompts,
            attention_mask=everything,
            max_new_tokens=work.NEW,
            do_sample=True,
            temperature=work.TEMPERATURE,
            top_p=work.TOP_P,
            top_k=0,
        )
        if made.shape[1] != work.PROMPT + work.NEW:
            raise RuntimeError(f"generate stopped after {made.shape[1] - work.PROMPT} tokens")
        return {}

    return run


def trl(shape: work.Shape) -> work.Run:
    """The trainer's own log-probs and loss, and its own reference model; AdamW and the clip are torch's."""
    trainer = _trainer(shape)
    model, reference = trainer.model.train(), trainer.ref_model
    sequences = rows(shape)
    batch = {
        "prompt_ids": sequences[:, : work.PROMPT],
        "prompt_mask": torch.ones(work.ROWS, work.PROMPT, dtype=torch.long),
        "completion_ids": sequences[:, work.PROMPT :],
        "completion_mask": torch.ones(work.ROWS, work.NEW, dtype=torch.long),
        "advantages": torch.from_numpy(work.advantages()),
        "num_items_in_batch": torch.tensor(work.ROWS * work.NEW),
    }

    @torch.no_grad()
    def of_reference() -> TOKENS:
        score = trainer._get_per_token_logps_and_entropies
        return score(reference, sequences, torch.ones_like(sequences), work.NEW)[0]

    batch["old_per_token_logps"] = of_reference()  # given; before the first step the two are one

    def loss() -> TOKENS:
        batch["ref_per_token_logps"] = of_reference()
        return trainer.compute_loss(model, batch)

    return _updates(model, loss)


def _trainer(shape: work.Shape) -> GRPOTrainer:
    words = {"<pad>": work.PAD, "<end>": 1, "<unknown>": 2} | {str(i): i for i in range(3, shape.vocab)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>")
    folder = stored(shape)
    config = GRPOConfig(
        output_dir=folder,
        beta=work.KL,
        epsilon=work.CLIP,
        temperature=work.TEMPERATURE,
        top_p=work.TOP_P,
        loss_type="grpo",
        num_generations=work.GROUP,
        per_device_train_batch_size=work.ROWS,
        max_completion_length=work.NEW,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        model_init_kwargs={"dtype": "float32"},
    )
    prompts = Dataset.from_dict({"prompt": ["3 4 5"] * work.ROWS})
    trainer = GRPOTrainer(folder, args=config, processing_class=fast, reward_funcs=_no_reward, train_dataset=prompts)
    trainer.current_gradient_accumulation_steps = 1  # what its training loop would set
    return trainer


def _no_reward(completions, **_):
    return [0.0] * len(completions)


def plain(shape: work.Shape) -> work.Run:
    """The step as one would write it by hand: head on new tokens only, one cross-entropy, whole batch at once."""
    model, reference = load(shape).train(), load(shape).requires_grad_(False)
    sequences, sampled = rows(shape), rows(shape)[:, work.PROMPT :]
    advantage = torch.from_numpy(work.advantages())[:, None]

    def logprobs(net) -> TOKENS:
        scores = net(sequences, use_cache=False, logits_to_keep=work.NEW + 1).logits[:, :-1] / work.TEMPERATURE
        return -torch.nn.functional.cross_entropy(scores.transpose(1, 2), sampled, reduction="none")

    with torch.no_grad():
        old = logprobs(reference)

    def loss() -> TOKENS:
        with torch.no_grad():
            below = logprobs(reference)
        now = logprobs(model)
        ratio, gap = torch.exp(now - old), below - now
        clipped = ratio.clamp(1 - work.CLIP, 1 + work.CLIP)
        divergence = torch.expm1(gap) - gap
        return (work.KL * divergence - torch.minimum(ratio * advantage, clipped * advantage)).mean()

    return _updates(model, loss)


def _updates(model: torch.nn.Module, loss: Callable[[], TOKENS]) -> work.Run:
    optimizer = torch.optim.AdamW(model.parameters(), lr=work.LEARNING_RATE, weight_decay=work.WEIGHT_DECAY)

    def run():
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), work.CLIP_NORM)
        optimizer.step()
        return {"grad_norm": float(norm)}

    return run


@torch.inference_mode()
def logits(shape: work.Shape) -> tuple[np.ndarray, dict]:
    """f32[LOGIT_ROWS, T, V] of transformers' forward."""
    return load(shape).eval()(rows(shape)[: work.LOGIT_ROWS]).logits.numpy(), {"torch_threads": torch.get_num_threads()}


if __name__ == "__main__":
    work.take_part({"gen": gen, "trl": trl, "plain": plain}, logits)
