"""Which pages of the cache pool are in use, and by how many. A pure book: no device, no episodes, no clock.

A page holds the keys and values of a few consecutive tokens in every layer. One that several sequences begin with is
kept once and counted. The pool starts small and grows only when its pages are used up, so that what is allocated stays
within twice what is in use.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

SCRATCH = 0  # what padding reads; always zero, nothing is ever stored there
_GROWTH = 7 / 4  # below 2: a sequence's last page is partly empty


def pages_for(tokens: int, page_tokens: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // page_tokens)


def pool_sizes(first: int, limit: int) -> list[int]:
    """The pages that a pool has from its first size to the limit, the scratch page not counted."""
    sizes = [min(first, limit)]
    while sizes[-1] < limit:
        sizes.append(min(limit, max(sizes[-1] + 1, int(sizes[-1] * _GROWTH))))
    return sizes


class PageBook:
    """Pages 1 to `capacity`, each free, used by one or more, or waiting to be cleaned."""

    def __init__(self, first: int, limit: int):
        self.sizes = pool_sizes(first, limit)
        self.capacity = 0  # pages that the pool must have, the scratch page not counted
        self.unclean: list[int] = []  # used by nobody, and to be zeroed before anybody may
        self._users: dict[int, int] = {}
        self._spoilt: set[int] = set()
        self._free: list[int] = []  # a heap: low pages first

    @property
    def limit(self) -> int:
        """Pages that there can be."""
        return self.sizes[-1]

    @property
    def in_use(self) -> int:
        """Pages that somebody uses, each once."""
        return len(self._users)

    def users(self, page: int) -> int:
        """How many use a page."""
        return self._users.get(page, 0)

    def take(self, count: int, may_grow: bool = True) -> list[int] | None:
        """`count` free pages for one user, the pool grown where it must and may; None where there are not as many."""
        if count > len(self._free):
            needed = self.in_use + len(self.unclean) + count
            if not may_grow or needed > self.limit:
                return None
            size = next(size for size in self.sizes if size >= needed)
            for page in range(self.capacity + 1, size + 1):
                heapq.heappush(self._free, page)
            self.capacity = size
        taken = [heapq.heappop(self._free) for _ in range(count)]
        self._users.update(dict.fromkeys(taken, 1))
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """Counts one more user of pages in use."""
        for page in pages:
            self._users[page] += 1

    def give(self, pages: Iterable[int]) -> None:
        """Takes one user off each of the pages; those that have none left are free, or unclean if they are spoilt."""
        for page in pages:
            self._users[page] -= 1
            if not self._users[page]:
                del self._users[page]
                if page in self._spoilt:
                    self._spoilt.remove(page)
                    self.unclean.append(page)
                else:
                    heapq.heappush(self._free, page)

    def spoil(self, pages: Iterable[int]) -> None:
        """What lies in these pages may not be finite: nobody gets them before they were cleaned."""
        free = set(self._free)
        for page in set(pages):
            if page in self._users:
                self._spoilt.add(page)
            elif page in free:
                free.remove(page)
                self.unclean.append(page)
        self._free = sorted(free)  # a sorted list is a heap

    def cleaned(self, pages: Iterable[int]) -> None:
        """These of the unclean pages were zeroed."""
        for page in pages:
            self.unclean.remove(page)
            heapq.heappush(self._free, page)

    def clear(self) -> None:
        """The pool is gone and with it every page."""
        self.capacity, self.unclean, self._free = 0, [], []
        self._users, self._spoilt = {}, set()
