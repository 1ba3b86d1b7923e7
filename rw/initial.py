"""The initial router of a run, which is also its frozen reference: made once, kept in <workdir>/reference, then read.

It is kept because what it was made from may change or go; and it is checked, because a run that was stopped before its
first checkpoint has nothing else that remembers its config.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
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
from rw.questions import recorded_config
from rw.run_config import MAY_CHANGE, PLACEMENT
from rw.saved_router import RouterPlace
from rw.warmstart import warm_start

NUMERICS = ("param_dtype", "compute_dtype", "attention", "attention_chunk", "remat")  # of the model
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
    path = pathlib.Path(params_path(parts.config.init.path))
    place = RouterPlace(path, "saved parameters", files=router_files.files_beside(path))
    return read_router(parts, place, "init.path")[0]


def read_router(parts: Parts, place: RouterPlace, key: str) -> tuple[Any, int | None]:
    """(a saved router's parameters on the run's mesh, in `param_dtype`; updates that made it, None: not known).

    Args:
        key: what named it, for errors.

    Raises:
        RwError: it cannot be read, or is of another tokenizer, model or shape.
    """
    model = parts.config.model
    if place.files is not None:
        check_fits(place.files, model)
    if is_hf(place.path):
        router_files.check_tokenizer(place.path, parts.codec, key)
        return read_hf(place.path, model, parts.param_shardings), None
    params, metadata = place.load(parts.param_shardings)
    check_tokenizer(parts, place.path, metadata, key)
    check_shapes(place.path, params, model)
    check_model(place.path, place.model(metadata) or {}, model)
    made = {name: x.astype(model.param_dtype) for name, x in params.items()}
    return made, metadata.get("step", place.step)


def keep_origin_files(parts: Parts, path: pathlib.Path) -> None:
    """Keeps the tokenizer and the other files of Hugging Face that the initial router came with, for exports."""
    if parts.config.init.source == "params" and parts.processes.is_first:
        router_files.keep_files(params_path(parts.config.init.path), path)


def check_checkpoints(parts: Parts) -> None:
    """Raises CheckpointError where the workdir holds checkpoints that this config could not continue."""
    identity = RunIdentity(recorded_config(parts.config), parts.codec.fingerprint, "", parts.config.seed)
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


def check_tokenizer(parts: Parts, path: pathlib.Path, metadata: dict[str, Any], key: str) -> None:
    """Raises CheckpointError where saved parameters, which `key` names, belong to another tokenizer."""
    stored = metadata.get("tokenizer_fingerprint")
    if stored != parts.codec.fingerprint:
        raise CheckpointError(
            f"the parameters at {path} were trained with tokenizer {str(stored)[:16]}…, this config has "
            f"{parts.codec.fingerprint[:16]}…; set tokenizer.path to the former, or {key} to other parameters"
        )


def check_model(path: pathlib.Path, stored: Mapping[str, Any], model: ModelConfig) -> None:
    """Raises CheckpointError where parameters were made for another model of the same shapes: with another rope_theta,
    say. Dtypes and what only decides how the same is computed may differ."""
    wanted = {name: value for name, value in dataclasses.asdict(model).items() if name not in NUMERICS}
    known = {name: value for name, value in stored.items() if name in wanted}
    if changes := config_changes(known, {name: wanted[name] for name in known}):
        raise CheckpointError(
            f"the parameters at {path} are of another model than config.model: {'; '.join(changes)}; set the former "
            "values, or take other parameters"
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
