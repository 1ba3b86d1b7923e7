"""The append-only token list of one trajectory: a token has its segment from birth and is never changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from rw.types import POLICY_SEGMENTS, Segment

Piece = tuple[np.ndarray, Segment]
_INSERTED = (Segment.INJECTED, Segment.OBSERVATION)


class Context:
    """Tokens, segments and log-probs in one record of one length, grown in place.

    Views handed out stay valid: growth copies into a new buffer and never touches what was written.
    """

    def __init__(self, prompt: np.ndarray):
        """Starts with turn 1's prompt, i32[n]."""
        self._length = 0
        self._tokens = np.empty(0, np.int32)
        self._segments = np.empty(0, np.uint8)
        self._logprobs = np.empty(0, np.float32)
        self._append(np.asarray(prompt), 0.0, Segment.PROMPT)
        self.prompt_length = self._length

    @property
    def tokens(self) -> np.ndarray:
        """i32[T], read-only."""
        return self._view(self._tokens)

    @property
    def segments(self) -> np.ndarray:
        """u8[T], Segment codes, read-only."""
        return self._view(self._segments)

    @property
    def logprobs(self) -> np.ndarray:
        """f32[T], the sampler's log-prob of sampled tokens and 0 elsewhere, read-only."""
        return self._view(self._logprobs)

    @property
    def response_length(self) -> int:
        """Tokens after the prompt, sampled and inserted: what the response budget counts."""
        return self._length - self.prompt_length

    def __len__(self) -> int:
        return self._length

    def append_sampled(self, ids: Sequence[int] | np.ndarray, logprobs: Sequence[float] | np.ndarray, segment: Segment):
        """Appends router tokens exactly as sampled. Raises ValueError for another segment or unequal lengths."""
        if segment not in POLICY_SEGMENTS:
            raise ValueError(f"sampled tokens are MODE or INNER, not {Segment(segment).name}")
        self._append(np.asarray(ids), np.asarray(logprobs, np.float32), segment)

    def append_inserted(self, pieces: Iterable[Piece]) -> None:
        """Appends (ids, segment) pieces of the environment. Raises ValueError for a policy segment."""
        for ids, segment in pieces:
            if segment not in _INSERTED:
                raise ValueError(f"inserted tokens are INJECTED or OBSERVATION, not {Segment(segment).name}")
            self._append(ids, 0.0, segment)

    def _append(self, ids: np.ndarray, logprobs: np.ndarray | float, segment: Segment) -> None:
        if ids.size and not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(f"token ids are integers, not {ids.dtype}")
        if ids.ndim != 1 or np.shape(logprobs) not in ((), ids.shape):
            raise ValueError(f"token ids {ids.shape} and log-probs {np.shape(logprobs)} must be equally long rows")
        end = self._length + len(ids)
        if end > len(self._tokens):
            capacity = max(1024, end + end // 2)
            self._tokens, self._segments, self._logprobs = (
                np.concatenate([old[: self._length], np.zeros(capacity - self._length, old.dtype)])
                for old in (self._tokens, self._segments, self._logprobs)
            )
        new = slice(self._length, end)
        self._tokens[new], self._segments[new], self._logprobs[new] = ids, segment, logprobs
        self._length = end

    def _view(self, buffer: np.ndarray) -> np.ndarray:
        view = buffer[: self._length]
        view.flags.writeable = False
        return view
