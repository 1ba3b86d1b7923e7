"""What a loader of one data set is: a function from a row of the set's own schema to an Item, and facts about the set.

A loader raises Unusable for a row that the set may well hold but that no question can be made of, and DataError,
through `field`, for a row that is not of its schema at all.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rw.data.hub import Hub
from rw.data.rows import LongInteger
from rw.errors import DataError


class Unusable(Exception):
    """No question can be made of the row; `reason` is what the drop is counted under."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class Options:
    """What the one who prepares may choose.

    Args:
        split: recorded with the questions, and the choice of files or of the hub's split.
        levels: of MATH's problems, 1 to 5; empty takes all, those of unknown level included.
        special_judge: places, from 0, of TACO's rows that need a judge of their own.
        drop_ambiguous: leave out LiveCodeBench's problems with several right answers, of which its tests accept one.
        own_scorers: names that the rows of one's own questions may give as `scorer`, beside rw's.
    """

    split: str = ""
    levels: frozenset[int] = frozenset()
    special_judge: frozenset[int] = frozenset()
    drop_ambiguous: bool = False
    own_scorers: frozenset[str] = frozenset()


class Place(NamedTuple):
    """Where a row stood, and what was chosen."""

    origin: str  # name of its file without endings, or the hub's config
    index: int  # among all rows read, from 0
    options: Options


class Item(NamedTuple):
    """A question before it has its set's name.

    `key` is the set's own id, which must tell it from all others of the set; empty: a digest of the question takes its
    place, which stays the same whatever else is read with it and in whatever order.
    """

    key: str
    question: str
    answer_line: str  # one paragraph; empty where the question says it all
    reference: Any
    metadata: Mapping[str, Any]
    dataset: str = ""  # both for one's own questions only, where every row names them
    domain: str = ""


@dataclasses.dataclass(frozen=True)
class Source:
    """A data set that questions can be made of.

    Args:
        read: makes an Item of a row, or raises.
        domain: of the paper's five.
        hub: where the set lies; None where it lies nowhere.
        container: key under which a JSON file of the set holds the list of its rows.
        unread: large columns that are of no use here.
    """

    read: Callable[[Mapping[str, Any], Place], Item]
    domain: str
    hub: Hub | None = None
    container: str = ""
    unread: tuple[str, ...] = ()


def field(row: Mapping[str, Any], *names: str) -> Any:
    """Value of the first of these columns that the row has, layouts of one set differ; DataError where it has none."""
    for name in names:
        if name in row:
            return row[name]
    raise DataError(f"no column {' or '.join(names)}; the row has {', '.join(map(str, row)) or 'none'}")


def text_of(row: Mapping[str, Any], *names: str) -> str:
    """Like `field`, for texts: numbers become texts, and Unusable where it is null or blank."""
    value = field(row, *names)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if value is not None and not isinstance(value, str):
        raise DataError(f"column {names[0]} must be a text, not {type(value).__name__}")
    if not (value or "").strip():
        raise Unusable(f"empty_{names[0].lower().replace(' ', '_')}")
    return str(value) if isinstance(value, LongInteger) else value


def code_of(row: Mapping[str, Any], name: str) -> str:
    """Source code of a column that may be missing or empty, with line feeds for line ends."""
    value = row.get(name) or ""
    if not isinstance(value, str):
        raise DataError(f"column {name} must be a text, not {type(value).__name__}")
    return unix_lines(value)


def known(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Those of the columns that hold something, for metadata: no NaN, and dates as texts."""
    found = {name: row[name] for name in names if row.get(name) not in (None, "", []) and row[name] == row[name]}
    return {name: value.isoformat() if isinstance(value, datetime.date) else value for name, value in found.items()}


def unix_lines(text: str) -> str:
    """Source code with line feeds for line ends."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
