"""Rollouts as events: how long they must take, and how long they take where turns wait for each other or do not.

A trajectory has turns. A turn samples tokens in one of the engine's slots; after every turn but the last a Worker
answers. With k slots at work a token of each of them takes `step(k, context)` seconds, where `context` is the mean
number of tokens that they hold. Nothing else takes time: prefill, HTTP and Python do not exist here.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import math
import random
import statistics
from collections.abc import Callable, Sequence

import numpy as np

WORKER_MEDIAN_S, WORKER_P95_S, STALL_S, STALL_SHARE = 3.0, 12.0, 60.0, 0.01
MOST_TURNS = 8
TOKEN_SPREAD = 0.5  # deviation of the logarithm of a turn's tokens, which are three times the median at most
TINY = 1e-9  # tokens: rounding of what is left

StepTime = Callable[[int, float], float]  # (slots at work, mean context) -> seconds of one token of each


@dataclasses.dataclass(frozen=True)
class Turn:
    """Tokens to sample, and the seconds that the Worker takes after them; None where the trajectory ends."""

    tokens: int
    worker_s: float | None


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Tokens that contexts grow by, besides what is sampled."""

    prompt: int
    observation: int


Trajectory = tuple[Turn, ...]


def drawn(count: int, median_tokens: int, scale: float, seed: int) -> list[Trajectory]:
    """`count` trajectories of 1 to 8 turns. Workers are lognormal with a median of 3 s and a 95th percentile of 12 s,
    and one call in a hundred takes 60 s; all that times `scale`."""
    lots = random.Random(seed)
    spread = math.log(WORKER_P95_S / WORKER_MEDIAN_S) / statistics.NormalDist().inv_cdf(0.95)

    def worker_s() -> float:
        usual = lots.lognormvariate(math.log(WORKER_MEDIAN_S), spread)
        return scale * (STALL_S if lots.random() < STALL_SHARE else usual)

    def tokens() -> int:
        return min(3 * median_tokens, max(1, round(lots.lognormvariate(math.log(median_tokens), TOKEN_SPREAD))))

    trajectories = []
    for _ in range(count):
        turns = lots.randint(1, MOST_TURNS)
        trajectories.append(tuple(Turn(tokens(), worker_s() if t < turns - 1 else None) for t in range(turns)))
    return trajectories


def context_at(trajectory: Trajectory, turn: int, lengths: Lengths) -> int:
    """Tokens that a trajectory holds when this turn begins."""
    return lengths.prompt + sum(before.tokens + lengths.observation for before in trajectory[:turn])


def table_time(table: Sequence[tuple[int, int, float]]) -> StepTime:
    """Step times between the points (slots, context, seconds) of a full grid, linear in both; beyond its ends, in slots
    as between the last two, in context as at the last."""
    slots, contexts = sorted({row[0] for row in table}), sorted({row[1] for row in table})
    grid = {(k, c): seconds for k, c, seconds in table}

    def at(k: int, context: float) -> float:
        return float(np.interp(context, contexts, [grid[k, c] for c in contexts]))

    def step(k: int, context: float) -> float:
        if k > slots[-1] and len(slots) > 1:
            low, high = slots[-2:]
            slope = (at(high, context) - at(low, context)) / (high - low)
            return at(high, context) + slope * (k - high)
        return float(np.interp(k, slots, [at(s, context) for s in slots]))

    return step


def critical_path(trajectories: Sequence[Trajectory], step: StepTime, lengths: Lengths) -> float:
    """Seconds of the longest trajectory if it had the engine to itself."""

    def alone(trajectory: Trajectory) -> float:
        starts = [context_at(trajectory, t, lengths) for t in range(len(trajectory))]
        own = [turn.tokens * step(1, start) for turn, start in zip(trajectory, starts, strict=True)]
        return sum(own) + sum(turn.worker_s or 0.0 for turn in trajectory)

    return max(map(alone, trajectories))


def lower_bound(trajectories: Sequence[Trajectory], step: StepTime, slots: int, lengths: Lengths) -> float:
    """No schedule is shorter: the longest trajectory alone, or all tokens at the engine's best rate."""
    fastest = min(step(k, lengths.prompt) / k for k in range(1, slots + 1))
    work = fastest * sum(turn.tokens for trajectory in trajectories for turn in trajectory)
    return max(critical_path(trajectories, step, lengths), work)


class _Engine:
    """Slots that sample turns, first come, first served."""

    def __init__(self, trajectories: Sequence[Trajectory], step: StepTime, slots: int, lengths: Lengths):
        self._trajectories, self._step, self._slots, self._lengths = trajectories, step, slots, lengths
        self.now = 0.0
        self.queue: collections.deque[tuple[int, int]] = collections.deque()  # (trajectory, turn)
        self._left: dict[tuple[int, int], float] = {}  # tokens to go of what is in a slot

    @property
    def busy(self) -> bool:
        return bool(self.queue or self._left)

    def run_until(self, limit: float) -> list[tuple[int, int]]:
        """Goes on to the end of the next turn or to `limit`, whichever is first; the turns that have ended."""
        while self.queue and len(self._left) < self._slots:
            at = self.queue.popleft()
            self._left[at] = float(self._trajectories[at[0]][at[1]].tokens)
        held = [context_at(self._trajectories[i], t, self._lengths) for i, t in self._left]
        token_s = self._step(len(self._left), statistics.fmean(held))
        tokens = min(min(self._left.values()), (limit - self.now) / token_s)
        self.now += tokens * token_s
        for at in self._left:
            self._left[at] -= tokens
        ended = [at for at, left in self._left.items() if left < TINY]
        for at in ended:
            del self._left[at]
        return ended


def asynchronous(trajectories: Sequence[Trajectory], step: StepTime, slots: int, lengths: Lengths) -> list[float]:
    """Seconds at which each trajectory ends where none waits for another but for slots. In the order of their ends."""
    engine = _Engine(trajectories, step, slots, lengths)
    engine.queue.extend((i, 0) for i in range(len(trajectories)))
    workers: list[tuple[float, int, int]] = []  # (seconds of the answer, trajectory, next turn)
    ends: list[float] = []
    while engine.busy or workers:
        if not engine.busy:
            engine.now = workers[0][0]
        else:
            for i, t in engine.run_until(workers[0][0] if workers else math.inf):
                worker_s = trajectories[i][t].worker_s
                if worker_s is None:
                    ends.append(engine.now)
                else:
                    heapq.heappush(workers, (engine.now + worker_s, i, t + 1))
        while workers and workers[0][0] <= engine.now + TINY:
            engine.queue.append(heapq.heappop(workers)[1:])
    return ends


def turn_barrier(trajectories: Sequence[Trajectory], step: StepTime, slots: int, lengths: Lengths) -> float:
    """Seconds where all sample their turn, then all wait for the slowest Worker, and so on."""
    engine = _Engine(trajectories, step, slots, lengths)
    for turn in range(max(map(len, trajectories))):
        alive = [i for i, trajectory in enumerate(trajectories) if len(trajectory) > turn]
        engine.queue.extend((i, turn) for i in alive)
        while engine.busy:
            engine.run_until(math.inf)
        engine.now += max(trajectories[i][turn].worker_s or 0.0 for i in alive)
    return engine.now
