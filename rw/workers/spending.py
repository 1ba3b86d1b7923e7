"""What the lines of a ledger sum to: running sums for a run, and summaries by Worker, mode, step or phase. Pure.

Ledgers of earlier versions lack modes, queries and unknown spending; what a line does not say is "not recorded" or 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rw.types import CallId, CallStatus

Record = Mapping[str, Any]
PHASES = ("warm start", "training", "validation", "test")
NOT_RECORDED = "not recorded"
_CALL = tuple(field.name for field in dataclasses.fields(CallId))
_ABSURD = 1e15  # USD or tokens: sums of less are finite
# The amounts of each kind of line, and whether they are None where nobody said.
_AMOUNTS = {
    "sent": {"worst_case_usd": False},
    "attempt": {"cost_usd": True, "unknown_usd": False, "input_tokens": True, "output_tokens": True},
    "call": {"cost_usd": True, "attempts": False},
    "replayed": {"cost_usd": True},
}


@dataclasses.dataclass
class Spent:
    """Running sums in USD, unknown spending included: the worst case of attempts that may have been billed unseen."""

    total_usd: float = 0.0
    unknown_usd: float = 0.0  # of the total
    replayed_usd: float = 0.0  # not spent: what a journal or a cassette answered
    by_worker_usd: dict[str, float] = dataclasses.field(default_factory=dict)
    by_step_usd: dict[int, float] = dataclasses.field(default_factory=dict)  # steps of training

    def add(self, record: Record) -> None:
        """Counts one line."""
        if record["kind"] == "replayed":
            self.replayed_usd += record["cost_usd"] or 0.0
        usd = attempt_usd(record)
        if usd:
            worker_id, step = record["worker"], record["step"]
            self.total_usd += usd
            self.unknown_usd += record.get("unknown_usd", 0.0)
            self.by_worker_usd[worker_id] = self.by_worker_usd.get(worker_id, 0.0) + usd
            if phase(record) == "training":
                self.by_step_usd[step] = self.by_step_usd.get(step, 0.0) + usd

    @classmethod
    def sum(cls, parts: Iterable[Spent]) -> Spent:
        """What several ledgers hold together."""
        total = cls()
        for part in parts:
            for name in ("total_usd", "unknown_usd", "replayed_usd"):
                setattr(total, name, getattr(total, name) + getattr(part, name))
            for name in ("by_worker_usd", "by_step_usd"):
                sums = getattr(total, name)
                for key, usd in getattr(part, name).items():
                    sums[key] = sums.get(key, 0.0) + usd
        return total

    def metrics(self) -> dict[str, float]:
        """`cost/spent_usd` since the run first began, `cost/unknown_usd` of it, and `cost/replayed_usd` besides."""
        return {
            "cost/spent_usd": self.total_usd,
            "cost/unknown_usd": self.unknown_usd,
            "cost/replayed_usd": self.replayed_usd,
        }


@dataclasses.dataclass
class Summary:
    """What some lines of a ledger sum to. Amounts in USD at the price table."""

    calls: int = 0  # logical calls that were answered
    lost_calls: int = 0  # failed after their retries, or cancelled
    attempts: int = 0  # of those calls
    input_tokens: int = 0  # reported, of all attempts
    output_tokens: int = 0
    spent_usd: float = 0.0  # reported by Workers or unknown
    unknown_usd: float = 0.0  # of it: may have been billed unseen
    rejected_usd: float = 0.0  # of it: on attempts whose reply was not accepted
    booked_usd: float = 0.0  # what rollouts count as their cost: each answered call once
    replayed_calls: int = 0
    replayed_usd: float = 0.0  # saved: paid before, and answered from a journal or a cassette

    @property
    def rejected_share(self) -> float | None:
        """The share of the spending that went to attempts whose reply was not accepted; None for no spending."""
        return self.rejected_usd / self.spent_usd if self.spent_usd else None

    def as_row(self) -> dict[str, float | int | None]:
        """All figures by name."""
        return {**dataclasses.asdict(self), "rejected_share": self.rejected_share}


def summarise(records: Iterable[Record], key: Callable[[Record], Any]) -> dict[Any, Summary]:
    """One summary for each value of `key`, in the order of their first lines.

    A call that was run again after a kill counts once, by its last line; its attempts were paid each time.
    """
    found: dict[Any, Summary] = {}
    last: dict[tuple, Record] = {}
    for record in records:
        summary = found.setdefault(key(record), Summary())
        kind = record["kind"]
        if kind == "call":
            last[identity(record)] = record
        elif kind == "replayed":
            summary.replayed_calls += 1
            summary.replayed_usd += record["cost_usd"] or 0.0
        elif kind == "attempt":
            usd = attempt_usd(record)
            summary.input_tokens += record["input_tokens"] or 0
            summary.output_tokens += record["output_tokens"] or 0
            summary.spent_usd += usd
            summary.unknown_usd += record.get("unknown_usd", 0.0)
            summary.rejected_usd += 0.0 if record["accepted"] else usd
    for record in last.values():
        summary = found[key(record)]
        summary.attempts += record["attempts"]
        if record["status"] == CallStatus.OK:
            summary.calls += 1
            summary.booked_usd += record["cost_usd"] or 0.0
        else:
            summary.lost_calls += 1
    return found


def is_sound(record: Any) -> bool:
    """Whether a line of a ledger can be counted: it says who called whom and how it ended, and no amount is none."""
    kind = record.get("kind") if isinstance(record, Mapping) else None
    if not isinstance(kind, str) or kind not in _AMOUNTS:
        return False
    record = {"unknown_usd": 0.0, "mode": None, **record}
    return (
        all(isinstance(record.get(name), str) for name in ("run", "worker"))
        and all(type(record.get(name)) is int for name in _CALL)
        and (record["mode"] is None or isinstance(record["mode"], str))
        and (kind not in ("attempt", "call") or isinstance(record.get("accepted"), bool))
        and (kind != "call" or isinstance(record.get("status"), str))
        and all(name in record and _is_amount(record[name], may) for name, may in _AMOUNTS[kind].items())
    )


def _is_amount(value: Any, may_be_none: bool) -> bool:
    return may_be_none if value is None else type(value) in (int, float) and 0 <= value < _ABSURD


def phase(record: Record) -> str:
    """The part of a run that a call belongs to, one of PHASES."""
    _, slash, label = record["run"].rpartition("/")
    if slash:
        return "validation" if label == "validation" else "test"
    return "warm start" if record["step"] < 0 else "training"


def mode(record: Record) -> str:
    """The mode of the call's rollout."""
    return record.get("mode") or NOT_RECORDED


def attempt_usd(record: Record) -> float:
    """What an attempt cost or may have cost; 0 for other lines."""
    if record["kind"] != "attempt":
        return 0.0
    return (record["cost_usd"] or 0.0) + record.get("unknown_usd", 0.0)


def identity(record: Record) -> tuple:
    """The logical call that a line belongs to: what it was made for, then the parts of its CallId. Without the name of
    the run, which is that of its directory: one that was renamed or copied goes on with the same calls."""
    _, _, label = record["run"].partition("/")
    return label, *(record[name] for name in _CALL)
