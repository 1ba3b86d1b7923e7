"""What a router turn can do, once parsed."""

from __future__ import annotations

import dataclasses

from rw.types import Mode, Role


@dataclasses.dataclass(frozen=True)
class DeclareMode:
    """`<mode>…</mode>`."""

    mode: Mode


@dataclasses.dataclass(frozen=True)
class Route:
    """`<route …>…</route>`; role and references exist in agentic mode only."""

    worker_id: str
    subquery: str
    role: Role | None = None
    references: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Answer:
    """`<answer>…</answer>`; an empty text is legal."""

    text: str


Action = DeclareMode | Route | Answer
