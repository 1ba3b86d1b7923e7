"""Configuration at the edge: a Python file with `get_config()`, `--config.a.b=value` on top, frozen dataclasses inside.

A config file starts from `default_config()`, every key of run_config.RunConfig with its default, and sets what differs.
An unknown key, wherever it is written, is refused with the nearest known one. `FILE:NAME` is a file of several configs:
`get_config(NAME)` gives the one of that name, and what the file lists as `VARIANTS` are the names that there are.
Nothing else in rw knows ml_collections.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import pathlib
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import ml_collections

from rw.config_path import split_name
from rw.errors import ConfigError
from rw.evaluation.reference_cost import read_reference_cost
from rw.imported import imported_function, name_with_source
from rw.run_config import RewardConfig, RunConfig
from rw.typed_values import build, did_you_mean, one_line, unknown_key
from rw.workers.endpoint_file import load_endpoints


def default_config() -> ml_collections.ConfigDict:
    """Every key of a run with its default. A key that a config file invents is refused when the file is loaded."""
    return ml_collections.ConfigDict(_as_plain(RunConfig()), type_safe=False)


def load_config(path: str, overrides: Iterable[tuple[str, str]] = ()) -> RunConfig:
    """Reads `get_config()` of a Python file, applies `(dotted key, text)` overrides, checks and freezes.

    Args:
        path: the file, or `file:name`, which gives `get_config` that name.
    """
    path, name = split_name(path)
    module = load_python(path, "config file", "the ones that ship with rw are in configs/")
    _check_name(module, path, name)
    try:
        config = module.get_config(name) if name else module.get_config()
    except ConfigError as error:
        raise ConfigError(f"config file {path}: {error}") from error
    except Exception as error:  # a user's code: whatever it raises, the file and the reason are what helps
        raise ConfigError(f"config file {path}: {type(error).__name__}: {one_line(error)}") from error
    if not isinstance(config, ml_collections.ConfigDict):
        raise ConfigError(
            f"config file {path}: get_config() returned {type(config).__name__}; it must return the ConfigDict"
        )
    config = config.to_dict()
    for key, text in overrides:
        _override(config, key, text)
    return freeze(config)


def load_python(path: str, what: str, where: str) -> ModuleType:
    """Runs a user's Python file; ConfigError says `what` it should have been and `where` examples of it are."""
    file = pathlib.Path(path)
    if not file.is_file():
        raise ConfigError(f"no {what} at {path!r}; {where}")
    spec = importlib.util.spec_from_file_location(f"rw_{what.replace(' ', '_')}_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{what} {path!r} is not a Python file: it must end with .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's code: whatever it raises, the file and the reason are what helps
        raise ConfigError(f"{what} {path}: {type(error).__name__}: {one_line(error)}") from error
    return module


def _check_name(module: ModuleType, path: str, name: str) -> None:
    """Raises ConfigError where the file has no such config, or several and none is named."""
    if not callable(getattr(module, "get_config", None)):
        raise ConfigError(f"config file {path} has no function get_config()")
    known = list(getattr(module, "VARIANTS", ()))
    parameters = inspect.signature(module.get_config).parameters.values()
    if not name and any(parameter.default is parameter.empty for parameter in parameters):
        example = f"{path}:{known[0]}; it has {', '.join(known)}" if known else f"{path}:NAME"
        raise ConfigError(f"config file {path} holds several configs: name one, as in {example}")
    if name and not parameters:
        raise ConfigError(f"config file {path} holds one config, so {path}:{name} is not in it; leave :{name} out")
    if name and known and name not in known:
        there = f"it has {', '.join(known)}"
        raise ConfigError(f"config file {path} has no config {name!r}; {there}{did_you_mean(name, known)}")


def freeze(config: Mapping[str, Any]) -> RunConfig:
    """Nested mapping -> RunConfig; raises ConfigError on unknown keys and on values of another type.

    `workers.file` is read here and replaced by the endpoints in it, `reward.reference_cost_file` by the number in it:
    they are what a run depends on and records.
    """
    return build(RunConfig, _with_calibrated_cost(_with_workers_of_file(config)), "config.")


def as_dict(config: RunConfig) -> dict[str, Any]:
    """The config as nested plain values, as checkpoints and config.json hold it: scorers of one's own with a hash of
    their source, by which verdicts of another one are told apart. ConfigError where one cannot be loaded."""
    plain = _as_plain(config)
    own = {name: imported_function(path, f"scorer {name}") for name, path in config.scoring.own_functions.items()}
    hashed = {name: name_with_source(function, f"scorer {name}") for name, function in own.items()}
    return {**plain, "scoring": {**plain["scoring"], "own": tuple(f"{name}={hashed[name]}" for name in hashed)}}


def _as_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _as_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return tuple(_as_plain(item) for item in value)
    return dict(value) if isinstance(value, Mapping) else value


def _with_workers_of_file(config: Mapping[str, Any]) -> Mapping[str, Any]:
    workers = config.get("workers")
    path = workers.get("file") if isinstance(workers, Mapping) else None
    if not isinstance(path, str) or not path:
        return config
    if workers.get("endpoints"):
        raise ConfigError(f"config.workers.file={path!r} and config.workers.endpoints are both set; leave one out")
    if workers.get("kind") != "http":
        raise ConfigError(
            f"config.workers.file={path!r} with workers.kind={workers.get('kind')!r}: set config.workers.kind='http'"
        )
    return {**config, "workers": {**workers, "file": "", "endpoints": _as_plain(load_endpoints(path))}}


def _with_calibrated_cost(config: Mapping[str, Any]) -> Mapping[str, Any]:
    reward = config.get("reward")
    path = reward.get("reference_cost_file") if isinstance(reward, Mapping) else None
    if not isinstance(path, str) or not path:
        return config
    default = RewardConfig()
    key = "config.reward.reference_cost"
    if (number := reward.get("reference_cost_usd", default.reference_cost_usd)) != default.reference_cost_usd:
        raise ConfigError(
            f"{key}_file={path!r} and {key}_usd={number!r} are both set: leave the number out, or take it back with "
            f"--{key}_usd={default.reference_cost_usd}"
        )
    found = read_reference_cost(path)
    counted = reward.get("retry_cost", default.retry_cost)
    if found.get("retry_cost") != counted:
        raise ConfigError(
            f"{path} was measured with reward.retry_cost={found.get('retry_cost')!r}, this config has {counted!r}: "
            "calibrate again"
        )
    return {
        **config,
        "reward": {**reward, "reference_cost_file": "", "reference_cost_usd": found["reference_cost_usd"]},
    }


def _override(config: dict[str, Any], key: str, text: str) -> None:
    *parents, last = key.split(".")
    node: Any = config
    for depth, name in enumerate([*parents, last]):
        if not isinstance(node, dict) or name not in node:
            known = list(node) if isinstance(node, dict) else []
            raise ConfigError(unknown_key("config." + ".".join([*parents, last][: depth + 1]), name, known))
        node = node[name] if depth < len(parents) else node
    node[last] = _parse(key, text, node[last])


def _parse(key: str, text: str, current: Any) -> Any:
    if isinstance(current, str):
        return text
    if isinstance(current, dict) and current:  # an empty one is a mapping of the user's own keys, not a section
        raise ConfigError(f"config.{key} is a section; set one of its keys: {', '.join(current)}")
    try:
        return ast.literal_eval({"true": "True", "false": "False"}.get(text.lower(), text))
    except (ValueError, SyntaxError) as error:
        if current is None:
            return text
        raise ConfigError(f"config.{key}={text!r} is not of type {type(current).__name__}, like {current!r}") from error
