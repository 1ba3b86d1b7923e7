"""Writes the committed Hugging Face directory: the tied reference model as transformers' save_pretrained writes it.

Run by hand, in an environment of its own (torch 2.13, transformers 5.24, safetensors), from the repository's root:

    python tests/model/make_hf_directory.py tests/data/model
"""

from __future__ import annotations

import json
import pathlib
import sys

import torch
from safetensors import safe_open
from transformers import Qwen3Config, Qwen3ForCausalLM


def main(folder: str) -> None:
    with safe_open(pathlib.Path(folder) / "qwen3_tied.safetensors", framework="pt") as file:
        shape = json.loads(file.metadata()["config"])
        prefix = "weights/"
        weights = {name.removeprefix(prefix): file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}
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
    )
    model = Qwen3ForCausalLM(config).to(torch.float32)
    model.load_state_dict(weights, strict=False)  # a tied head has no weights of its own
    model.save_pretrained(pathlib.Path(folder) / "hf_tied", max_shard_size="12KB")


if __name__ == "__main__":
    main(sys.argv[1])
