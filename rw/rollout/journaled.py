"""What a rollout's end leaves in the journal: its verdict, which a restart need not ask for again."""

from __future__ import annotations

import dataclasses

from rw.rollout.group import Score
from rw.types import Query, ScoredTrajectory, Verdict
from rw.workers.journal import Journal


class JournaledScore:
    """Verdicts of one scope through another scorer; an answer that was judged is not judged again."""

    def __init__(self, score: Score, journal: Journal):
        self._score, self._journal = score, journal

    async def __call__(self, query: Query, answer: str) -> Verdict:
        """The verdict on an answer; what the scorer raises passes through and is not kept."""
        kept = self._journal.verdict(query.id, answer)
        return await self._score(query, answer) if kept is None else Verdict(**kept)


def write_final(journal: Journal, scored: ScoredTrajectory) -> None:
    """Keeps how a rollout ended."""
    trajectory, verdict = scored.trajectory, scored.verdict
    journal.write_final(
        trajectory.query_id,
        trajectory.rollout_index,
        trajectory.status.value,
        trajectory.answer,
        None if verdict is None else dataclasses.asdict(verdict),
    )
