"""What judging a rollout and its programs leaves in the journal, so that a restart need not ask for it again."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from rw.rollout.credit import Score
from rw.rollout.episode import Feedback
from rw.types import CallId, Query, ScoredTrajectory, Verdict
from rw.workers.journal import Journal

NO_DIGESTS: Mapping[str, str] = MappingProxyType({})


def question_digests(queries: Iterable[Query]) -> dict[str, str]:
    """sha256 (hex) of each question with all that its answers are judged by, by id: another draw, or files that were
    prepared again, may give an id to another question."""
    return {query.id: hashlib.sha256(repr(query).encode("utf-8", "surrogatepass")).hexdigest() for query in queries}


class JournaledScore:
    """Verdicts of one scope through another scorer; an answer that was judged is not judged again.

    Args:
        digests: of the questions, as question_digests; a verdict on another question of that id does not count.
    """

    def __init__(self, score: Score, journal: Journal, digests: Mapping[str, str] = NO_DIGESTS):
        self._score, self._journal, self._digests = score, journal, digests

    async def __call__(self, query: Query, answer: str) -> Verdict:
        """The verdict on an answer; what the scorer raises passes through and is not kept."""
        kept = self._journal.verdict(query.id, answer, self._digests.get(query.id, ""))
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


def write_final(
    journal: Journal,
    scored: ScoredTrajectory,
    keeps_verdict: bool = True,
    digests: Mapping[str, str] = NO_DIGESTS,
) -> None:
    """Keeps how a rollout ended.

    Args:
        keeps_verdict: whether its verdict holds for every rollout of the query that gives this answer. Where Workers
            may earn it, it does not, and is not kept.
        digests: as JournaledScore has them.
    """
    trajectory, verdict = scored.trajectory, scored.verdict if keeps_verdict else None
    journal.write_final(
        trajectory.query_id,
        trajectory.rollout_index,
        trajectory.status.value,
        trajectory.answer,
        None if verdict is None else dataclasses.asdict(verdict),
        digests.get(trajectory.query_id, ""),
    )
