"""Where the rows of a dispatch lie in its work cache, which is put together from pages of the pool. Numpy alone.

There are two layouts. `Rows` are contiguous and all as long as the longest: one product serves all of them, which is
what accelerators want. `Pages` lie there as they lay in the pool, each once: attention reads no more of a row than it
has, so that rows of any lengths go together. That is for CPUs, where memory is slow and a loop costs little.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from rw.sampler.pages import SCRATCH, pages_for
from rw.sampler.shapes import EngineConfig, length_bucket


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of whole pages; the scratch page stands where there is none.

    Args:
        pages: i32[W, P], the pages of each row, as many as its length needs.
        firsts: i32[W], the place in the row of the first page that is written.
        written: i32[W, M], the pages to store from there on; the scratch page for those that stay as they are.
    """

    pages: np.ndarray
    firsts: np.ndarray
    written: np.ndarray

    def of_row(self, row: int) -> set[int]:
        """The pages of a row."""
        return set(self.pages[row].tolist()) - {SCRATCH}


@dataclasses.dataclass(frozen=True)
class Pages:
    """Pages in any order, the scratch page first.

    Args:
        pages: i32[P], each of them once.
        tables: i32[W, C], the place among them of each page of a row; 0, the scratch page's, beyond its end.
        places: i32[W, M], those of the pages to store, and 0 for the rest.
    """

    pages: np.ndarray
    tables: np.ndarray
    places: np.ndarray

    @property
    def written(self) -> np.ndarray:
        """i32[W, M], the pages to store."""
        return self.pages[self.places]

    def of_row(self, row: int) -> set[int]:
        """The pages of a row."""
        return set(self.pages[self.tables[row]].tolist()) - {SCRATCH}


def pages_touched(count: int, page_tokens: int) -> int:
    """The pages that so many consecutive positions may lie on, wherever they begin."""
    return pages_for(count - 1, page_tokens) + 1


def work_of(
    pages: Sequence[Sequence[int]],
    spans: Sequence[tuple[int, int]],
    width: int,
    count: int,
    config: EngineConfig,
    lengths: Sequence[int] | None = None,
) -> Rows | Pages:
    """The work cache of a dispatch in the engine's layout, of one of its `lengths` or of those given; as `in_rows`."""
    layout = in_pages if config.work_cache == "pages" else in_rows
    return layout(pages, spans, width, lengths or config.lengths, count, config.page_tokens)


def in_rows(
    pages: Sequence[Sequence[int]],
    spans: Sequence[tuple[int, int]],
    width: int,
    lengths: Sequence[int],
    count: int,
    page_tokens: int,
) -> Rows:
    """Rows over the pages of each, of which the positions [start, end) of `spans` are written, `count` at most; filled
    up to `width` rows, which hold the smallest of `lengths` that is enough."""
    columns = pages_for(length_bucket(max((end for _, end in spans), default=0), lengths), page_tokens)
    touched = min(columns, pages_touched(count, page_tokens))
    table = np.full((width, columns), SCRATCH, np.int32)
    firsts, written = np.zeros(width, np.int32), np.full((width, touched), SCRATCH, np.int32)
    for i, (own, (start, end)) in enumerate(zip(pages, spans, strict=True)):
        table[i, : min(len(own), columns)] = own[:columns]
        firsts[i] = min(start // page_tokens, columns - touched)
        places = range(start // page_tokens, pages_for(end, page_tokens))
        written[i, [place - firsts[i] for place in places]] = [own[place] for place in places]
    return Rows(table, firsts, written)


def in_pages(
    pages: Sequence[Sequence[int]],
    spans: Sequence[tuple[int, int]],
    width: int,
    lengths: Sequence[int],
    count: int,
    page_tokens: int,
) -> Pages:
    """As `in_rows`, with room for as many pages as `width` rows of the smallest of `lengths` have that is enough."""
    used = [own[: pages_for(end, page_tokens)] for own, (_, end) in zip(pages, spans, strict=True)]
    place = {page: i for i, page in enumerate(dict.fromkeys((SCRATCH, *(page for own in used for page in own))))}
    rooms = (1 + width * pages_for(length, page_tokens) for length in lengths)
    held = np.full(next(room for room in rooms if room >= len(place)), SCRATCH, np.int32)
    held[: len(place)] = list(place)
    tables = np.zeros((width, pages_for(lengths[-1], page_tokens)), np.int32)
    places = np.zeros((width, pages_touched(count, page_tokens)), np.int32)
    for i, (own, (start, _)) in enumerate(zip(used, spans, strict=True)):
        tables[i, : len(own)] = [place[page] for page in own]
        new = own[start // page_tokens :]
        places[i, : len(new)] = [place[page] for page in new]
    return Pages(held, tables, places)
