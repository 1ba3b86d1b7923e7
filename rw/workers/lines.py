"""Checksummed lines: JSON records in a file that a kill may cut short and nothing else may alter.

A line is the CRC-32 of its JSON in eight hex digits, a space, the JSON, a newline. A torn tail is what a killed writer
leaves and is told apart from damage, which is never read over.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from typing import Any


class DamagedLineError(ValueError):
    """A line in front of the tail whose checksum does not fit; the message names its number."""


def write_line(record: Mapping[str, Any]) -> bytes:
    """The record as one line; what JSON cannot hold raises TypeError or ValueError."""
    text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    return f"{zlib.crc32(text.encode()):08x} {text}\n".encode()


def append_line(file: int, line: bytes) -> None:
    """Writes a line to the end of an open file, whole or not at all: what a full disk took of it is taken back, so that
    whatever is written later does not stand behind half a line.

    Raises:
        OSError: it was not written.
    """
    written = 0
    try:
        while written < len(line):
            written += os.write(file, line[written:])
    except OSError:
        if written:
            os.ftruncate(file, os.fstat(file).st_size - written)
        raise


def read_lines(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """The records of a file's bytes, and how many bytes of it are whole: what follows them is a torn tail.

    Only the last line can be torn, and only by a missing end: a kill never changes what was written.

    Raises:
        DamagedLineError: any other line, or a last line with its newline, does not fit its checksum.
    """
    records: list[dict[str, Any]] = []
    *lines, tail = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        record = _read_line(line)
        if record is None:
            raise DamagedLineError(f"line {number} does not fit its checksum")
        records.append(record)
    return records, len(data) - len(tail)


def _read_line(line: bytes) -> dict[str, Any] | None:
    checksum, _, text = line.partition(b" ")
    if len(checksum) != 8 or checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
