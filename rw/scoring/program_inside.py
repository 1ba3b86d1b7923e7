"""How a test is run, by its kind, in a process that belongs to the program alone.

Runs inside (see `sandbox_source`): the standard library alone. What it writes is the program's own word: who grades
believes none of it but as the program's output.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import os
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, NoReturn

from rw.scoring.program_values import decoded_value, text_value, value_text
from rw.scoring.sandbox_acts import act
from rw.scoring.sandbox_frames import frame, read_frame, write_frame

# The names that judges of such programs give them, so that `heappush` or `List` need no import. They come after the
# language's own: `pow` of the mathematics module must not take the place of that with a modulus.
_PRELUDE = """
from string import *
from re import *
from datetime import *
from collections import *
from heapq import *
from bisect import *
from copy import *
from math import *
from random import *
from statistics import *
from itertools import *
from functools import *
from operator import *
from io import *
from sys import *
from json import *
from typing import *
import string, re, datetime, collections, heapq, bisect, copy, math, random, statistics, itertools, functools
import operator, io, sys, json, typing
"""
_RECURSION_LIMIT = 50_000
# A check could not raise the first of one text alone; at the others its loops would end as if all were well.
_NOT_PASSED_ON = (UnicodeError, StopIteration, StopAsyncIteration)


def _names_of_judges() -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec(_PRELUDE, space)
    return {name: value for name, value in space.items() if not hasattr(builtins, name) and name != "__builtins__"}


_NAMES_OF_JUDGES = _names_of_judges()  # once, before any program is here: the forks find the modules loaded


def run_test(
    header: dict[str, Any], program: dict[str, Any], payload: bytes, report: int, channel: tuple[int, int]
) -> NoReturn:
    """Runs one test and leaves as an interpreter does after a program.

    Args:
        header: `do` is the kind of test; the other keys are that kind's.
        program: source, setup and whether the names of judges are given to it.
        payload: the test's input, which is also what standard input holds.
        report: descriptor for what is no output: an exception, a returned value.
        channel: descriptors for the talk of a session.
    """
    sys.setrecursionlimit(_RECURSION_LIMIT)
    builtins.exit = builtins.quit = sys.exit  # as an interpreter started in the usual way has them
    no_memory = frame({"error": "MemoryError"})  # made while there is some
    status = 1
    try:
        _run_kind(header, program, payload, report, channel)
        status = 0
    except SystemExit as leaving:
        status = _status(leaving.code)
    except MemoryError:
        os.write(report, no_memory)
    except BaseException as error:
        write_frame(report, {"error": described(error)})
    _leave(status)


def _run_kind(
    header: dict[str, Any], program: dict[str, Any], payload: bytes, report: int, channel: tuple[int, int]
) -> None:
    match header["do"]:
        case "stdin":
            _module(program, "__main__")
        case "function":
            result = _named(_module(program, "solution"), header["function"])(*text_value(payload))
            _return(result, report)
        case "serve":
            _serve(_module(program, "solution"), channel)
        case "check":
            _check(header, program["setup"], payload, channel)
        case "act":
            write_frame(report, {"acted": True}, value_text(act(header["act"], *text_value(payload))))
        case unknown:
            raise ValueError(f"no kind of test: {unknown}")


def _status(code: Any) -> int:
    """The exit status that an interpreter leaves with for what SystemExit holds."""
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def _leave(status: int) -> NoReturn:
    """What an interpreter does at its end that programs rely on; the rest, taking itself apart, costs 10 ms a test."""
    try:
        threading._shutdown()  # waits for threads, as `multiprocessing` does in its children
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except BaseException as error:
        os.write(2, described(error).encode(errors="replace"))
        status = status or 120
    finally:
        os._exit(status)


def described(error: BaseException) -> str:
    """Class and message of an exception, short; an exception may lie about its message, or raise for it."""
    try:
        text = str(error)
    except BaseException:
        text = ""
    return f"{type(error).__name__}: {text}"[:500]


def _module(program: dict[str, Any], name: str) -> dict[str, Any]:
    """The namespace of the program after it ran as module `name`."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    space = module.__dict__
    if program["prelude"]:
        vars(builtins).update(_NAMES_OF_JUDGES)  # not in its own namespace: what it does not define is not its own
    for part in (program["setup"], program["source"]):
        if part:
            exec(compile(part, f"<{name}>", "exec", dont_inherit=True), space)
    return space


def _named(space: dict[str, Any], name: str) -> Callable:
    """A method of `class Solution`, where it has one of that name, or else a function."""
    solution = space.get("Solution")
    if isinstance(solution, type) and hasattr(solution, name):
        return getattr(solution(), name)
    if name not in space:
        raise NameError(f"the program defines no {name}")
    return space[name]


def _return(result: Any, report: int) -> None:
    try:
        text = value_text(result)
    except (TypeError, RecursionError) as error:
        write_frame(report, {"returned": False, "instead": described(error)})
    else:
        write_frame(report, {"returned": True}, text)


def _serve(space: dict[str, Any], channel: tuple[int, int]) -> None:
    """The program's side of checks: does what is asked with its functions and objects until told to end.

    Plain data is sent, other values are kept here and spoken of by number.
    """
    kept: list[Any] = []

    def refer(value: Any) -> int:
        kept.append(value)
        return len(kept) - 1

    def referred(of: int | str) -> Any:
        return _named(space, of) if isinstance(of, str) else kept[of]

    operations = {
        "call": lambda target, arguments, named: target(*arguments, **named),
        "get": lambda target, arguments, named: getattr(target, *arguments),
        "set": lambda target, arguments, named: setattr(target, *arguments),
        "iterate": lambda target, arguments, named: list(target),
    }
    commands, replies = channel
    write_frame(replies, {"serving": True})
    while (message := read_frame(commands)) is not None and message[0]["do"] != "end":
        asked, payload = message
        try:
            arguments, named = text_value(payload, lambda encoded: decoded_value(encoded, referred))
            text = value_text(operations[asked["do"]](referred(asked["of"]), arguments, named), refer)
        except MemoryError:
            raise
        except Exception as error:
            write_frame(replies, {"raised": type(error).__name__, "text": described(error)})
        else:
            write_frame(replies, {"value": True}, text)


def _check(header: dict[str, Any], setup: str, payload: bytes, channel: tuple[int, int]) -> None:
    """The check's side: runs its source with references in the place of the program's functions.

    Only here is the nonce known, and it is sent only after the last line of the source.
    """
    space: dict[str, Any] = {"__name__": "check"}
    if setup:
        exec(compile(setup, "<setup>", "exec", dont_inherit=True), space)
    for name in header["names"]:
        if name not in space or name == header["function"]:
            space[name] = _Reference(name, channel)
    exec(compile(payload.decode("utf-8", "surrogatepass"), "<check>", "exec", dont_inherit=True), space)
    write_frame(channel[1], {"done": header["nonce"]})


class _Reference:
    """What the program defines, or returned and is no plain data, as a check sees it.

    It can be called, asked for attributes and iterated. It is neither true nor false nor equal to anything, so that no
    object of a program decides a comparison.
    """

    def __init__(self, of: int | str, channel: tuple[int, int]):
        object.__setattr__(self, "_of", of)
        object.__setattr__(self, "_channel", channel)

    def _ask(self, operation: str, *arguments: Any, **named: Any) -> Any:
        commands, replies = self._channel
        write_frame(replies, {"ask": operation, "of": self._of}, value_text((arguments, named), _number))
        answer, payload = read_frame(commands) or sys.exit(1)
        if answer["value"]:
            refer = functools.partial(_Reference, channel=self._channel)
            return text_value(payload, lambda encoded: decoded_value(encoded, refer))
        kind = getattr(builtins, answer["raised"], None)
        known = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _NOT_PASSED_ON)
        raise (kind if known else RuntimeError)(answer["text"])

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._ask("call", *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", name, value)

    def __iter__(self):
        return iter(self._ask("iterate"))

    def _refuse(self, *others: Any) -> NoReturn:
        raise TypeError("an object of the program, and no plain data, was compared")

    __eq__ = __ne__ = __bool__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = None


def _number(value: Any) -> int | str:
    if isinstance(value, _Reference):
        return value._of
    raise TypeError(f"{type(value).__name__} is no plain data")
