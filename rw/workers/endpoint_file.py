"""Workers from a YAML file: a list `workers` whose items have the fields of `WorkerEndpoint`.

What a config refuses is refused here too, with file, Worker and key in the message. An API key has no place in such a
file, only where to find it: a field that might hold one is refused as unknown, and its value is not printed.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import yaml

from rw.errors import ConfigError
from rw.typed_values import build, one_line, unknown_key
from rw.workers.config import KEY_NAMES, WorkerEndpoint

_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


def load_endpoints(path: str | os.PathLike[str]) -> tuple[WorkerEndpoint, ...]:
    """The Workers of a YAML file, in its order.

    Args:
        path: relative to the working directory, as every path of a config.

    Raises:
        ConfigError: no such file, no YAML, an unknown or repeated key, a value of another type or out of range.
    """
    file = pathlib.Path(path).expanduser()
    try:
        document = yaml.load(file.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except FileNotFoundError as error:
        raise ConfigError(f"no file of Workers at {str(path)!r} (seen from {pathlib.Path.cwd()})") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"file of Workers {path}: cannot be read: {error}") from error
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"file of Workers {path}: {_where(error)}{error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"file of Workers {path}: it is no YAML ({type(error).__name__})") from error
    except (ValueError, RecursionError) as error:  # a date or number that is none, or what is nested without end
        raise ConfigError(f"file of Workers {path}: a value in it cannot be read: {one_line(error)}") from error
    try:
        return _endpoints(document)
    except ConfigError as error:
        raise ConfigError(f"file of Workers {path}: {error}") from error


def _endpoints(document: Any) -> tuple[WorkerEndpoint, ...]:
    if not isinstance(document, Mapping):
        raise ConfigError("it must hold a key 'workers' with a list of Workers")
    for name in document:
        if name != "workers":
            raise ConfigError(unknown_key(name, name, ["workers"]))
    items = document.get("workers")
    if not isinstance(items, list) or not items:
        raise ConfigError("'workers' must be a list of at least one Worker")
    endpoints = tuple(_endpoint(index, item) for index, item in enumerate(items))
    seen: set[str] = set()
    for endpoint in endpoints:
        if endpoint.id in seen:
            raise ConfigError(f"Worker id {endpoint.id} is used by more than one Worker")
        seen.add(endpoint.id)
    return endpoints


def _endpoint(index: int, item: Any) -> WorkerEndpoint:
    if not isinstance(item, Mapping):
        raise ConfigError(f"workers[{index}] must be a mapping with the keys of a Worker, such as id and base_url")
    worker_id = item.get("id")
    name = worker_id if isinstance(worker_id, str) and worker_id else f"workers[{index}]"
    for key in item:
        if key.lower().replace("-", "_") in KEY_NAMES:
            raise ConfigError(f"{name}.{key} would hold a key; name its place in key_env or key_file")
    endpoint = build(WorkerEndpoint, item, f"{name}.")
    if "\n" in endpoint.description.strip():
        raise ConfigError(f"{name}.description has several lines; write it after >- , which folds them into one")
    return endpoint


def _where(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return "" if mark is None else f"line {mark.line + 1}: "


class _StrictLoader(yaml.SafeLoader):
    """Plain values only; a key is a text and stands once in its mapping."""

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        # Checked here, before merge keys (<<) are resolved: afterwards an overridden key stands twice.
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refused("a key must be a text", key)
            if key.tag not in (_TEXT, _MERGE):
                raise _refused(f"key {key.value!r} is no text for YAML; quote it", key)
            if key.value in seen:
                raise _refused(f"key {key.value!r} stands twice in one mapping", key)
            seen.add(key.value)
        return node


def _refused(problem: str, key: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
