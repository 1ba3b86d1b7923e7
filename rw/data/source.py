"""Questions of a data set from rows of its own schema, and a count of the rows that none could be made of."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rw.data.hub import hub_rows
from rw.data.rows import HUB, Row, data_files, described, read_rows
from rw.data.sources import SOURCES
from rw.data.sources.schema import Item, Options, Place, Source, Unusable
from rw.data.wording import normalised
from rw.errors import DataError
from rw.imported import imported
from rw.typed_values import did_you_mean
from rw.types import Query

DUPLICATE = "duplicate"
EXAMPLES = 3  # ids that are kept of each reason
_KEY_DIGITS = 12  # of a question's digest: among 30,000 questions two share one with a chance of 2 in a million


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Questions in the order of their rows, how many rows were dropped by reason, and who they were."""

    queries: tuple[Query, ...]
    dropped: collections.Counter[str]
    examples: Mapping[str, tuple[str, ...]]  # the first ids, or places, of each reason
    files: tuple[Mapping[str, Any], ...] = ()  # name, bytes and sha256 of what was read

    @property
    def rows(self) -> int:
        return len(self.queries) + self.dropped.total()

    def without(self, dropped: Mapping[str, str]) -> Loaded:
        """Without the questions whose ids `dropped` has, each counted under the reason given for it."""
        counts, examples = self.dropped.copy(), {reason: list(ids) for reason, ids in self.examples.items()}
        for query_id, reason in dropped.items():
            _count(counts, examples, reason, query_id)
        kept = tuple(query for query in self.queries if query.id not in dropped)
        return dataclasses.replace(
            self, queries=kept, dropped=counts, examples={reason: tuple(ids) for reason, ids in examples.items()}
        )


def source_of(dataset: str) -> Source:
    """The loader of that name, or of a module of one's own, as `package.module:name`.

    Raises:
        DataError: there is none of that name, with the nearest one, or it is no Source.
        ConfigError: the module cannot be imported.
    """
    if dataset in SOURCES:
        return SOURCES[dataset]
    if ":" in dataset:
        source = imported(dataset, "data set")
        if not isinstance(source, Source):
            raise DataError(f"data set {dataset!r} is a {type(source).__name__}, not an rw.data.sources.schema.Source")
        if set_name(dataset) in SOURCES:
            raise DataError(f"data set {dataset!r} has the name of one of rw's; give yours another one")
        return source
    near = did_you_mean(dataset.lower().replace("-", "_"), SOURCES, cutoff=0.5)
    raise DataError(f"unknown data set {dataset!r}{near or '; known are ' + ', '.join(SOURCES)}")


def set_name(dataset: str) -> str:
    """What the questions of a data set are called after: the last part of `package.module:name`."""
    return dataset.rpartition(":")[2]


def load(
    dataset: str,
    source: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
    split: str = "",
    options: Options | None = None,
    on_row: Callable[[int], None] = lambda rows: None,
) -> Loaded:
    """The questions of a file, a directory, the hub (the word `hub`), or of rows that are there already.

    A row is dropped as a duplicate where one before it has its id, or its question but for case, spaces and typography.

    Args:
        on_row: told how many rows have been read.

    Raises:
        DataError: an unknown data set, a file that cannot be read, a row of another schema; with file and line.
    """
    reader = source_of(dataset)
    options = dataclasses.replace(options or Options(), split=split)
    rows, files = _rows(reader, source, split)
    queries: list[Query] = []
    counts: collections.Counter[str] = collections.Counter()
    examples: dict[str, list[str]] = {}
    ids: set[str] = set()
    questions: set[bytes] = set()
    for index, row in enumerate(rows):
        on_row(index + 1)
        try:
            item = reader.read(row.values, Place(row.origin, index, options))
        except Unusable as error:
            _count(counts, examples, error.reason, row.where)
            continue
        except DataError as error:
            raise DataError(f"{row.where}: {error} (read as data set {dataset!r})") from error
        query = _query(set_name(dataset), reader, item)
        question = hashlib.sha256(normalised(item.question).encode("utf-8", "surrogatepass")).digest()
        if query.id in ids or question in questions:
            _count(counts, examples, DUPLICATE, query.id)
            continue
        ids.add(query.id)
        questions.add(question)
        queries.append(query)
    return Loaded(tuple(queries), counts, {reason: tuple(places) for reason, places in examples.items()}, tuple(files))


def _query(dataset: str, reader: Source, item: Item) -> Query:
    key = item.key or hashlib.sha256(item.question.strip().encode("utf-8", "surrogatepass")).hexdigest()[:_KEY_DIGITS]
    prompt = f"{item.question.rstrip()}\n\n{item.answer_line}" if item.answer_line else item.question
    name, domain = item.dataset or dataset, item.domain or reader.domain
    return Query(f"{dataset}/{key}", name, domain, prompt, item.reference, dict(item.metadata))


def _rows(reader: Source, source: Any, split: str) -> tuple[Iterator[Row], list[dict[str, Any]]]:
    """The rows, and a list that holds a record of each file once the rows are read."""
    if isinstance(source, str) and source == HUB:
        if reader.hub is None:
            raise DataError("one's own questions lie on no hub; give a file")
        records: list[dict[str, Any]] = []
        return _recorded(hub_rows(reader.hub, split), f"hub {reader.hub.path}", records), records
    if not isinstance(source, (str, os.PathLike)):
        return (Row(row, f"row {number}", "") for number, row in enumerate(source, start=1)), []
    words = [] if not split else [split] if reader.hub is None else [reader.hub.splits.get(split, split), split]
    files = data_files(source, words)
    rows = (row for file in files for row in read_rows(file, reader.container, reader.unread))
    return rows, described(files, source)


def _recorded(rows: Iterator[Row], name: str, records: list[dict[str, Any]]) -> Iterator[Row]:
    """Passes rows on and, behind the last, says how many bytes of JSON they were, with what checksum."""
    digest, size = hashlib.sha256(), 0
    for row in rows:
        line = json.dumps(row.values, sort_keys=True, default=str).encode()
        digest.update(line)
        size += len(line)
        yield row
    records.append({"name": name, "bytes": size, "sha256": digest.hexdigest()})


def _count(counts: collections.Counter[str], examples: dict[str, list[str]], reason: str, example: str) -> None:
    counts[reason] += 1
    kept = examples.setdefault(reason, [])
    if len(kept) < EXAMPLES:
        kept.append(example)
