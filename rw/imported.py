"""Objects of a user's own modules, named `package.module:name`: how rw is extended without being changed."""

from __future__ import annotations

import importlib
from typing import Any

from rw.errors import ConfigError


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
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, SyntaxError, ValueError) as error:
        hint = "; PYTHONPATH=. finds modules of the current directory" if isinstance(error, ModuleNotFoundError) else ""
        raise ConfigError(f"{what} {name!r} cannot be loaded: {error}{hint}") from error


def imported_function(name: str, what: str) -> Any:
    """Like `imported`, for functions: ConfigError where it cannot be called."""
    function = imported(name, what)
    if not callable(function):
        raise ConfigError(f"{what} {name!r} is not a function but {type(function).__name__}")
    return function
