"""The initial router of a run, which is also its frozen reference: made once, kept in <workdir>/reference, then read.

It is kept because what it was made from may change or go; and it is checked, because a run that was stopped before its
first checkpoint has nothing else that remembers its config.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax

from rw import router_files
from rw.config import as_dict
from rw.errors import CheckpointError
from rw.learner.checkpoint import Checkpoints, RunIdentity, config_changes, save_params
from rw.model.config import ModelConfig
from rw.model.hf_config import check_fits, is_hf
from rw.model.hf_files import read_hf
from rw.model.qwen3 import init_params, shapes_of
from rw.parts import Parts, params_path
from rw.run_config import MAY_CHANGE, PLACEMENT
from rw.warmstart import warm_start

# The parts of a config that decide what it is, by init.source.
DECIDED_BY = {"random": ("seed",), "params": (), "warmstart": ("warmstart", "protocol")}


async def initial_router(parts: Parts) -> Any:
    """Its parameters, on the run's mesh. Raises CheckpointError where those there belong to another config."""
    config, path = parts.config, parts.workdir.file("reference")
    if await parts.processes.of_first(path.exists):
        params, metadata = await parts.device.run(parts.load_params, path)
        check_origin(path, metadata, origin(parts))
        check_shapes(path, params, config.model)
        keep_origin_files(parts, path)  # a kill may have come between the parameters and these
        return params
    await parts.device.run(check_checkpoints, parts)
    if config.init.source == "random":
        params = await parts.device.run(random_params, parts)
    elif config.init.source == "params":
        params = await parts.device.run(saved_params, parts)
    else:
        params = await warm_start(parts)
    await parts.device.run(save_params, path, params, origin(parts))
    keep_origin_files(parts, path)
    return params


def random_params(parts: Parts) -> Any:
    """Fresh parameters from the run's seed."""
    return init_params(jax.random.key(parts.config.seed), parts.config.model, parts.param_shardings)


def saved_params(parts: Parts) -> Any:
    """The parameters that init.path names, in `param_dtype`: of a Hugging Face directory, or saved ones."""
    source, model = params_path(parts.config.init.path), parts.config.model
    if files := router_files.files_beside(source):  # shapes would not tell another rope_theta
        check_fits(files, model)
    if is_hf(source):
        router_files.check_tokenizer(source, parts.codec)
        return read_hf(source, model, parts.param_shardings)
    params, metadata = parts.load_params(source)
    check_tokenizer(parts, source, metadata)
    check_shapes(source, params, model)
    return {name: x.astype(model.param_dtype) for name, x in params.items()}


def keep_origin_files(parts: Parts, path: pathlib.Path) -> None:
    """Keeps the tokenizer and the other files of Hugging Face that the initial router came with, for exports."""
    if parts.config.init.source == "params" and parts.processes.is_first:
        router_files.keep_files(params_path(parts.config.init.path), path)


def check_checkpoints(parts: Parts) -> None:
    """Raises CheckpointError where the workdir holds checkpoints that this config could not continue."""
    identity = RunIdentity(as_dict(parts.config), parts.codec.fingerprint, "", parts.config.seed)
    with Checkpoints(parts.workdir.file("checkpoints"), identity, may_change=MAY_CHANGE) as checkpoints:
        checkpoints.check_config()


def origin(parts: Parts) -> dict[str, Any]:
    """What the initial router was made from, as plain JSON values."""
    config = as_dict(parts.config)
    decisive = {key: config[key] for key in ("model", "init", *DECIDED_BY[parts.config.init.source])}
    return json.loads(json.dumps({"tokenizer_fingerprint": parts.codec.fingerprint, **decisive}))


def check_origin(path: pathlib.Path, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raises CheckpointError, with every difference, where a kept router was made from something else."""
    stored = {key: value for key, value in stored.items() if key != "format_version"}
    changes = config_changes(stored, wanted, PLACEMENT)
    if changes:
        raise CheckpointError(
            f"the initial router {path} was made with another config: {'; '.join(changes)}; use a new workdir"
        )


def check_tokenizer(parts: Parts, path: str, metadata: dict[str, Any]) -> None:
    """Raises CheckpointError where saved parameters belong to another tokenizer."""
    stored = metadata.get("tokenizer_fingerprint")
    if stored != parts.codec.fingerprint:
        raise CheckpointError(
            f"the parameters at {path} were trained with tokenizer {str(stored)[:16]}…, this config has "
            f"{parts.codec.fingerprint[:16]}…; set tokenizer.path to the former, or init.path to other parameters"
        )


def check_shapes(path: str | pathlib.Path, params: Any, model: ModelConfig) -> None:
    """Raises CheckpointError where parameters are not those of `model`: most wrong shapes would run all the same."""
    expected = shapes_of(model)
    for name in sorted(expected.keys() | params.keys()):
        shapes = [tuple(tree[name].shape) if name in tree else "absent" for tree in (params, expected)]
        if shapes[0] != shapes[1]:
            raise CheckpointError(
                f"the parameters at {path} do not fit config.model: {name} is {shapes[0]} there and {shapes[1]} in the "
                "config; correct config.model or take other parameters"
            )
