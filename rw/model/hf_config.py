"""config.json of a Hugging Face Qwen3 against our ModelConfig, both ways. Knows no weights."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from rw.errors import CheckpointError, ConfigError
from rw.model.config import ModelConfig

CONFIG = "config.json"
ARCHITECTURE, MODEL_TYPE = "Qwen3ForCausalLM", "qwen3"
FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "d_ff",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tied",
}
TYPES = {"norm_eps": (float, int), "tied": (bool,)}  # of the other fields: int
# What would change the computation in ways that the model here does not know, with the values that it does. A key that
# is not there has the first of them.
ONLY = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "attention_dropout": (0.0,),
    "use_sliding_window": (False, None),
    "quantization_config": (None,),
}


def is_hf(directory: str | os.PathLike) -> bool:
    """Whether there is a Hugging Face model: a config.json that names a type of model."""
    try:
        return "model_type" in json.loads((pathlib.Path(directory) / CONFIG).read_bytes())
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def read_config(directory: str | os.PathLike) -> dict[str, Any]:
    """config.json; CheckpointError where it cannot be read, or is of a model that would be computed wrongly here."""
    path = pathlib.Path(directory) / CONFIG
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(config, dict) or config.get("model_type") != MODEL_TYPE:
        found = config.get("model_type") if isinstance(config, dict) else None
        raise CheckpointError(f"{path}: model_type is {found!r}; only {MODEL_TYPE!r} (dense) can be used")
    if (config.get("architectures") or [ARCHITECTURE]) != [ARCHITECTURE]:
        raise CheckpointError(f"{path}: architectures is {config['architectures']}; it must be [{ARCHITECTURE!r}]")
    for key, legal in ONLY.items():
        if config.get(key, legal[0]) not in legal:
            raise CheckpointError(
                f"{path}: {key} is {config[key]!r}, which the model here lacks; it must be {legal[0]}"
            )
    kinds = config.get("layer_types") or ["full_attention"]
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise CheckpointError(f"{path}: layer_types is {kinds}; only full_attention can be used")
    if missing := [key for key in FIELDS if config.get(key) is None]:
        raise CheckpointError(f"{path} lacks {', '.join(missing)}; write them out")
    for key, ours in FIELDS.items():
        if type(config[key]) not in TYPES.get(ours, (int,)):
            raise CheckpointError(f"{path}: {key} is {config[key]!r}; it must be {TYPES.get(ours, (int,))[0].__name__}")
    _rope_theta(config, path)
    return config


def _rope_theta(config: Mapping[str, Any], path: pathlib.Path) -> float:
    """The one theta of both places where versions of transformers keep it."""
    modern, old = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    for rope in (modern, old):
        if not isinstance(rope, Mapping):
            raise CheckpointError(f"{path}: {rope!r} is no description of a rotary embedding")
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
            raise CheckpointError(f"{path}: rotary embedding {dict(rope)} is scaled; only the default can be used")
    thetas = [place["rope_theta"] for place in (modern, old, config) if place.get("rope_theta") is not None]
    if any(type(theta) not in (int, float) for theta in thetas):
        raise CheckpointError(f"{path}: rope_theta is {thetas}; it must be a number")
    found = set(map(float, thetas))
    if len(found) != 1:  # a reader that finds none would silently take 10,000
        raise CheckpointError(f"{path} names {sorted(found) or 'no'} rope_theta; it must name one")
    return found.pop()


def fields_of(config: Mapping[str, Any], directory: str | os.PathLike) -> dict[str, Any]:
    """The fields of ModelConfig that a config.json decides."""
    theta = _rope_theta(config, pathlib.Path(directory) / CONFIG)
    return {ours: config[theirs] for theirs, ours in FIELDS.items()} | {"rope_theta": theta, "qk_norm": True}


def model_config(directory: str | os.PathLike, **numerics: Any) -> ModelConfig:
    """The model of a directory; `numerics` are the fields that config.json does not decide."""
    return ModelConfig(**fields_of(read_config(directory), directory), **numerics)


def check_fits(directory: str | os.PathLike, model: ModelConfig) -> None:
    """Raises ConfigError, with every field that differs, unless `model` is the model of a directory."""
    found = fields_of(read_config(directory), directory)
    names = {ours: theirs for theirs, ours in FIELDS.items()}
    differences = [
        f"{names.get(name, name)} is {value!r} there and config.model.{name} is {getattr(model, name)!r}"
        for name, value in found.items()
        if value != getattr(model, name)
    ]
    if differences:
        raise ConfigError(
            f"{pathlib.Path(directory) / CONFIG} does not fit config.model: {'; '.join(differences)}; "
            "set the former values, or take other weights"
        )


def written_config(model: ModelConfig, dtype: str, carried: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of a model whose weights are stored in `dtype`.

    Args:
        carried: the config.json that it came with, for what we do not know (`max_position_embeddings`, special tokens).

    Raises:
        ConfigError: a model without norms of query and key, which is no Qwen3.
    """
    if not model.qk_norm:
        raise ConfigError(
            "model.qk_norm=False: Qwen3 has norms of query and key, so this model cannot be written as one"
        )
    theta = float(model.rope_theta)
    kept = {name: value for name, value in carried.items() if name not in ("_name_or_path", "rope_scaling")}
    return {
        **kept,
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        **{key: legal[0] for key, legal in ONLY.items() if legal[0] is not None},
        **{theirs: getattr(model, ours) for theirs, ours in FIELDS.items()},
        "layer_types": ["full_attention"] * model.n_layers,
        "rope_theta": theta,  # where transformers looked before its version 5
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},  # and where it looks since
        "dtype": dtype,
        "torch_dtype": dtype,
    }
