"""Plain values from files into frozen dataclasses: unknown keys and values of another type are refused by name.

Knows neither where the values come from nor what they are for; the dataclasses say what is legal.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from rw.errors import ConfigError


def build(cls: type, values: Mapping[str, Any], path: str) -> Any:
    """Nested mapping -> `cls`; raises ConfigError on unknown keys and on values of another type.

    Args:
        path: what names `values` in errors, with its separator: `config.workers.`.
    """
    hints = typing.get_type_hints(cls)
    for name in values:
        if name not in hints:
            raise ConfigError(unknown_key(f"{path}{name}", str(name), hints))
    made = {name: _convert(hints[name], value, f"{path}{name}") for name, value in values.items()}
    if missing := [field.name for field in dataclasses.fields(cls) if _is_required(field) and field.name not in made]:
        raise ConfigError(f"{path.rstrip('.')} lacks {', '.join(missing)}")
    try:
        return cls(**made)
    except TypeError as error:
        raise ConfigError(f"{path.rstrip('.')}: {one_line(error)}") from error


def unknown_key(key: str, name: str, known: Iterable[str]) -> str:
    """What to say of a key that is not there: the nearest known name, or all of them."""
    known = sorted(known)
    hint = did_you_mean(name, known, cutoff=0.4) or f"; known keys there: {', '.join(known) or 'none'}"
    return f"unknown config key {key}{hint}"


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of a sentence that names the nearest known name; empty where none is near."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def one_line(error: Exception) -> str:
    """An error's message without its line breaks."""
    return " ".join(str(error).split())


def _is_required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _convert(hint: Any, value: Any, key: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key}={value!r} must be a section with keys {list(typing.get_type_hints(hint))}")
        return build(hint, value, f"{key}.")
    if origin is tuple and isinstance(value, (tuple, list)):
        return tuple(_convert(arguments[0], item, f"{key}[{i}]") for i, item in enumerate(value))
    if arguments and origin is not tuple and type(None) in arguments:
        return value if value is None else _convert(next(a for a in arguments if a is not type(None)), value, key)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise ConfigError(f"{key} is a number of {len(str(value))} digits, which no float holds") from error
    expected = origin or hint
    mismatch = isinstance(expected, type) and not isinstance(value, expected)
    if mismatch or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"{key}={value!r} must be of type {getattr(hint, '__name__', hint)}")
    return value
