"""Writes the committed reference of the model: two tiny random Qwen3 models as transformers computes them.

Run by hand, in an environment of its own (torch 2.13, transformers 5.24, safetensors), from the repository's root:

    python tests/model/make_reference.py tests/data/model

Each file holds the weights by Hugging Face name (`weights/…`), tokens, positions, logits, the log-probabilities of
every next token at temperature 0.8, and the gradient of their sum with respect to every weight (`gradients/…`). The
model's configuration is in the file's metadata. Everything is computed in float32 on a CPU.
"""

from __future__ import annotations

import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

TEMPERATURE = 0.8
MODELS = {
    # Grouped queries, heads wider than d_model / n_heads, the long-context theta, a tied head.
    "qwen3_tied": dict(
        vocab_size=48, d_model=16, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, d_ff=32, rope_theta=5e6, tied=True
    ),
    # One key head a query head, an untied head, Qwen3's first theta.
    "qwen3_untied": dict(
        vocab_size=56, d_model=16, n_layers=3, n_heads=2, n_kv_heads=2, head_dim=8, d_ff=24, rope_theta=1e6, tied=False
    ),
}


def build(shape: dict, seed: int) -> Qwen3ForCausalLM:
    """A random model with weights large enough that attention is far from uniform."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=shape["vocab_size"],
        hidden_size=shape["d_model"],
        num_hidden_layers=shape["n_layers"],
        num_attention_heads=shape["n_heads"],
        num_key_value_heads=shape["n_kv_heads"],
        head_dim=shape["head_dim"],
        intermediate_size=shape["d_ff"],
        rope_parameters={"rope_type": "default", "rope_theta": shape["rope_theta"]},
        tie_word_embeddings=shape["tied"],
        max_position_embeddings=32768,
        attn_implementation="eager",
    )
    model = Qwen3ForCausalLM(config).to(torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.copy_(1 + 0.3 * torch.randn_like(weight))
            else:
                weight.copy_(torch.randn_like(weight) * (0.5 if "embed" in name else 1 / weight.shape[1] ** 0.5))
    return model


def inputs(shape: dict, seed: int):
    """Two rows of 24 tokens; the second starts at a large position, where a wrong angle shows."""
    random = np.random.default_rng(seed)
    tokens = torch.from_numpy(random.integers(0, shape["vocab_size"], (2, 24)))
    positions = torch.arange(24).repeat(2, 1) + torch.tensor([[0], [9000]])
    return tokens, positions


def reference(model: Qwen3ForCausalLM, tokens, positions) -> dict[str, torch.Tensor]:
    """Logits, next-token log-probabilities and gradients as one flat dict of float32 tensors."""
    model.zero_grad()
    logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
    logprobs = torch.log_softmax(logits[:, :-1] / TEMPERATURE, dim=-1).gather(-1, tokens[:, 1:, None])[..., 0]
    logprobs.sum().backward()
    out = {"tokens": tokens.int(), "positions": positions.int(), "logits": logits, "logprobs": logprobs}
    for name, weight in model.named_parameters():  # a tied head is listed once, as the embedding
        out[f"weights/{name}"] = weight
        out[f"gradients/{name}"] = weight.grad
    return {name: tensor.detach().clone().contiguous() for name, tensor in out.items()}


def main(folder: str) -> None:
    for seed, (name, shape) in enumerate(MODELS.items()):
        tensors = reference(build(shape, seed), *inputs(shape, seed))
        path = pathlib.Path(folder) / f"{name}.safetensors"
        save_file(tensors, path, metadata={"config": json.dumps(shape), "temperature": str(TEMPERATURE)})
        print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main(sys.argv[1])
