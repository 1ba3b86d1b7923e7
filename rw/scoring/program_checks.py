"""Tests that are Python sources: the check runs in one sandbox, the program in another, and plain data passes between.

In one process the program could read the expected values, or decide itself what `==` means. Here a check's names for
the program's functions are references, whose calls are passed on to the program by who grades.
"""

from __future__ import annotations

import ast
import builtins
import secrets

from rw.errors import DataError
from rw.scoring.program_run import Ending, ProgramRun
from rw.types import VerdictKind


def check_ending(check: ProgramRun, program: ProgramRun, source: str, function: str, setup: str) -> Ending:
    """Runs one check source against the program; its ending is well where the check came to its last line.

    Args:
        check: a run whose program is the check's own setup alone.
        program: the run of what is judged.
        function: the name that the program must define; empty where the checks alone say so.
    """
    nonce = secrets.token_hex(16)  # the program never sees it, and the check says it after its last line
    program.begin({"do": "serve", "session": True}, b"")
    if isinstance(started := program.next_message(), Ending):
        return _unfinished(started)
    names = asked_names(source, setup, function)
    header = {"do": "check", "session": True, "names": names, "function": function, "nonce": nonce}
    check.begin(header, source.encode("utf-8", "surrogatepass"))
    raised = ""
    while not isinstance(message := check.next_message(), Ending):
        asked, payload = message
        if asked.get("done") == nonce:
            program.send({"do": "end"})
            ends = check.next_message(), _end_of(program)
            return next((end for end in ends if end.kind is not None), ends[0])
        program.send({"do": asked.get("ask"), "of": asked.get("of")}, payload)
        if isinstance(answer := program.next_message(), Ending):
            return _unfinished(answer)
        said, payload = answer
        raised = "" if said.get("value") is True else str(said.get("text"))[:500] or "an exception"
        check.send({"value": not raised, "raised": str(said.get("raised"))[:100], "text": raised}, payload)
    if raised:
        return Ending(VerdictKind.CRASH, raised)
    if message.kind in (VerdictKind.CRASH, None):  # None: it left before its last line
        return Ending(VerdictKind.WRONG, message.detail or "the check did not come to its end")
    return message


def _end_of(program: ProgramRun) -> Ending:
    """How a program ended that was told to; one that still talks then is wrong."""
    said = program.next_message()
    return said if isinstance(said, Ending) else Ending(VerdictKind.CRASH, "it wrote where it must not")


def _unfinished(ending: Ending) -> Ending:
    return ending if ending.kind is not None else Ending(VerdictKind.CRASH, "it ended before it returned")


def asked_names(source: str, setup: str, function: str) -> list[str]:
    """The names of a check that the program must have defined: those that it calls, or hands on as in `map(f, [1])`,
    and nobody else defines.

    A name that Python itself has is the program's only where there is no other, so that a program cannot replace the
    `abs` or `set` of a check. Raises DataError where the check or its setup is no Python.
    """
    try:
        tree, known = ast.parse(source), _defined(ast.parse(setup)) | {function}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = str(error) or type(error).__name__
        raise DataError(f"a check of a question's tests is no Python: {why}; leave the question out") from None
    nodes = list(ast.walk(tree))
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    called -= _defined(tree) | known
    owners = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}  # such as a module not imported
    read = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in owners}
    own = {name for name in read - _defined(tree) - known if not hasattr(builtins, name)}
    return sorted(own | {function} if function else own or called)


def _defined(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return names
