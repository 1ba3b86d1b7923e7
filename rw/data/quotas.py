"""Quotas: how many questions of each data set a batch holds."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Sequence

from rw.data.order import Turns
from rw.errors import DataError

KNOWLEDGE_REASON = {"6/7": (6, 7), "7/6": (7, 6)}
PAPER = "paper"  # in the place of quotas: those of `paper_quotas`


@dataclasses.dataclass(frozen=True)
class Quota:
    """How many questions of a data set each batch holds; several counts take turns by b."""

    dataset: str
    counts: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dataset}:{'/'.join(map(str, self.counts))}"

    @classmethod
    def parse(cls, text: str) -> Quota:
        """`apps:4`, or `math:4/3` for 4 and 3 in turn. Raises DataError for anything else."""
        found = re.fullmatch(r"\s*([A-Za-z0-9_]+)\s*:\s*(\d+(?:/\d+)*)\s*", text)
        counts = tuple(int(count) for count in found[2].split("/")) if found else ()
        if not any(counts):
            raise DataError(f"quota {text!r} is not of the form dataset:n or dataset:n/m, with a number above 0")
        return cls(found[1], counts)


def paper_quotas(knowledge_reason: str = "6/7") -> tuple[str, ...]:
    """The quotas of a batch of 32 (RouteWeaver, Appendix C): 7 Math, 7 Code, 6 Knowledge, 7 Reason, 5 Recall.

    The paper names MATH and Omni-MATH for Math and says no more; we let them take 4 and 3 in turn.

    Args:
        knowledge_reason: `6/7`; the authors' code has `7/6`.
    """
    knowledge, reason = KNOWLEDGE_REASON[knowledge_reason]
    return (
        "math:4/3", "omni_math:3/4", "apps:4", "live_code_bench:3", f"super_gpqa:{knowledge}", f"sat_bench:{reason}",
        "trivia_qa:5",
    )  # fmt: skip


def check_quotas(quotas: Sequence[Quota], batch: int) -> None:
    """Raises DataError for a data set with two quotas, and where quotas do not make up every batch."""
    for name, count in Counter(quota.dataset for quota in quotas).items():
        if count > 1:
            raise DataError(f"data set {name} has {count} quotas; give it one")
    shown = ", ".join(map(str, quotas))
    for b in range(math.lcm(*(len(quota.counts) for quota in quotas))):
        total = sum(Turns(quota.counts).of(b) for quota in quotas)
        if total != batch:
            raise DataError(f"the quotas {shown} take {total} questions in batch {b}, and a batch holds {batch}")
