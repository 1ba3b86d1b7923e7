"""Rows of files: JSON lines, JSON, CSV, parquet and arrow, packed or not, one file, a directory, or a hub's.

Knows file formats and nothing of any data set: a row is a dict, and says where it stood.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import lzma
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from rw.errors import DataError

INSTALL = "pip install -e '.[data]'"
HUB = "hub"
_PACKED: dict[str, Callable[..., BinaryIO]] = {".gz": gzip.open, ".xz": lzma.open}
_SPLIT_WORDS = ("train", "test", "validation")
_DIGITS = 4300  # Python refuses to make an int of a longer text unless told otherwise for the whole process
_BATCH = 256  # rows of a parquet file held at a time
_FILES_NAMED = 64  # sets with a file for each problem are described by one record


class LongInteger(str):
    """A JSON integer of more digits than Python turns into a number: its text."""


class Row(NamedTuple):
    """One row; `origin` is the file's name without its endings, or the hub's config."""

    values: Mapping[str, Any]
    where: str  # "train.jsonl line 3"
    origin: str


def parse_json(text: str | bytes) -> Any:
    """json.loads for texts that may hold integers of any length, which become LongInteger.

    Raises:
        ValueError: the text is no JSON, or is nested too deeply to be read.
    """
    try:
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < _DIGITS else LongInteger(digits))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def data_files(path: str | os.PathLike[str], splits: Sequence[str] = ()) -> list[pathlib.Path]:
    """The file, or all data files below the directory in the order of their names.

    Files of a directory belong to a split where their name or a folder's holds its name as a word, such as
    `algebra/train-00000.parquet`, `test2.jsonl`.

    Args:
        splits: the split wanted, by all names that it may have there; the first that is found counts.

    Raises:
        DataError: nothing to read there, or files of other splits only, or of several where no split was asked for.
    """
    root = pathlib.Path(path)
    if not os.fspath(path) or not root.exists():  # an empty name is no wish for the working directory
        raise DataError(
            f"there is no {path or 'file of an empty name'}; --input takes a file, a directory, or the word {HUB}"
        )
    if root.is_file():
        if _format(root) is None:
            raise DataError(f"{root}: rows are read from {', '.join(_READERS)}, also packed as .gz or .xz")
        return [root]
    found = {file.relative_to(root).as_posix(): file for file in root.rglob("*") if file.is_file()}
    names = sorted(
        name
        for name in found
        if _format(found[name]) and not any(part.startswith(".") for part in pathlib.PurePath(name).parts)
    )
    if not names:
        raise DataError(f"{root} holds no file to read rows from: {', '.join(_READERS)}, also packed as .gz or .xz")
    named = {name: _splits_named(name) for name in names}
    present = sorted(set().union(*named.values()))
    if splits and present:
        wanted = next((split for split in splits if split in present), None)
        if wanted is None:
            raise DataError(f"{root} has files of the split {' and '.join(present)}, none of {splits[-1]!r}")
        names = [name for name in names if wanted in named[name]]
    elif len(present) > 1:
        raise DataError(f"{root} has files of the splits {' and '.join(present)}; choose one with --split")
    return [found[name] for name in names]


def described(files: Sequence[pathlib.Path], root: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Name (relative to `root` where that is a directory), bytes and sha256 of each file; of very many, one record with
    the checksum of all names and checksums."""
    root = pathlib.Path(root)
    records, digests = [], hashlib.sha256()
    for file in files:
        with open(file, "rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        name = file.relative_to(root).as_posix() if root.is_dir() else file.name
        records.append({"name": name, "bytes": file.stat().st_size, "sha256": digest})
        digests.update(f"{name} {digest}\n".encode())
    if len(records) <= _FILES_NAMED:
        return records
    size = sum(record["bytes"] for record in records)
    return [{"name": f"{len(records)} files", "bytes": size, "sha256": digests.hexdigest()}]


def read_rows(file: pathlib.Path, container: str = "", unread: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of one file, in order.

    Args:
        container: key under which a JSON file's object holds the list of rows.
        unread: columns that the caller has no use for; left out where the format allows to skip them.

    Raises:
        DataError: what is there is not of the format that its name says, with file and line.
    """
    ending = _format(file)
    origin = file.name[: len(file.name) - len("".join(_endings(file)))]
    try:
        yield from _READERS[ending](file, origin, container, frozenset(unread))
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise DataError(f"cannot read {file}: {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: byte {error.object[error.start]:#04x} is no UTF-8; save it as UTF-8") from error


def _json_lines(file: pathlib.Path, origin: str, container: str, unread: frozenset[str]) -> Iterator[Row]:
    with _opened(file) as lines:  # lines of bytes end at b"\n" alone; str.splitlines() would break strings apart
        yield from _rows_of_lines(lines, file.name, origin)


def _rows_of_lines(lines: BinaryIO, name: str, origin: str) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = parse_json(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except ValueError as error:
            raise DataError(f"{name} line {number} is no JSON in UTF-8: {error}") from error
        yield _row(value, f"{name} line {number}", origin)


def _json_file(file: pathlib.Path, origin: str, container: str, unread: frozenset[str]) -> Iterator[Row]:
    with _opened(file) as opened:
        data = opened.read()
    try:
        value = parse_json(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        if not error.msg.startswith("Extra data"):
            raise DataError(f"{file.name} is no JSON: {error}") from error
        yield from _rows_of_lines(io.BytesIO(data), file.name, origin)  # JSON lines under the ending of JSON
        return
    except ValueError as error:
        if isinstance(error, UnicodeDecodeError):
            raise
        raise DataError(f"{file.name} is no JSON: {error}") from error
    if isinstance(value, dict):
        value = value[container] if container and container in value else [value]
    if not isinstance(value, list):
        raise DataError(f"{file.name} holds {type(value).__name__}, not a list of rows")
    for number, item in enumerate(value, start=1):
        yield _row(item, f"{file.name} row {number}", origin)


def _csv_file(file: pathlib.Path, origin: str, container: str, unread: frozenset[str]) -> Iterator[Row]:
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 30))  # of the process; the default refuses long texts
    delimiter = "\t" if _format(file) == ".tsv" else ","
    with _opened(file) as opened, io.TextIOWrapper(opened, encoding="utf-8-sig", newline="") as text:
        reader = csv.DictReader(text, delimiter=delimiter, strict=True)
        try:
            for values in reader:
                if None in values or None in values.values():
                    raise DataError(
                        f"{file.name} line {reader.line_num}: a row with another number of cells than the header's "
                        f"{len(reader.fieldnames or ())}; a quote may be lost before it"
                    )
                yield Row(values, f"{file.name} line {reader.line_num}", origin)
        except csv.Error as error:
            raise DataError(f"{file.name}, the row behind line {reader.line_num}: {error}") from error


def _parquet_file(file: pathlib.Path, origin: str, container: str, unread: frozenset[str]) -> Iterator[Row]:
    parquet = _arrow("parquet", file)
    try:
        with parquet.ParquetFile(file) as opened:
            columns = [name for name in opened.schema_arrow.names if name not in unread]
            yield from _table_rows(opened.iter_batches(_BATCH, columns=columns), file.name, origin)
    except _arrow("lib", file).ArrowException as error:
        raise DataError(f"cannot read {file}: {error}") from error


def _arrow_file(file: pathlib.Path, origin: str, container: str, unread: frozenset[str]) -> Iterator[Row]:
    ipc = _arrow("ipc", file)
    try:
        with open(file, "rb") as opened:
            is_stream = opened.read(6) != b"ARROW1"
        with (ipc.open_stream if is_stream else ipc.open_file)(file) as table:
            whole = table if is_stream else map(table.get_batch, range(table.num_record_batches))
            pieces = (batch.slice(start, _BATCH) for batch in whole for start in range(0, batch.num_rows, _BATCH))
            batches = (piece.select([name for name in piece.schema.names if name not in unread]) for piece in pieces)
            yield from _table_rows(batches, file.name, origin)
    except _arrow("lib", file).ArrowException as error:
        raise DataError(f"cannot read {file}: {error}") from error


def _table_rows(batches: Iterator[Any], name: str, origin: str) -> Iterator[Row]:
    number = 0
    for batch in batches:
        for values in batch.to_pylist():
            number += 1
            yield Row(values, f"{name} row {number}", origin)


def _arrow(module: str, file: pathlib.Path) -> Any:
    try:
        import pyarrow.ipc
        import pyarrow.lib
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{file} needs pyarrow, which is not installed: {INSTALL}") from error
    return getattr(pyarrow, module)


_READERS: dict[str, Callable[..., Iterator[Row]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json_file,
    ".csv": _csv_file,
    ".tsv": _csv_file,
    ".parquet": _parquet_file,
    ".arrow": _arrow_file,
}


def _endings(file: pathlib.Path) -> tuple[str, ...]:
    """Ending of the format and, where there is one, of the packing."""
    suffixes = [suffix.lower() for suffix in file.suffixes]
    return tuple(suffixes[-2:] if suffixes and suffixes[-1] in _PACKED else suffixes[-1:])


def _format(file: pathlib.Path) -> str | None:
    endings = _endings(file)
    packed_table = len(endings) == 2 and endings[0] in (".parquet", ".arrow")  # these pack themselves
    return endings[0] if endings and endings[0] in _READERS and not packed_table else None


def _opened(file: pathlib.Path) -> BinaryIO:
    return _PACKED.get(file.suffix.lower(), open)(file, "rb")


def _row(value: Any, where: str, origin: str) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"{where}: a row is an object, not {type(value).__name__}")
    return Row(value, where, origin)


def _splits_named(name: str) -> set[str]:
    words = re.findall(r"[a-z]+", name.lower())
    return {split for split in _SPLIT_WORDS if split in words}
