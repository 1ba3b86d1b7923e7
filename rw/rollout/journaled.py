"""What judging a rollout and its programs leaves in the journal, so that a restart need not ask for it again."""

from __future__ import annotations

import dataclasses

from rw.rollout.credit import Score
from rw.rollout.episode import Feedback
from rw.types import CallId, Query, ScoredTrajectory, Verdict
from rw.workers.journal import Journal


class JournaledScore:
    """Verdicts of one scope through another scorer; an answer that was judged is not judged again."""

    def __init__(self, score: Score, journal: Journal):
        self._score, self._journal = score, journal

    async def __call__(self, query: Query, answer: str) -> Verdict:
        """The verdict on an answer; what the scorer raises passes through and is not kept."""
        kept = self._journal.verdict(query.id, answer)
        return await self._score(query, answer) if kept is None else Verdict(**kept)


class JournaledFeedback:
    """Feedback of one scope through another one: a turn that was sampled on it finds it again as it was."""

    def __init__(self, feedback: Feedback, journal: Journal):
        self._feedback, self._journal = feedback, journal

    async def __call__(self, call: CallId, query: Query, reply: str) -> str:
        """What the router is told; what the feedback raises passes through and is not kept."""
        told = self._journal.feedback(call, reply)
        if told is None:
            told = await self._feedback(call, query, reply)
            self._journal.write_feedback(call, reply, told)
        return told


def write_final(journal: Journal, scored: ScoredTrajectory, keeps_verdict: bool = True) -> None:
    """Keeps how a rollout ended.

    Args:
        keeps_verdict: whether its verdict holds for every rollout of the query that gives this answer. Where Workers
            may earn it, it does not, and is not kept.
    """
    trajectory, verdict = scored.trajectory, scored.verdict if keeps_verdict else None
    journal.write_final(
        trajectory.query_id,
        trajectory.rollout_index,
        trajectory.status.value,
        trajectory.answer,
        None if verdict is None else dataclasses.asdict(verdict),
    )
