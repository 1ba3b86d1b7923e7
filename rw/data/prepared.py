"""Prepared questions: one file of JSON lines a split, which the commands of rw read and no reader can misunderstand.

The first line is a header with the format's name and version, counts, what was dropped and why, and the checksum of all
that follows; every other line is a question. The files are plain ASCII: characters that some readers take for line ends
stay escaped. Knows nothing of the data sets that questions come from.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rw.errors import DataError
from rw.types import PROGRAM_KINDS, ProgramTests, Query

FORMAT, VERSION = "rw-queries", 1
AGAIN = "make it again with `rw data prepare`"
_TEXT_FIELDS = ("id", "dataset", "domain", "prompt")
_FIELDS = (*_TEXT_FIELDS, "reference", "metadata")
_NO_SUM = "0" * 64


@dataclasses.dataclass(frozen=True)
class PreparedQueries:
    """What a prepared file holds; `header` as it was written, with `records` and `sha256`."""

    header: Mapping[str, Any]
    queries: tuple[Query, ...]


def query_to_json(query: Query) -> dict[str, Any]:
    """The question as JSON has it: a tuple of accepted strings becomes a list, ProgramTests become {"tests": {…}}.

    Raises:
        DataError: a reference that is none of string, tuple of strings and ProgramTests.
    """
    reference = query.reference
    if isinstance(reference, ProgramTests):
        fields = {field.name: getattr(reference, field.name) for field in dataclasses.fields(reference)}
        reference = {"tests": fields}
    elif not isinstance(reference, str) and not _is_texts(reference, tuple):
        raise DataError(f"{query.id}: reference {str(reference)[:60]!r} is no string, tuple of strings or ProgramTests")
    row = {name: getattr(query, name) for name in _TEXT_FIELDS}
    return {**row, "reference": reference, "metadata": dict(query.metadata)}


def query_from_json(row: Mapping[str, Any]) -> Query:
    """The opposite of `query_to_json`; lists inside metadata and test values stay lists.

    Raises:
        DataError: a row that is no question, with what is wrong in it.
    """
    if not isinstance(row, Mapping) or set(row) != set(_FIELDS):
        found = sorted(row) if isinstance(row, Mapping) else type(row).__name__
        raise DataError(f"a question has the fields {', '.join(_FIELDS)}, not {found}")
    for name in _TEXT_FIELDS:
        if not isinstance(row[name], str) or not row[name]:
            raise DataError(f"question {row['id']!r}: {name}={row[name]!r} must be a string that is not empty")
    if not isinstance(row["metadata"], Mapping):
        raise DataError(f"question {row['id']!r}: metadata={row['metadata']!r} must be an object")
    reference = row["reference"]
    if isinstance(reference, Mapping) and set(reference) == {"tests"}:
        reference = _tests_from_json(row["id"], reference["tests"])
    elif _is_texts(reference, list):
        reference = tuple(reference)
    elif not isinstance(reference, str):
        raise DataError(
            f'question {row["id"]!r}: reference {str(reference)[:60]!r} is no string, list of strings or {{"tests": …}}'
        )
    return Query(**{name: row[name] for name in _TEXT_FIELDS}, reference=reference, metadata=dict(row["metadata"]))


def write_queries(path: str | os.PathLike[str], queries: Sequence[Query], header: Mapping[str, Any]) -> None:
    """Writes a prepared file, whole or not at all; what was there under that name is replaced.

    Args:
        header: what is known of all of them: dataset, split, dropped, sources and the like. Format, version, number of
            records and checksum are added.

    Raises:
        DataError: two questions with one id, or a value that JSON cannot hold.
        OSError: the file cannot be written.
    """
    target = pathlib.Path(path)
    head = {**header, "format": FORMAT, "version": VERSION, "records": len(queries), "sha256": _NO_SUM}
    order = ("format", "version", *header, "records", "sha256")
    head = {name: head[name] for name in order}
    seen: set[str] = set()
    digest = hashlib.sha256()
    aside = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with aside.open("wb") as file:
            file.write(_line(head, "the header"))  # the checksum's place is kept, and filled in at the end
            for query in queries:
                if query.id in seen:
                    raise DataError(f"two questions have the id {query.id!r}; ids must differ within a file")
                seen.add(query.id)
                line = _line(query_to_json(query), query.id)
                digest.update(line)
                file.write(line)
            file.seek(0)
            file.write(_line({**head, "sha256": digest.hexdigest()}, "the header"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()


def read_queries(path: str | os.PathLike[str]) -> PreparedQueries:
    """Reads a prepared file.

    Raises:
        DataError: no such file; another format or version; a line that is torn, missing or no question; two questions
            with one id; or a checksum that is not the header's. Each with file, line and what to do.
    """
    digest = hashlib.sha256()
    queries: dict[str, Query] = {}
    try:
        with open(path, "rb") as file:  # lines of bytes end at b"\n" and nowhere else
            header = _checked_header(file.readline(), path)
            for number, line in enumerate(file, start=2):
                digest.update(line)
                query = _read_line(line, f"{path} line {number}")
                if query.id in queries:
                    raise DataError(f"{path} line {number}: a question before it has the id {query.id!r}; {AGAIN}")
                queries[query.id] = query
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; `rw data prepare` writes such files") from error
    if len(queries) != header["records"]:
        raise DataError(
            f"{path} ends after line {len(queries) + 1} with {len(queries)} questions, and its header says "
            f"{header['records']}; copy it again, or {AGAIN}"
        )
    if digest.hexdigest() != header["sha256"]:
        raise DataError(
            f"{path}: lines 2 to {len(queries) + 1} have the checksum {digest.hexdigest()[:12]}…, and line 1 says "
            f"{header['sha256'][:12]}…: they were changed after they were written; {AGAIN}"
        )
    return PreparedQueries(header, tuple(queries.values()))


def is_prepared(path: str | os.PathLike[str]) -> bool:
    """Whether the file begins as a prepared one does, whatever its version and the state of its lines."""
    with open(path, "rb") as file:
        try:
            header = json.loads(file.readline(1 << 20))
        except (ValueError, RecursionError):
            return False
    return isinstance(header, dict) and header.get("format") == FORMAT


def _checked_header(line: bytes, path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DataError(
            f"{path} line 1 is no header of prepared questions; make such a file with "
            f"`rw data prepare --dataset NAME --input {path} --output FILE.jsonl`"
        )
    if header.get("version") != VERSION:
        raise DataError(f"{path} line 1: version {header.get('version')!r}, and this rw reads {VERSION}; {AGAIN}")
    if type(header.get("records")) is not int or not isinstance(header.get("sha256"), str):
        raise DataError(f"{path} line 1: the header lacks records or sha256; {AGAIN}")
    return header


def _read_line(line: bytes, where: str) -> Query:
    if not line.endswith(b"\n"):
        raise DataError(f"{where} is torn: it does not end; copy the file again, or {AGAIN}")
    try:
        return query_from_json(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is no JSON ({error}); {AGAIN}") from error
    except DataError as error:
        raise DataError(f"{where}: {error}; {AGAIN}") from error


def _line(value: Mapping[str, Any], what: str) -> bytes:
    try:
        return json.dumps(value, allow_nan=False).encode("ascii") + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{what} holds what JSON cannot: {error}") from error


def _tests_from_json(query_id: str, value: Any) -> ProgramTests:
    names = {field.name for field in dataclasses.fields(ProgramTests)}
    if not isinstance(value, Mapping) or set(value) != names:
        raise DataError(f"question {query_id!r}: tests have the fields {', '.join(sorted(names))}")
    kind, inputs, outputs = value["kind"], value["inputs"], value["outputs"]
    if kind not in PROGRAM_KINDS:
        raise DataError(f"question {query_id!r}: tests of kind {kind!r}; known are {', '.join(PROGRAM_KINDS)}")
    wanted = 0 if kind == "asserts" else len(inputs) if isinstance(inputs, list) else -1
    if not isinstance(outputs, list) or len(outputs) != wanted or not inputs:
        raise DataError(f"question {query_id!r}: inputs and outputs of its tests do not fit together")
    if kind == "function":
        if not all(isinstance(arguments, list) for arguments in inputs):
            raise DataError(f"question {query_id!r}: the input of a function's test must be a list of arguments")
        inputs = [tuple(arguments) for arguments in inputs]
    elif not _is_texts(inputs, list) or not _is_texts(outputs, list):
        raise DataError(f"question {query_id!r}: inputs and outputs of {kind} tests must be strings")
    if type(value["public"]) is not int or not all(isinstance(value[name], str) for name in ("function", "setup")):
        raise DataError(f"question {query_id!r}: function and setup must be strings, public a number")
    return ProgramTests(kind, tuple(inputs), tuple(outputs), value["function"], value["setup"], value["public"])


def _is_texts(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and all(isinstance(item, str) for item in value)
