"""Stop tags: where a turn's text first completes one, and which sampled token does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, AnyStr

from rw.types import Mode

if TYPE_CHECKING:
    from rw.protocol.chat import TokenCodec

OBSERVATION_TAG = "<observation"
ANSWER_TAG = "</answer>"


def stop_tags(mode: Mode | None) -> tuple[str, ...]:
    """Stop tags of a turn in `mode`, None for the mode turn. An agentic layer ends by an end token, not `</route>`."""
    if mode is None:
        return ("</mode>", ANSWER_TAG, OBSERVATION_TAG)
    if mode is Mode.AGENTIC:
        return (ANSWER_TAG, OBSERVATION_TAG)
    return ("</route>", ANSWER_TAG, OBSERVATION_TAG)


def first_stop(text: AnyStr, tags: Sequence[AnyStr]) -> tuple[int, AnyStr] | None:
    """The tag that is completed first in `text` with the index after its last character, or None."""
    found = [(start + len(tag), tag) for tag in tags if (start := text.find(tag)) >= 0]
    return min(found, default=None)


class StopScanner:
    """Finds, token by token, the one that completes a stop tag. Tags are found in bytes, across token borders."""

    def __init__(self, codec: TokenCodec, tags: Sequence[str]):
        self._token_bytes = codec.token_bytes
        self._tags = tuple(tag.encode() for tag in tags)
        self._keep = max((len(tag) for tag in self._tags), default=1) - 1
        self._tail = b""

    def feed(self, token_id: int) -> bool:
        """True where this token completes a tag, whatever bytes it carries beyond it."""
        old = len(self._tail)
        seen = self._tail + self._token_bytes[token_id]
        self._tail = seen[-self._keep :] if self._keep else b""
        # A match must end inside the new token; one that ended earlier was reported then.
        return any(seen.find(tag, max(0, old - len(tag) + 1)) >= 0 for tag in self._tags)
