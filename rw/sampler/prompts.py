"""What the rollouts of a query begin with: computed once into pages that all of them use.

Whole pages are shared as they are. The last, partly filled one is copied by each rollout, which goes on writing there.
"""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(eq=False)
class Prompt:
    """A prompt without its last token, which is the input of the first decode step."""

    tokens: np.ndarray  # i32[T]
    pages: list[int] = dataclasses.field(default_factory=list)
    length: int = 0  # leading tokens whose keys and values the pages hold
    users: int = 0  # episodes that begin with it and hold a slot
    was_taken: bool = False  # some episode has begun with what was computed
    order: int = 0  # when its last user left, as a count of events

    @property
    def is_complete(self) -> bool:
        """Whether episodes can begin with it."""
        return self.length == len(self.tokens)

    def void(self) -> list[int]:
        """Forgets what was computed; returns the pages, which are no longer its own."""
        pages, self.pages, self.length, self.was_taken = self.pages, [], 0, False
        return pages
