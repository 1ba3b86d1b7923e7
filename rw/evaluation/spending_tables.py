"""Tables of what one or several ledgers sum to: by phase, Worker, mode and step. They are made from records alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rw.evaluation.table import Table, cost_unit, percent
from rw.types import Mode
from rw.workers.ledger import unended
from rw.workers.spending import NOT_RECORDED, PHASES, Record, Summary, mode, phase, summarise

TOTAL = "all"
STEP_ROWS = 20  # more steps than these are shown in blocks
COLUMNS = ("calls", "lost", "attempts", "tokens in", "out", "spent", "unknown", "booked", "saved", "% rejected")
MODES = (*(each.word for each in Mode), NOT_RECORDED)

Key = Callable[[Record], Any]


def step(record: Record) -> int | None:
    """The step of training that a call belongs to; None for warm starts and evaluations."""
    return record["step"] if phase(record) == "training" else None


KEYS: Mapping[str, Key] = {"phase": phase, "worker": lambda record: record["worker"], "mode": mode, "step": step}


@dataclasses.dataclass(frozen=True)
class Books:
    """What the ledger of one run sums to."""

    run: str
    total: Summary
    by: Mapping[str, Mapping[Any, Summary]]  # by name of KEYS
    open_usd: float  # worst case of the attempts without an ending: in flight, or cut off by a kill
    open_attempts: int
    torn_lines: int

    @classmethod
    def of(cls, run: str, records: Sequence[Record], torn_lines: int = 0) -> Books:
        """The books of a ledger's records."""
        by = {name: summarise(records, key) for name, key in KEYS.items()}
        by["step"].pop(None, None)
        total = summarise(records, lambda record: TOTAL).get(TOTAL, Summary())
        still_open = unended(records)
        open_usd = sum(record["worst_case_usd"] for record in still_open)
        return cls(run, total, by, open_usd, len(still_open), torn_lines)

    def as_dict(self) -> dict[str, Any]:
        """All figures, as JSON holds them."""
        by = {name: {str(key): found.as_row() for key, found in group.items()} for name, group in self.by.items()}
        left = {name: getattr(self, name) for name in ("open_usd", "open_attempts", "torn_lines")}
        return {"run": self.run, **left, TOTAL: self.total.as_row(), **{f"by_{name}": by[name] for name in by}}

    def rows(self) -> list[dict[str, Any]]:
        """One flat row a summary, as CSV holds them."""
        found = [(TOTAL, TOTAL, self.total)]
        found += [(name, key, summary) for name, group in self.by.items() for key, summary in group.items()]
        return [{"run": self.run, "by": name, "key": key, **summary.as_row()} for name, key, summary in found]


def tables(books: Sequence[Books]) -> list[Table]:
    """One table a kind of key over all runs together, each with its total; first one by run where there are several."""
    total = _sum(book.total for book in books)
    factor, unit = cost_unit([total.spent_usd, total.replayed_usd])
    made = []
    if len(books) > 1:
        made.append(_table("run", {book.run: book.total for book in books}, total, factor, unit))
    for name, order in (("phase", PHASES), ("worker", ()), ("mode", MODES)):
        made.append(_table(name, _ordered(_merged(books, name), order), total, factor, unit))
    by_step = _in_blocks(_merged(books, "step"))
    return [*made, _table("step", by_step, _sum(by_step.values()), factor, unit)] if by_step else made


def sentences(books: Sequence[Books]) -> list[str]:
    """What the tables come to, and what the ledgers could not tell."""
    total = _sum(book.total for book in books)
    factor, unit = cost_unit([total.spent_usd, total.replayed_usd])
    times = " " if factor == 1 else " · "
    words = [
        f"Spent {_amount(total.spent_usd, factor)}{times}{unit}: {_amount(total.unknown_usd, factor)} of it unknown "
        f"(worst case of attempts maybe billed unseen), {percent(total.rejected_share)} % of it on attempts whose "
        f"reply was not accepted. Booked, each answered call once: {_amount(total.booked_usd, factor)}."
    ]
    if total.replayed_calls:
        saved = _amount(total.replayed_usd, factor)
        words.append(f"Answered again by journal or cassette, unpaid: calls {total.replayed_calls}, saved {saved}.")
    if attempts := sum(book.open_attempts for book in books):
        open_usd = _amount(sum(book.open_usd for book in books), factor)
        words.append(f"In flight, or cut off by a kill: attempts {attempts}, worst case {open_usd}; not in the tables.")
    if torn := sum(book.torn_lines for book in books):
        words.append(f"Lines that are cut short, by a kill or because a run is writing: {torn}.")
    return words


def _table(name: str, found: Mapping[Any, Summary], total: Summary, factor: float, unit: str) -> Table:
    rows = [_row(str(key), summary, factor) for key, summary in found.items()]
    return Table(f"By {name}, {unit}", (name, *COLUMNS), (*rows, _row(TOTAL, total, factor)))


def _row(key: str, summary: Summary, factor: float) -> tuple[str, ...]:
    counts = (summary.calls, summary.lost_calls, summary.attempts, summary.input_tokens, summary.output_tokens)
    amounts = (summary.spent_usd, summary.unknown_usd, summary.booked_usd, summary.replayed_usd)
    return key, *map(str, counts), *(_amount(usd, factor) for usd in amounts), percent(summary.rejected_share)


def _amount(usd: float, factor: float) -> str:
    return f"{usd * factor:.3f}"


def _merged(books: Sequence[Books], name: str) -> dict[Any, Summary]:
    found: dict[Any, list[Summary]] = {}
    for book in books:
        for key, summary in book.by[name].items():
            found.setdefault(key, []).append(summary)
    return {key: _sum(found[key]) for key in sorted(found)}


def _ordered(found: Mapping[Any, Summary], order: Sequence[str]) -> dict[Any, Summary]:
    known = [key for key in order if key in found]
    return {key: found[key] for key in (*known, *(key for key in found if key not in known))}


def _in_blocks(by_step: Mapping[int, Summary]) -> dict[str, Summary]:
    """At most STEP_ROWS rows of consecutive steps, all but the last of the same size."""
    steps = sorted(by_step)
    size = -(-len(steps) // STEP_ROWS)
    blocks = [steps[start : start + size] for start in range(0, len(steps), size)] if steps else []
    return {
        str(block[0]) if len(block) == 1 else f"{block[0]} to {block[-1]}": _sum(by_step[step] for step in block)
        for block in blocks
    }


def _sum(summaries: Iterable[Summary]) -> Summary:
    names = [field.name for field in dataclasses.fields(Summary)]
    summaries = list(summaries)
    return Summary(**{name: sum(getattr(summary, name) for summary in summaries) for name in names})
