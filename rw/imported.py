"""Objects of a user's own modules, named `package.module:name`: how rw is extended without being changed.

A name does not tell what the function of that name did when a run began, so what is recorded has a hash of its source.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from rw.errors import ConfigError
from rw.typed_values import did_you_mean, one_line


def is_import_name(name: str) -> bool:
    """Whether a name is of the form `package.module:name`."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


def imported(name: str, what: str) -> Any:
    """The object that `package.module:name` names.

    Args:
        what: says in errors what it was to be, such as `advantage`.

    Raises:
        ConfigError: no such module or name, or the module cannot be imported.
    """
    module_name, _, attribute = name.partition(":")
    if not is_import_name(name):
        raise ConfigError(f"{what} {name!r} is not of the form 'package.module:name'")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's code: whatever it raises, the name and the reason are what helps
        hint = "; PYTHONPATH=. finds modules of the current directory" if isinstance(error, ModuleNotFoundError) else ""
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise ConfigError(f"{what} {name!r} cannot be loaded: {reason}{hint}") from error
    if not hasattr(module, attribute):
        reason = f"module {module_name!r} has no attribute {attribute!r}{did_you_mean(attribute, dir(module))}"
        raise ConfigError(f"{what} {name!r} cannot be loaded: {reason}")
    return getattr(module, attribute)


def imported_function(name: str, what: str) -> Any:
    """Like `imported`, for functions: ConfigError where it cannot be called."""
    function = imported(name, what)
    if not callable(function):
        raise ConfigError(f"{what} {name!r} is not a function but {type(function).__name__}")
    return function


def name_with_source(function: Callable, what: str) -> str:
    """`module:function@hash`, the same for the same source and the same plain values that it refers to by name.

    Functions that it calls, and arrays, are not looked into: only what is written in the function itself, and numbers,
    strings, booleans, tuples, lists and dicts of its module, of the function around it or of its defaults.

    Args:
        what: says in errors what it is, such as `advantage`.

    Raises:
        ConfigError: it is not a function whose source can be read.
    """
    plain = inspect.unwrap(function)
    try:
        source = inspect.getsource(plain)
        around = inspect.getclosurevars(plain)
    except (OSError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{what} {function!r}: its source cannot be read ({error}), so nobody could tell later what a run was "
            "made with; give a function that is written in a file or in a notebook cell"
        ) from error
    defaults = {f"{key}=": argument.default for key, argument in inspect.signature(plain).parameters.items()}
    values = {**around.globals, **around.nonlocals, **defaults}
    values = {name: values[name] for name in sorted(values) if _is_plain(values[name])}
    digest = hashlib.sha256(f"{source}\n{values}".encode()).hexdigest()
    return f"{plain.__module__}:{plain.__qualname__}@{digest[:8]}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(value[key]) for key in value)
    return isinstance(value, (bool, int, float, str))
