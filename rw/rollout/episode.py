"""One episode: the router and its Workers take turns until there is an answer, a violation or a failure.

This file knows the order of events and nothing else. What a turn may say and which tokens the environment inserts is
`rw.protocol`'s; how tokens are sampled is the sampler's; retries, prices and the ledger are the Worker client's.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import numpy as np

from rw.errors import FailureCause, InfrastructureFailure
from rw.protocol.dialogue import PlannedCall, RouterProtocol, TurnLimits
from rw.rollout.tasks import cancel_all, gather_or_cancel
from rw.rollout.timeline import EpisodeTimes, Part
from rw.sampler.interface import EpisodeId, SampledTurn, Sampler, TurnRequest
from rw.types import POLICY_SEGMENTS, CallId, CallStatus, Mode, Query, Role, Status, Trajectory, WorkerCall
from rw.workers.interface import WorkerClient, WorkerRequest, stopped_call

# (call, question, an executor's reply) -> what the router is told of its program, "" for nothing
Feedback: TypeAlias = Callable[[CallId, Query, str], Awaitable[str]]


async def run_episode(
    query: Query,
    group_index: int,
    rollout_index: int,
    forced_mode: Mode | None,
    *,
    step: int,
    protocol: RouterProtocol,
    sampler: Sampler,
    workers: WorkerClient,
    policy_version: int,
) -> Trajectory:
    """Runs one rollout τ of a query to its end; see `Episode.run`."""
    episode = Episode(
        query,
        group_index,
        rollout_index,
        forced_mode,
        step=step,
        protocol=protocol,
        sampler=sampler,
        workers=workers,
        policy_version=policy_version,
    )
    return await episode.run()


@dataclasses.dataclass
class Episode:
    """One rollout while it runs. It can be asked for its trajectory so far, also after it was stopped from outside."""

    query: Query
    group_index: int
    rollout_index: int
    forced_mode: Mode | None
    _: dataclasses.KW_ONLY
    step: int
    protocol: RouterProtocol
    sampler: Sampler
    workers: WorkerClient
    policy_version: int
    feedback: Feedback | None = None
    times: EpisodeTimes | None = None  # where it notes what it spends time on; None: nobody asks

    def __post_init__(self):
        self.times = self.times or EpisodeTimes(self.query.id, self.rollout_index)
        self.id = EpisodeId(step=self.step, query_id=self.query.id, rollout=self.rollout_index)
        self.dialogue = self.protocol.dialogue(self.query, self.forced_mode)
        self.calls: list[WorkerCall] = []  # in node order, failed and cancelled ones too
        self.turns_sampled = 0

    async def run(self) -> Trajectory:
        """Turn by turn: the router writes, its calls are answered, the replies are shown to it.

        A failed call or sampler ends the rollout as an infrastructure failure, whatever the router wrote before.
        RwError (a Worker refuses us) and cancellation pass through; the sampler forgets the episode in every case.
        """
        try:
            while (limits := self.dialogue.next_turn()) is not None:
                turn = self.dialogue.turn
                sampled = await self._router_turn(turn, limits)
                planned = self.dialogue.take_turn(sampled.tokens, sampled.logprobs, sampled.stop)
                if planned:
                    with self.times.spent_on(Part.WAIT):
                        replies = await self._worker_replies(turn, planned)
                    self.dialogue.take_replies(replies, await self._remarks(turn, planned, replies))
        except InfrastructureFailure as failure:
            return self.failed(failure.cause)
        finally:
            await self.sampler.release(self.id)
        return self._finished()

    async def _router_turn(self, turn: int, limits: TurnLimits) -> SampledTurn:
        """Samples the next router turn on the whole context so far."""
        request = TurnRequest(
            episode=self.id,
            turn=turn,
            tokens=np.array(self.dialogue.context.tokens, dtype=np.int32),  # i32[T]
            prompt_length=self.dialogue.context.prompt_length,
            max_tokens=limits.max_tokens,
            stop_tags=tuple(limits.stop_tags),
        )
        with self.times.spent_on(Part.SAMPLE):
            sampled = await self.sampler.generate(request)
        self.times.note_turn(sampled.queue_s, sampled.is_replayed)
        self.turns_sampled += 1
        return sampled

    async def _worker_replies(self, turn: int, planned: Sequence[PlannedCall]) -> list[str]:
        """Sends one turn's calls in parallel and returns their whole replies, in the order written.

        The first call that fails cancels its siblings: the rollout cannot be measured any more, so none of them is
        worth waiting for. What they had already cost stays in the client's ledger, and out of C(τ).
        """
        requests = [self._worker_request(turn, call, plan) for call, plan in enumerate(planned)]
        tasks = [asyncio.create_task(self.workers.call(request)) for request in requests]
        try:
            for finished in asyncio.as_completed(tasks):
                if (await finished).status is not CallStatus.OK:
                    break
        finally:
            await cancel_all(tasks)
            calls = [_outcome(task, request) for task, request in zip(tasks, requests, strict=True)]
            self.calls.extend(dataclasses.replace(call, turn=turn) for call in calls)
        lost = [call for call in calls if call.status is not CallStatus.OK]
        if lost:
            cause = next((call.failure for call in lost if call.failure is not None), FailureCause.INTERNAL)
            raise InfrastructureFailure(FailureCause(cause), f"no reply to {', '.join(call.node_id for call in lost)}")
        return [call.output for call in calls]

    async def _remarks(self, turn: int, planned: Sequence[PlannedCall], replies: Sequence[str]) -> list[str]:
        """What is added to each reply for the router; nothing at all without feedback or outside agentic mode."""
        if self.feedback is None or self.dialogue.mode is not Mode.AGENTIC:
            return []

        async def remark(call: int, role: Role | None, reply: str) -> str:
            return (
                "" if role is not Role.EXECUTOR else await self.feedback(self._call_id(turn, call), self.query, reply)
            )

        plans = enumerate(zip(planned, replies, strict=True))
        with self.times.spent_on(Part.SCORE):
            return await gather_or_cancel(remark(call, plan.role, reply) for call, (plan, reply) in plans)

    def _call_id(self, turn: int, call: int) -> CallId:
        return CallId(step=self.step, group=self.group_index, rollout=self.rollout_index, turn=turn, call=call)

    def _worker_request(self, turn: int, call: int, planned: PlannedCall) -> WorkerRequest:
        return WorkerRequest(
            id=self._call_id(turn, call),
            worker_id=planned.worker_id,
            node_id=planned.node_id,
            role=planned.role,
            references=tuple(planned.references),
            subquery=planned.subquery,
            content=planned.content,
            query_id=self.query.id,
            mode=self.dialogue.mode,
        )

    def failed(self, cause: FailureCause) -> Trajectory:
        """The trajectory so far, as one that could not be measured."""
        return self._trajectory(Status.INFRASTRUCTURE_FAILURE, cause=cause.value)

    def _finished(self) -> Trajectory:
        """The trajectory as the dialogue ended it, checked."""
        trajectory = self._trajectory(self.dialogue.status, cause=self.dialogue.cause)
        check_trajectory(trajectory)
        return trajectory

    def _trajectory(self, status: Status, cause: str | None) -> Trajectory:
        dialogue, context = self.dialogue, self.dialogue.context
        measured = status is not Status.INFRASTRUCTURE_FAILURE
        return Trajectory(
            query_id=self.query.id,
            rollout_index=self.rollout_index,
            mode=dialogue.mode,
            forced=self.forced_mode is not None,
            tokens=np.array(context.tokens, dtype=np.int32),  # i32[T]
            segments=np.array(context.segments, dtype=np.uint8),  # u8[T]
            sampled_logprobs=np.array(context.logprobs, dtype=np.float32),  # f32[T]
            prompt_length=context.prompt_length,
            calls=tuple(self.calls),
            answer=dialogue.answer if measured else None,
            status=status,
            violation=dialogue.violation if measured else None,
            cause=cause,
            policy_version=self.policy_version,
            turns=self.turns_sampled,
        )


def _outcome(task: asyncio.Task[WorkerCall], request: WorkerRequest) -> WorkerCall:
    """What became of a call whose task has ended: its own record, or that of a call stopped before it had one."""
    if not task.cancelled() and task.exception() is None:
        return task.result()
    return stopped_call(request)


def check_trajectory(trajectory: Trajectory) -> None:
    """Raises RuntimeError where a measured trajectory contradicts itself: such a one must never become a sample."""
    tokens, segments, logprobs = trajectory.tokens, trajectory.segments, trajectory.sampled_logprobs
    if not len(tokens) == len(segments) == len(logprobs):
        raise RuntimeError(f"{len(tokens)} tokens, {len(segments)} segments and {len(logprobs)} log-probs")
    is_policy = np.isin(segments, POLICY_SEGMENTS)
    if not is_policy.any():
        raise RuntimeError(f"status {trajectory.status} without a single policy token")
    if not np.isfinite(logprobs).all() or logprobs[~is_policy].any():
        raise RuntimeError("sampled tokens need finite log-probs, and only they have one")
