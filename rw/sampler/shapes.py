"""The engine's settings and its shape buckets. No jax here.

Every array that a device program sees has one of these few shapes, since a program is compiled anew for each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rw.errors import ConfigError
from rw.sampler.pages import pages_for

WORK_CACHES = ("auto", "rows", "pages")
BUCKET_LISTS = ("lengths", "decode_widths", "prefill_rows")


@dataclasses.dataclass(frozen=True)
class EngineConfig:
    """Slots and shapes of the sampler engine.

    Args:
        slots: turns that are prefilled or decoded at a time; others queue. An episode that waits for its Workers needs
            none and keeps its cache all the same.
        lengths: tokens that the rows of a dispatch hold, ascending: it works on the smallest that its contexts fit in,
            in pages on the mean. The last one bounds every context with what may still be sampled.
        decode_widths: rows of a decode dispatch, ascending.
        prefill_rows: rows of a prefill dispatch, ascending.
        prefill_chunk: tokens of each of them.
        prefill_tokens: prefilled between two decode rounds at most, so that running turns go on while contexts arrive.
        clone_rows: rollouts that one dispatch copies the last, partly filled page of their prompt for.
        page_tokens: tokens of a page, the piece in which memory for keys and values is given out. Rollouts of a query
            share the whole pages of their prompt.
        kv_bytes: what all pages together may take, the heads of all devices counted; None: as much as the longest
            contexts of all episodes at once (`rollout.concurrency`) come to. Where it is used up, the episode that has
            waited longest for its Workers loses its cache, which is built again when it comes back, and after those
            the turn that began last queues again.
        steps_per_dispatch: tokens decoded before the host looks for stop tags. What a row samples beyond its end is
            dropped: about half of this, a turn.
        work_cache: how a dispatch holds the keys and values of its rows. "rows": contiguous, those of one length
            together; one product reads them all. "pages": rows of any lengths together, each read page by page as far
            as it goes, in loops that cost little on CPUs. "auto": pages on CPUs, rows elsewhere.
        deterministic: one shape only (the largest of each list) and no eviction. Results are then bitwise the same
            whatever the order in which episodes come and go. Needs pages for every concurrent episode.

    Raises:
        ConfigError: values that are not positive or not ascending.
    """

    slots: int = 64
    lengths: tuple[int, ...] = (1024, 4096, 18432)
    decode_widths: tuple[int, ...] = (8, 32)
    prefill_rows: tuple[int, ...] = (1, 4)
    prefill_chunk: int = 64
    prefill_tokens: int = 2048
    clone_rows: int = 8
    page_tokens: int = 64
    kv_bytes: int | None = None
    steps_per_dispatch: int = 8
    work_cache: str = "auto"
    deterministic: bool = False

    def __post_init__(self):
        for name in ("slots", "prefill_chunk", "prefill_tokens", "clone_rows", "page_tokens", "steps_per_dispatch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"engine.{name}={getattr(self, name)!r}: must be at least 1")
        for name in BUCKET_LISTS:
            values = tuple(getattr(self, name))  # a list, where the setting came from a file
            object.__setattr__(self, name, values)
            if not values or values[0] < 1 or list(values) != sorted(set(values)):
                raise ConfigError(f"engine.{name}={values!r}: must be positive numbers in ascending order")
        if self.work_cache not in WORK_CACHES:
            raise ConfigError(f"engine.work_cache={self.work_cache!r}: must be one of {', '.join(WORK_CACHES)}")
        needed = max(self.prefill_chunk, self.steps_per_dispatch)
        if self.lengths[0] < needed:
            raise ConfigError(
                f"engine.lengths={self.lengths!r}: the first must be at least {needed}, prefill_chunk and "
                "steps_per_dispatch"
            )

    @property
    def longest(self) -> int:
        """Tokens that a context may reach, what is still to be sampled included."""
        return self.lengths[-1]

    def pool_pages(self, page_bytes: int, episodes: int) -> tuple[int, int]:
        """The pages that the pool starts with and that it may grow to, where a page takes `page_bytes` and so many
        episodes go on at once; the scratch page is not counted. Raises ConfigError where `kv_bytes` is too little for
        one longest context, or, with `deterministic`, for those of all episodes."""
        context = pages_for(self.longest, self.page_tokens) + 1  # and the end of its prompt, which it has a copy of
        limit = max(1, episodes) * context
        if self.kv_bytes is not None:
            least = limit if self.deterministic else context
            limit = min(limit, self.kv_bytes // page_bytes - 1)
            if limit < least:
                whose = f"{episodes} contexts" if self.deterministic else "a context"
                raise ConfigError(
                    f"engine.kv_bytes={self.kv_bytes}: {whose} of {self.longest} tokens may take "
                    f"{(least + 1) * page_bytes}; raise it, or lower the last of engine.lengths"
                )
        # What the widest dispatch of the shortest rows needs: every size in between costs programs of its own.
        return min(limit, self.decode_widths[-1] * pages_for(self.lengths[0], self.page_tokens)), limit

    def for_platform(self, platform: str) -> EngineConfig:
        """These settings with the layout of work caches that suits it (jax.default_backend()), where none was named."""
        if self.work_cache != "auto":
            return self
        return dataclasses.replace(self, work_cache="pages" if platform == "cpu" else "rows")

    def single_shapes(self) -> EngineConfig:
        """These settings with the largest of each list of shapes alone."""
        return dataclasses.replace(self, **{name: getattr(self, name)[-1:] for name in BUCKET_LISTS})


def length_bucket(need: int, lengths: Sequence[int]) -> int:
    """The smallest length that holds `need` positions, or the largest there is."""
    return next((length for length in lengths if length >= need), lengths[-1])


def split_rows(count: int, widths: Sequence[int]) -> list[tuple[int, int]]:
    """Divides `count` rows over dispatches: (rows, width) each.

    A step's time grows about linearly with its width, so rows go into wide dispatches while they fill them, and a wider
    one is taken for the rest only where at most a quarter of it stays empty.
    """
    parts = []
    while count > 0:
        covering = next((width for width in widths if width >= count), None)
        fitting = [width for width in widths if width <= count]
        if covering is not None and (not fitting or 4 * count >= 3 * covering):
            width = covering
        else:
            width = fitting[-1]
        parts.append((min(count, width), width))
        count -= width
    return parts
