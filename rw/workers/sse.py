"""Server-sent events out of bytes that arrive cut anywhere. Knows no sockets and nothing of what the events say.

After the HTML standard, section 9.2; the fields `event` and `retry` mean nothing here.
"""

from __future__ import annotations

import dataclasses

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True)
class Event:
    """One event: its data lines joined by newlines, and the id that it bears itself, if any."""

    data: str
    id: str | None = None


class EventParser:
    """Fed chunk by chunk. A line is decoded once it is whole, so that a cut inside of a character does no harm."""

    def __init__(self) -> None:
        self._line = bytearray()  # the beginning of a line whose end has not come
        self._data: list[str] = []
        self._id: str | None = None
        self._at_start = True
        self._after_return = False  # a newline that follows belongs to the same line end

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that this chunk completes."""
        if self._after_return and chunk[:1] == b"\n":
            chunk = chunk[1:]
            self._after_return = False
        if not chunk:
            return []
        self._after_return = chunk.endswith(b"\r")
        if b"\n" not in chunk and b"\r" not in chunk:
            self._line += chunk  # nothing is joined before the line ends: long lines would cost their square
            return []
        *lines, rest = _split_lines(bytes(self._line) + chunk)
        self._line = bytearray(rest)
        return [event for line in lines if (event := self._take(line)) is not None]

    def finish(self) -> list[Event]:
        """What the end of the stream leaves without its empty line: some servers send none behind the last event."""
        return self.feed(b"\n\n") if self._line or self._data else []

    def _take(self, line: bytes) -> Event | None:
        if self._at_start:
            line, self._at_start = line.removeprefix(_BYTE_ORDER_MARK), False
        if not line:
            event = Event("\n".join(self._data), self._id) if self._data else None
            self._data, self._id = [], None
            return event
        name, _, value = line.partition(b":")  # a comment has an empty name
        if name == b"data":
            self._data.append(value.removeprefix(b" ").decode("utf-8", "replace"))
        elif name == b"id":
            self._id = value.removeprefix(b" ").decode("utf-8", "replace")
        return None


def _split_lines(data: bytes) -> list[bytes]:
    """Lines without their ends (\\n, \\r or \\r\\n); the last has no end yet and may be empty."""
    lines = data.splitlines()
    return lines if data[-1:] not in (b"\n", b"\r") else [*lines, b""]
