"""What lies beside the weights of a Hugging Face directory: tokenizer, chat template, generation config.

They are kept with parameters that came from such a directory, in a folder `hf`, and go out with them again; for a
router that did not, they are made from its run's tokenizer.
"""

from __future__ import annotations

import json
import lzma
import os
import pathlib
import shutil
from typing import Any

from rw.errors import CheckpointError
from rw.model.hf_config import CONFIG, is_hf, read_config
from rw.protocol.chat import END_OF_TEXT, IM_END, TokenCodec

KEPT_IN = "hf"
TOKENIZER, GENERATION = "tokenizer.json", "generation_config.json"
CARRIED = (
    GENERATION, TOKENIZER, "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja", "chat_template.json", "additional_chat_templates", "LICENSE", "NOTICE",
)  # fmt: skip
# ChatML, as the router's own frame is written.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def files_beside(path: str | os.PathLike) -> pathlib.Path | None:
    """Where the files of a Hugging Face directory, or of saved parameters that came from one, lie; None: nowhere."""
    path = pathlib.Path(path)
    if is_hf(path):
        return path
    return path / KEPT_IN if is_hf(path / KEPT_IN) else None


def keep_files(source: str | os.PathLike, path: str | os.PathLike) -> None:
    """Copies the files of `source`, where it has any, into the folder of saved parameters at `path`, in one rename.

    Files that are there already stay as they are.
    """
    found, target = files_beside(source), pathlib.Path(path) / KEPT_IN
    if found is None or target.exists():
        return
    aside = target.with_name(KEPT_IN + ".partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    copy_files(found, aside)
    shutil.copyfile(found / CONFIG, aside / CONFIG)
    aside.rename(target)


def copy_files(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies what is carried along, without config.json."""
    for name in CARRIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name)
        elif (source / name).exists():
            shutil.copyfile(source / name, target / name)


def tokenizer_bytes(path: str | os.PathLike) -> bytes:
    """tokenizer.json, unpacked."""
    data = pathlib.Path(path).read_bytes()
    return lzma.decompress(data) if pathlib.Path(path).suffix == ".xz" else data


def check_tokenizer(directory: str | os.PathLike, codec: TokenCodec, key: str) -> None:
    """Raises CheckpointError unless the tokenizer of a Hugging Face directory, named by `key`, is that of the run."""
    found = tokenizer_of(directory)
    if found.fingerprint != codec.fingerprint:
        raise CheckpointError(
            f"the tokenizer of {directory} is {found.fingerprint[:16]}…, this config has {codec.fingerprint[:16]}…; "
            f"set --config.tokenizer.path={pathlib.Path(directory) / TOKENIZER}, or {key} to other weights"
        )


def tokenizer_of(directory: str | os.PathLike) -> TokenCodec:
    """The tokenizer of a Hugging Face directory; CheckpointError where it has none."""
    path = pathlib.Path(directory) / TOKENIZER
    if not path.parent.is_dir():
        raise CheckpointError(f"{directory} is no directory; name that of config.json, tokenizer.json and the weights")
    if not path.is_file():
        raise CheckpointError(
            f"{directory} has no {TOKENIZER}; AutoTokenizer.from_pretrained({str(directory)!r}).save_pretrained of the "
            "same directory writes it from older files"
        )
    return TokenCodec.from_file(path)


def carried_config(files: pathlib.Path | None, codec: TokenCodec, longest: int) -> dict[str, Any]:
    """What config.json holds besides the model's shape: as it came, or made.

    Args:
        longest: tokens of the longest sequence that the router was trained on, which a made one names.
    """
    if files is not None:
        return read_config(files)
    return {
        "bos_token_id": None,
        "eos_token_id": codec.im_end,
        "pad_token_id": codec.endoftext,
        "initializer_range": 0.02,
        "max_position_embeddings": longest,
        "use_cache": True,
    }


def make_files(target: pathlib.Path, tokenizer: bytes, codec: TokenCodec, longest: int) -> None:
    """Writes tokenizer, chat template and generation config of a router that came without."""
    (target / TOKENIZER).write_bytes(tokenizer)
    _write_json(
        target / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",  # takes tokenizer.json as it is
            "bos_token": None,
            "eos_token": IM_END,
            "pad_token": END_OF_TEXT,
            "unk_token": None,
            "model_max_length": longest,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    ends = [codec.im_end, codec.endoftext]
    _write_json(target / GENERATION, {"do_sample": False, "eos_token_id": ends, "pad_token_id": codec.endoftext})


def _write_json(path: pathlib.Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")
