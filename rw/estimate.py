"""What a run may cost, from its config alone: calls and USD, low, typical and worst. Pure arithmetic.

A rollout of a mode makes so many calls; a call's message holds the question, the router's sub-query and earlier
replies; a Worker charges for both sides at its price. What cannot be known before the first call is assumed, and every
assumption is a constant or a sentence below. Knows no tokenizer, no file and no Worker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from rw.protocol.config import AGENTIC_CALLS, MULTI_CALLS, SINGLE_CALLS
from rw.types import Mode
from rw.workers.pricing import Price

SHORT_REPLY = 16  # tokens: low
TYPICAL_REPLY = 1 / 8  # of the Worker's max_output_tokens
SHORT_SUBQUERY = 8  # tokens: low; typically as long as the question
MEASURED_FROM = 20  # calls of a Worker, or rollouts of a mode, from which on what was measured is typical
CALLS = {Mode.SINGLE: (SINGLE_CALLS, SINGLE_CALLS), Mode.MULTI: MULTI_CALLS, Mode.AGENTIC: (1, AGENTIC_CALLS)}
ASSUMPTIONS = (
    "calls a rollout: the fewest that its mode allows, half-way, the most; retries are not in it, rollouts that break "
    "the grammar are not taken off",
    f"a reply: {SHORT_REPLY} tokens, an eighth of the Worker's max_output_tokens, all of them",
    f"a sub-query: {SHORT_SUBQUERY} tokens, as long as the question, all calls together the whole response budget",
    "replies shown to an agentic call: one, half of the earlier ones, all of them",
    "Workers: all calls to the cheapest, all Workers alike, all calls to the dearest",
    "modes, where the router chooses: all rollouts in the cheapest, all modes alike, all in the dearest",
)


@dataclasses.dataclass(frozen=True)
class Range:
    """A quantity that is not known yet."""

    low: float
    typical: float
    worst: float

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.typical + other.typical, self.worst + other.worst)

    def __mul__(self, factor: float) -> Range:
        return Range(self.low * factor, self.typical * factor, self.worst * factor)


NOTHING = Range(0.0, 0.0, 0.0)


@dataclasses.dataclass(frozen=True)
class WorkerTerms:
    """A Worker's price, and what the ledger of the workdir says of it."""

    id: str
    price: Price
    max_output_tokens: int
    measured_usd: float | None = None  # a call, where enough calls were answered
    measured_calls: int = 0


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Tokens, counted by the router's tokenizer."""

    question_mean: float
    question_longest: float
    frame: Mapping[Mode, float]  # of a message without question, sub-query and replies
    response_budget: float


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of the run by its rollouts: those with an assigned mode, in equal parts, and those that choose one."""

    name: str
    forced: float
    free: float
    is_free_of_charge: bool = False
    mode: Mode | None = None  # the one that all those with an assigned mode have, instead of equal parts

    @property
    def rollouts(self) -> float:
        return self.forced + self.free


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Calls and USD: of one call by Worker, of one rollout by mode, of each phase, and of the run."""

    call_usd: Mapping[str, Range]
    rollout_calls: Mapping[Mode, Range]
    rollout_usd: Mapping[Mode, Range]
    phases: Sequence[tuple[Phase, Range, Range]]  # (phase, calls, USD)

    @property
    def calls(self) -> Range:
        return sum((calls for _, calls, _ in self.phases), NOTHING)

    @property
    def usd(self) -> Range:
        return sum((usd for _, _, usd in self.phases), NOTHING)


def estimate(
    phases: Sequence[Phase],
    workers: Sequence[WorkerTerms],
    lengths: Lengths,
    shows_previous: bool = True,
    measured_calls: Mapping[Mode, float] | None = None,
) -> Estimate:
    """Calls and USD of the phases.

    Args:
        workers: one at least.
        shows_previous: whether a multi call after the first shows its Worker the previous reply.
        measured_calls: of a rollout by mode, where enough rollouts are known.
    """
    measured_calls = measured_calls or {}
    calls = {mode: Range(low, measured_calls.get(mode, (low + most) / 2), most) for mode, (low, most) in CALLS.items()}
    by_worker = {
        (mode, worker.id): _call_usd(mode, calls[mode], worker, lengths, shows_previous)
        for mode in Mode
        for worker in workers
    }
    rollouts = {mode: _times(calls[mode], _over([by_worker[mode, worker.id] for worker in workers])) for mode in Mode}
    call_usd = {worker.id: _over([by_worker[mode, worker.id] for mode in Mode]) for worker in workers}
    found = []
    for phase in phases:
        usd = NOTHING if phase.is_free_of_charge else _of_phase(phase, rollouts)
        found.append((phase, _of_phase(phase, calls), usd))
    return Estimate(call_usd, calls, rollouts, found)


def _call_usd(mode: Mode, calls: Range, worker: WorkerTerms, lengths: Lengths, shows_previous: bool) -> Range:
    """A mean call of this mode to this Worker, where all calls of the rollout go to it."""

    def cost(count: float, reply: float, question: float, subqueries: float, shown: Callable[[float], float]) -> float:
        """`subqueries`: tokens of all calls together; `shown`: replies shown, all calls together, by their count."""
        tokens_in = lengths.frame[mode] + question + (subqueries + reply * shown(count)) / count
        return (tokens_in * worker.price.input + reply * worker.price.output) / 1e6

    if mode is Mode.MULTI:
        few = half = every = (lambda count: count - 1) if shows_previous else (lambda count: 0)
    else:  # a single call has none before it
        few, half, every = (
            lambda count: count - 1,
            lambda count: count * (count - 1) / 4,
            lambda count: count * (count - 1) / 2,
        )
    most, mean, longest = worker.max_output_tokens, lengths.question_mean, lengths.question_longest
    low = cost(calls.low, min(SHORT_REPLY, most), mean, calls.low * SHORT_SUBQUERY, few)
    typical = cost(calls.typical, max(1.0, most * TYPICAL_REPLY), mean, calls.typical * mean, half)
    worst = cost(calls.worst, most, longest, lengths.response_budget, every)
    if worker.measured_usd is not None:
        typical = worker.measured_usd
    return Range(min(low, typical), typical, max(worst, typical))


def _of_phase(phase: Phase, by_mode: Mapping[Mode, Range]) -> Range:
    """Assigned modes come in equal parts, or there is but one of them, whatever the router does."""
    ranges = list(by_mode.values())
    if phase.mode is not None:
        return by_mode[phase.mode] * phase.forced + _over(ranges) * phase.free
    count = len(ranges)
    equal = Range(*(sum(getattr(one, name) for one in ranges) / count for name in ("low", "typical", "worst")))
    return equal * phase.forced + _over(ranges) * phase.free


def _over(ranges: Sequence[Range]) -> Range:
    """Of a choice that is not known: the lowest, the mean, the highest."""
    typical = sum(one.typical for one in ranges) / len(ranges)
    return Range(min(one.low for one in ranges), typical, max(one.worst for one in ranges))


def _times(calls: Range, usd: Range) -> Range:
    return Range(calls.low * usd.low, calls.typical * usd.typical, calls.worst * usd.worst)
