"""Python values as JSON texts, for the way between two processes that must not unpickle each other's bytes.

Read on both sides of a sandbox's wall: as a module by who grades, as text by the interpreter inside (see
`sandbox_source`). So it knows the standard library alone, and nothing of programs or tests.

What JSON has stays as it is; the rest is an object of one key that says what it was. Subclasses become their base, so
that no method of a program travels with its data.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

_EXACT = 2**53  # integers beyond are written in hexadecimal, whose reading is linear and has no limit of digits


def encoded_value(value: Any, refer: Callable[[Any], int | str] | None = None) -> Any:
    """What `json.dumps` takes, for plain data.

    Args:
        refer: gives a number to what is no plain data, by which the other side may speak of it.

    Raises:
        TypeError: the value, or a part of it, is no plain data, and there is no `refer`.
        RecursionError: it holds itself, or is nested too deeply.
    """
    if value is None or isinstance(value, (bool, str)):
        return value if value is None or isinstance(value, bool) else str.__str__(value)
    if isinstance(value, int):
        return int(value) if -_EXACT < value < _EXACT else {"int": hex(value)}
    if isinstance(value, float):
        return {"float": float.__repr__(value)}
    if isinstance(value, list):
        return [encoded_value(item, refer) for item in value]
    if isinstance(value, dict):
        return {"dict": [[encoded_value(key, refer), encoded_value(item, refer)] for key, item in value.items()]}
    for kind, name in ((tuple, "tuple"), (set, "set"), (frozenset, "frozenset")):
        if isinstance(value, kind):
            return {name: [encoded_value(item, refer) for item in value]}
    if isinstance(value, complex):
        return {"complex": [float.__repr__(value.real), float.__repr__(value.imag)]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    if refer is None:
        raise TypeError(f"{type(value).__name__} is no plain data")
    return {"reference": refer(value)}


def decoded_value(encoded: Any, referred: Callable[[int | str], Any] | None = None) -> Any:
    """The value of `encoded_value`, from what `json.loads` gave.

    Raises:
        ValueError: nothing that `encoded_value` writes.
        RecursionError: nested too deeply.
    """
    if encoded is None or isinstance(encoded, (bool, int, float, str)):
        return encoded
    if isinstance(encoded, list):
        return [decoded_value(item, referred) for item in encoded]
    name, inner = _only_item(encoded)
    try:
        if name in ("int", "float"):
            return int(inner, 16) if name == "int" else float(inner)
        if name == "dict":
            return {decoded_value(key, referred): decoded_value(item, referred) for key, item in inner}
        if name in ("tuple", "set", "frozenset"):
            kind = {"tuple": tuple, "set": set, "frozenset": frozenset}[name]
            return kind([decoded_value(item, referred) for item in inner])
        if name == "complex":
            return complex(float(inner[0]), float(inner[1]))
        if name == "bytes":
            return bytes.fromhex(inner)
        if name == "reference" and referred is not None:
            return referred(inner)
    except (TypeError, IndexError, KeyError, AttributeError) as error:
        raise ValueError(f"not an encoded value: {error}") from None
    raise ValueError(f"not an encoded value: {name!r}")


def json_value(encoded: Any) -> Any:
    """The value of `encoded_value` as JSON has it, tuples as lists; for who must not be hurt by what another wrote.

    Keys are strings: of numbers, a program can choose so many of one hash that a dictionary takes minutes.

    Raises:
        ValueError: nothing that `encoded_value` writes, or what JSON cannot say.
        RecursionError: nested too deeply.
    """
    if encoded is None or isinstance(encoded, (bool, int, str)):
        return encoded
    if isinstance(encoded, list):
        return [json_value(item) for item in encoded]
    name, inner = _only_item(encoded)
    try:
        if name in ("int", "float"):
            return int(inner, 16) if name == "int" else float(inner)
        if name == "tuple":
            return [json_value(item) for item in inner]
        if name == "dict" and all(isinstance(key, str) for key, _ in inner):
            return {key: json_value(item) for key, item in inner}
    except TypeError as error:
        raise ValueError(f"not an encoded value: {error}") from None
    raise ValueError(f"a {name or 'message'}, which JSON cannot say")


def _only_item(encoded: Any) -> tuple[str, Any]:
    if isinstance(encoded, dict) and len(encoded) == 1:
        return next(iter(encoded.items()))
    return "", None


def value_text(value: Any, refer: Callable[[Any], int | str] | None = None) -> bytes:
    """`encoded_value` as bytes; raises what it raises."""
    return json.dumps(encoded_value(value, refer)).encode()


def text_value(text: bytes, decode: Callable[[Any], Any] = decoded_value) -> Any:
    """The value in bytes that someone else wrote; whatever is wrong with them, a ValueError."""
    try:
        return decode(json.loads(text))
    except RecursionError:
        raise ValueError("a value nested too deeply") from None
