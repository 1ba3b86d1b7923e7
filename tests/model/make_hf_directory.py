"""Writes the committed Hugging Face directory: the tied reference model as transformers' save_pretrained writes it.

Run by hand, in an environment of its own (torch 2.13, transformers 5.24, safetensors), from the repository's root:

    python tests/model/make_hf_directory.py tests/data/model
"""

from __future__ import annotations

import json
import pathlib
import sys

from make_reference import build
from safetensors import safe_open


def main(folder: str) -> None:
    with safe_open(pathlib.Path(folder) / "qwen3_tied.safetensors", framework="pt") as file:
        shape = json.loads(file.metadata()["config"])
        prefix = "weights/"
        weights = {name.removeprefix(prefix): file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}
    model = build(shape, seed=0)
    model.load_state_dict(weights, strict=False)  # a tied head has no weights of its own
    model.save_pretrained(pathlib.Path(folder) / "hf_tied", max_shard_size="12KB")


if __name__ == "__main__":
    main(sys.argv[1])
