"""Loaders of data sets by name: what makes questions of their rows, and where the sets lie."""

from __future__ import annotations

from rw.data.sources import choices, contests, functions, maths, own, reasoning, recall
from rw.data.sources.schema import Source

SOURCES: dict[str, Source] = {
    **maths.SOURCES,
    **contests.SOURCES,
    **functions.SOURCES,
    **choices.SOURCES,
    **reasoning.SOURCES,
    **recall.SOURCES,
    **own.SOURCES,
}
