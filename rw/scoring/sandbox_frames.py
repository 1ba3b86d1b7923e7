"""Messages through the wall of a sandbox: two lengths, a header in JSON, and a payload of bytes.

Read on both sides (see `sandbox_source`), so it knows the standard library alone. The functions here block; who stands
outside, and must not wait for ever, reads with a deadline (`sandbox_process`).
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

LENGTHS = struct.Struct(">II")  # bytes of the header, bytes of the payload
HEADER_BYTES = 1 << 16  # a header that claims more is no header


def frame(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """A message as it travels."""
    head = json.dumps(header).encode()
    return LENGTHS.pack(len(head), len(payload)) + head + payload


def write_frame(descriptor: int, header: dict[str, Any], payload: bytes = b"") -> None:
    """Writes a whole message."""
    view = memoryview(frame(header, payload))
    while view:
        view = view[os.write(descriptor, view) :]


def read_frame(descriptor: int) -> tuple[dict[str, Any], bytes] | None:
    """The next message; None where the other side is gone."""
    lengths = _read_exactly(descriptor, LENGTHS.size)
    if lengths is None:
        return None
    head_bytes, payload_bytes = LENGTHS.unpack(lengths)
    head, payload = _read_exactly(descriptor, head_bytes), _read_exactly(descriptor, payload_bytes)
    return None if head is None or payload is None else (json.loads(head), payload)


def unframed(text: bytes) -> tuple[dict[str, Any], bytes]:
    """The message that a text of someone else consists of; an empty one where it is none."""
    if len(text) < LENGTHS.size:
        return {}, b""
    head_end = LENGTHS.size + LENGTHS.unpack_from(text)[0]
    if head_end > LENGTHS.size + HEADER_BYTES or head_end + LENGTHS.unpack_from(text)[1] != len(text):
        return {}, b""
    try:
        header = json.loads(text[LENGTHS.size : head_end])
    except (ValueError, RecursionError):
        return {}, b""
    return (header, text[head_end:]) if isinstance(header, dict) else ({}, b"")


def _read_exactly(descriptor: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
