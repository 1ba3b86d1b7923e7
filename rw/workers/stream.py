"""What a streamed answer says: its chunks folded into the object that the same answer would be in one piece. Pure.

Nothing in a chunk tells a repeated piece of text from a Worker that stutters, unless the server numbers its events. A
repeated end or usage is told apart, and counts once.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from rw.errors import FailureCause
from rw.workers.keys import KeyMask
from rw.workers.reply import Failure, Reply, TokenBounds, content_text, judge_usage, read_answer
from rw.workers.sse import Event

_DONE = "[DONE]"


class StreamedAnswer:
    """Takes events one by one; `outcome` judges what has been taken so far."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._refusal: list[str] = []
        self._data_by_id: dict[str, str] = {}
        self._ids_are_numbers = True  # of events, as far as is known
        self._first = ""  # event, for error messages
        self._has_choice = False
        self._finish_reason: str | None = None
        self._usage: Any = None
        self._error: Any = None
        self._is_broken = False
        self._is_done = False
        self.text_length = 0  # characters

    @property
    def has_begun(self) -> bool:
        """Whether any event has come."""
        return bool(self._first) or self._is_done

    @property
    def is_over(self) -> bool:
        """Whether nothing that follows could change the outcome."""
        return self._is_done or self._is_broken or self._error is not None

    @property
    def is_complete(self) -> bool:
        """Whether the server has said that the answer is at its end."""
        return self._is_done or self._finish_reason is not None

    def take(self, event: Event) -> None:
        """Adds an event; a repetition adds nothing."""
        if self.is_over or self._is_repetition(event):
            return
        if event.data.strip() == _DONE:
            self._is_done = True
            return
        self._first = self._first or event.data or " "
        try:
            chunk = json.loads(event.data)
        except (ValueError, RecursionError):
            chunk = None
        if isinstance(chunk, dict):
            self._add(chunk)
        else:
            self._is_broken = True

    def take_last(self, event: Event) -> None:
        """Adds what stood at the end of the stream without an empty line behind it: it counts where it is whole."""
        was_broken = self._is_broken
        self.take(event)
        self._is_broken = was_broken

    def outcome(self, retry_after_s: float | None, bounds: TokenBounds, mask: KeyMask) -> Reply | Failure:
        """Judges the answer; to be called once the stream is over or has ended."""
        if self._is_broken:
            return self._failure(FailureCause.BAD_RESPONSE, "a stream with an event that is no JSON object", bounds)
        if self._error is None and not self.is_complete:
            return self._failure(FailureCause.RESET, "the stream ended in the middle of the answer", bounds)
        message = {"content": "".join(self._content), "refusal": "".join(self._refusal)}
        choice = {"message": message, "finish_reason": self._finish_reason}
        answer = {"choices": [choice] if self._has_choice else [], "error": self._error, "usage": self._usage}
        outcome = read_answer(answer, self._first.encode("utf-8", "replace"), retry_after_s, bounds, mask)
        if isinstance(outcome, Failure) and self.text_length:
            return dataclasses.replace(outcome, unbilled=False)  # tokens had been made
        return outcome

    def _is_repetition(self, event: Event) -> bool:
        """Whether the event was there before. An id that stands at different events tells nothing from then on."""
        if not event.id or not self._ids_are_numbers:
            return False
        earlier = self._data_by_id.get(event.id)
        self._data_by_id[event.id] = event.data
        self._ids_are_numbers = earlier in (None, event.data)
        return earlier == event.data

    def _add(self, chunk: Mapping[str, Any]) -> None:
        error = chunk.get("error") or (chunk if chunk.get("object") == "error" else None)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and not choice.get("index"):
                error = error or choice.get("error")
                self._add_choice(choice)
        if chunk.get("usage") is not None:
            self._usage = chunk["usage"]  # the last one counts: some servers report it as it grows
        self._error = error or self._error

    def _add_choice(self, choice: Mapping[str, Any]) -> None:
        self._has_choice = True
        delta = choice.get("delta")
        if self._finish_reason is None and isinstance(delta, dict):  # behind the end there are only repetitions
            for name, parts in (("content", self._content), ("refusal", self._refusal)):
                if piece := content_text(delta.get(name)):
                    parts.append(piece)
                    self.text_length += len(piece)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._finish_reason = self._finish_reason or reason

    def _failure(self, cause: FailureCause, message: str, bounds: TokenBounds) -> Failure:
        usage, unbelieved = judge_usage(self._usage, False, bounds)
        return Failure(cause, message, usage=usage, unbelieved=unbelieved)
