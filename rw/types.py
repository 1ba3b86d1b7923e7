"""The nouns of rw: what passes between its rooms.

Frozen dataclasses for what the rollout side records, NamedTuples of arrays for what the learner computes with
(NamedTuples are pytrees without importing jax). Nothing here knows jax, flax, asyncio or a file.

Axis letters, used in every shape comment:
    G groups (queries of a batch)   K rollouts per query   B = G·K trajectories   T tokens   P policy tokens
    C reward components             M modes                U unique queries       V vocabulary
    S sampler slots                 L layers               D model width          H, N query and key/value heads
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Mode(enum.IntEnum):
    """Execution modes of the paper, section 3; the codes are those of every `mode` array."""

    SINGLE = 0
    MULTI = 1
    AGENTIC = 2

    @property
    def word(self) -> str:
        """The word inside `<mode>…</mode>`."""
        return self.name.lower()


NO_MODE = -1  # code of a trajectory that broke the grammar before it declared a mode


class Role(enum.StrEnum):
    """Roles of an agentic call."""

    PLANNER = "planner"
    EXECUTOR = "executor"
    VERIFIER = "verifier"
    SUMMARIZER = "summarizer"


class Segment(enum.IntEnum):
    """What a token is. Every token carries one from its birth; loss masks are derived from it and never stored."""

    PAD = 0
    PROMPT = 1
    INJECTED = 2  # chat frame, mode rules, forced mode, routing state, separators
    OBSERVATION = 3  # a Worker's reply with its wrapper
    MODE = 4  # sampled in the mode turn: S_mode
    INNER = 5  # sampled later: S_inner


POLICY_SEGMENTS = (Segment.MODE, Segment.INNER)


class Status(enum.StrEnum):
    """How a trajectory ended."""

    ANSWERED = "answered"
    EXHAUSTED = "exhausted"  # response budget or turns used up: valid, but no answer
    TERMINAL_INVALID = "terminal_invalid"  # first grammar or constraint violation: rewards (-1, -1)
    INFRASTRUCTURE_FAILURE = "infrastructure_failure"  # could not be measured: excluded from everything


class Violation(enum.StrEnum):
    """The closed list of reasons for TERMINAL_INVALID; where several apply, the first in this order is reported."""

    MODE_TRUNCATED = "mode_truncated"
    MODE_GRAMMAR = "mode_grammar"
    SECOND_MODE = "second_mode"
    FABRICATED_OBSERVATION = "fabricated_observation"
    ACTION_GRAMMAR = "action_grammar"
    WRONG_ATTRIBUTES = "wrong_attributes"
    EMPTY_SUBQUERY = "empty_subquery"
    BAD_ROLE = "bad_role"
    UNKNOWN_WORKER = "unknown_worker"
    BAD_REFERENCE = "bad_reference"
    TOO_MANY_CALLS = "too_many_calls"
    SUMMARIZER_MISPLACED = "summarizer_misplaced"
    DUPLICATE_ROUTE = "duplicate_route"
    ANSWER_PREMATURE = "answer_premature"


PROGRAM_KINDS = ("stdin", "function", "asserts")


@dataclasses.dataclass(frozen=True)
class ProgramTests:
    """The tests that a program must pass, all of them, in order.

    `stdin`: one text a test goes in, one must come out. `function`: a tuple of arguments goes in and a value must come
    back, both as JSON has them. `asserts`: `inputs` are Python sources that raise where the program is wrong, and there
    are no outputs.
    """

    kind: str  # of PROGRAM_KINDS
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...] = ()
    function: str = ""  # what is called: a function, or a method of `class Solution`
    setup: str = ""  # source that the program may rely on, run before it
    public: int = 0  # the first so many are shown in the question itself


@dataclasses.dataclass(frozen=True)
class Query:
    """One question x. `prompt` is what router and Workers read: the question and its set's answer-format line."""

    id: str
    dataset: str  # a key of scoring.SCORERS
    domain: str
    prompt: str
    reference: Any  # what the scorer compares with: a string, a tuple of accepted strings, or ProgramTests
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # e.g. the bare question of a recorded answer


@dataclasses.dataclass(frozen=True)
class WorkerCard:
    """What the router may know of a Worker: an anonymous id and a capability description, never a name or price."""

    id: str
    description: str


@dataclasses.dataclass(frozen=True)
class CallId:
    """Identity of one logical Worker call. A retry keeps it; `call` counts the calls of one turn."""

    step: int
    group: int
    rollout: int
    turn: int
    call: int


RETRY_COSTS = ("accepted", "reported")  # which attempts of a call count in C(τ)


class CallStatus(enum.StrEnum):
    """How a logical Worker call ended."""

    OK = "ok"
    FAILED = "failed"  # after its retries: an infrastructure failure
    CANCELLED = "cancelled"  # a sibling of its layer failed, or its rollout was stopped


@dataclasses.dataclass(frozen=True)
class WorkerCall:
    """One accepted or failed Worker call. None means that it was not measured, which is never the same as zero."""

    node_id: str  # n1, n2, … in the order written
    worker_id: str
    role: Role | None
    references: tuple[str, ...]
    subquery: str
    output: str
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    latency_s: float  # of the accepted attempt, without local queueing
    attempts: int
    status: CallStatus
    failure: str | None = None  # errors.FailureCause value, where status is FAILED
    finish_reason: str | None = None
    queue_wait_s: float = 0.0
    retry_cost_usd: float = 0.0  # of failed attempts that reported usage: paid, and no part of cost_usd
    turn: int | None = None  # the router turn that made it; calls of one turn run in parallel


class VerdictKind(enum.StrEnum):
    """Why an answer is right or not; only a sandbox fault is not on its own account."""

    PASS = "pass"
    WRONG = "wrong"
    TIME = "time"  # the answer made its judge, or was as a program itself, too slow
    MEMORY = "memory"
    OUTPUT = "output"  # more of it than is allowed
    CRASH = "crash"  # ended by an exception, a signal or an exit status
    SANDBOX_FAULT = "sandbox_fault"  # nothing was learnt of the answer: the rollout is excluded, never wrong


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a scorer says of an answer."""

    correct: bool
    detail: str = ""
    tier: str = ""  # sandbox tier, for programs
    kind: str = ""  # a VerdictKind; empty where only right and wrong are told apart
    scorer: str = ""  # name and version of the rule, such as math/1


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One rollout τ, token by token. The four arrays have one length T."""

    query_id: str
    rollout_index: int
    mode: Mode | None
    forced: bool
    tokens: np.ndarray  # i32[T]
    segments: np.ndarray  # u8[T], Segment codes
    sampled_logprobs: np.ndarray  # f32[T], the sampler's log-prob of each sampled token, 0 elsewhere
    prompt_length: int  # tokens of turn 1's prompt; the response budget counts what follows
    calls: tuple[WorkerCall, ...]
    answer: str | None
    status: Status
    violation: Violation | None = None
    cause: str | None = None  # what exhausted it ("response_budget", "turns") or which failure ended it
    policy_version: int = 0
    turns: int = 0  # router turns sampled, the mode turn included

    @property
    def cost_usd(self) -> float | None:
        """C(τ): sum over accepted calls in USD; None where a call's usage is missing; 0.0 without calls."""
        costs = [call.cost_usd for call in self.calls if call.status is CallStatus.OK]
        return None if any(cost is None for cost in costs) else float(sum(costs))

    def counted_cost_usd(self, retry_cost: str) -> float | None:
        """C(τ) as the reward counts it: with the rejected attempts that reported usage where `retry_cost` says so."""
        if self.cost_usd is None or retry_cost == "accepted":
            return self.cost_usd
        retries = [call.retry_cost_usd for call in self.calls if call.status is CallStatus.OK]
        return self.cost_usd + float(sum(retries))


@dataclasses.dataclass(frozen=True)
class ScoredTrajectory:
    """A trajectory with its scorer's verdict (None unless it was answered)."""

    trajectory: Trajectory
    verdict: Verdict | None

    @property
    def correct(self) -> bool:
        return self.verdict is not None and self.verdict.correct


@dataclasses.dataclass(frozen=True)
class Group:
    """The K rollouts of one query, in rollout order; `index` is the query's place in its batch."""

    index: int
    query: Query
    forced_mode: Mode | None
    rollouts: tuple[ScoredTrajectory, ...]


class GroupBatch(NamedTuple):
    """Rewards of a batch of groups: the input of every advantage function."""

    rewards: Any  # f32[G, K, C], C = (task, efficiency)
    mode: Any  # i32[G, K], Mode codes or NO_MODE
    retained: Any  # bool[G, K], the set V
    forced: Any  # bool[G]


class Advantages(NamedTuple):
    """Mixed advantages of Eq. 16, 0 outside V; `components` holds (grpo, mode, inner) each f32[G, K, C], unmixed."""

    grpo: Any  # f32[G, K]
    mode: Any  # f32[G, K]
    inner: Any  # f32[G, K]
    components: Any = None


class TokenBatch(NamedTuple):
    """Trajectories as padded rows. `x[b, t]` always belongs to `tokens[b, t]` given what precedes it."""

    tokens: Any  # i32[B, T]
    positions: Any  # i32[B, T], 0 on the first real token
    segments: Any  # u8[B, T]
    advantage: Any  # f32[B, T], Eq. 18's token advantage
    old_logprobs: Any  # f32[B, T]
    reference_logprobs: Any  # f32[B, T]
    retained: Any  # bool[B]


class TokenCounts(NamedTuple):
    """Token counts over the whole global batch after exclusions: the only normalisers of the loss."""

    mode: Any  # f32[], N_mode
    inner: Any  # f32[], N_inner
    kl: Any  # f32[], N_KL


class TrainState(NamedTuple):
    """What a checkpoint holds of the learner."""

    params: Any
    opt_state: Any
    step: Any  # i32[], updates tried so far
    data_batch_index: Any  # i32[], b of the next batch
    rng: Any  # u32[2], the run's base key: never advanced, only folded into
    nonfinite_skips: Any  # i32[2], (in a row, in all)


class PublishedWeights(NamedTuple):
    """Weights in the sampler's layout with the version that fences its caches."""

    version: int
    params: Any
