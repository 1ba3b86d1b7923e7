"""When the episodes of a step did what, and what that says of the step: makespan, critical path, stragglers.

Measures and decides nothing: what is recorded here reaches rows and reports, never a trajectory, a journal or a
choice. Nobody who is slow is dropped either, since those are multi and agentic rollouts: without them the router would
learn that these modes do not pay. Knows no sampler and no device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rw.types import Mode

STRAGGLERS = 0.05  # the last of a step's episodes, whose time is reported


class Part(enum.StrEnum):
    """What an episode spends time on. What is none of these is its own: grammar, tokens, its turn on the event loop."""

    PLACE = "place"  # for a place among those that run at a time, before it begins
    QUEUE = "queue"  # until the sampler takes up a turn
    SAMPLE = "sample"  # prefill and decode, as it sees them: with those of others in between
    WAIT = "wait"  # for Workers
    SCORE = "score"  # judging its answer, and running programs that it is told about


RUNNING = (Part.QUEUE, Part.SAMPLE, Part.WAIT, Part.SCORE)  # of an episode that has begun


class Span(NamedTuple):
    """From when to when, in seconds of the step's clock."""

    part: Part
    start_s: float
    end_s: float


@dataclasses.dataclass
class EpisodeTimes:
    """The spans of one episode, none of which overlap."""

    query_id: str
    rollout: int
    clock: Callable[[], float] = time.monotonic
    spans: list[Span] = dataclasses.field(default_factory=list)
    begun_s: float | None = None  # when it had a place
    ended_s: float | None = None  # when it had its verdict
    mode: Mode | None = None
    replayed_turns: int = 0  # turns that a journal had, with what Workers replied: nobody waited for these again

    def __post_init__(self):
        self.asked_s = self.clock()

    def begin(self) -> None:
        """It has a place."""
        self.begun_s = self.clock()
        self.spans.append(Span(Part.PLACE, self.asked_s, self.begun_s))

    @contextlib.contextmanager
    def spent_on(self, part: Part) -> Iterator[None]:
        """What is done inside is one span, however it ends."""
        start_s = self.clock()
        try:
            yield
        finally:
            self.spans.append(Span(part, start_s, self.clock()))

    def note_turn(self, queue_s: float, is_replayed: bool) -> None:
        """Of the turn that was just sampled: how much of its span was spent in the queue."""
        self.replayed_turns += is_replayed
        _, start_s, end_s = self.spans.pop()
        taken_up_s = min(start_s + queue_s, end_s)
        self.spans += [Span(Part.QUEUE, start_s, taken_up_s), Span(Part.SAMPLE, taken_up_s, end_s)]

    def end(self, mode: Mode | None) -> None:
        """It has its verdict, or never gets one."""
        self.mode, self.ended_s = mode, self.clock()

    @property
    def duration_s(self) -> float:
        """From its place to its verdict."""
        return self.ended_s - self.begun_s

    def parts_s(self) -> dict[str, float]:
        """Seconds by part, of the time since it began, and `own` for what is left; they add up to `duration_s`."""
        parts = {part: math.fsum(end - start for kind, start, end in self.spans if kind == part) for part in RUNNING}
        own = max(0.0, self.duration_s - math.fsum(parts.values()))
        return {**{str(part): seconds for part, seconds in parts.items()}, "own": own}

    def describe(self) -> dict[str, Any]:
        """Plain JSON types, for a row."""
        parts = {f"{part}_s": round(seconds, 4) for part, seconds in self.parts_s().items()}
        return {
            "query_id": self.query_id,
            "rollout": self.rollout,
            "mode": _word(self.mode),
            "duration_s": round(self.duration_s, 4),
            **parts,
            "replayed_turns": self.replayed_turns,
        }


class Timeline:
    """The episodes of a step. Belongs to the event loop that runs them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self.episodes: list[EpisodeTimes] = []

    def episode(self, query_id: str, rollout: int) -> EpisodeTimes:
        """A new episode, which waits for a place from now on."""
        self.episodes.append(EpisodeTimes(query_id, rollout, self.clock))
        return self.episodes[-1]

    @property
    def ended(self) -> list[EpisodeTimes]:
        """Those that came to an end, in order of their ends."""
        done = [times for times in self.episodes if times.begun_s is not None and times.ended_s is not None]
        return sorted(done, key=lambda times: times.ended_s)

    def metrics(self) -> dict[str, Any]:
        """What a row says of the step's rollouts; {} where none came to an end. Seconds, as `perf/…`.

        `makespan_s`: from the first episode's place to the last one's verdict. `wait_s`: of it, no episode was with the
        sampler and some waited for Workers; `score_s`: none waited for Workers either, and some were judged. `host_s`:
        none of these. `critical_path_s`: of the episode that ended last, from its place to its verdict, and
        `critical_path/{part}_s`, which add up to it; what is left of the makespan it waited for its place.
        `straggler_s`: how long the last 5 % of the episodes took after all others had ended. `episode_s/{mode}/p50`,
        `max`: durations. `slowest`: the slowest episode of each mode, as `EpisodeTimes.describe`. `replayed_turns`:
        turns that a journal had; what they took before is not in here, so a step that was continued looks shorter.
        """
        ended = self.ended
        if not ended:
            return {}
        start_s, last = min(times.begun_s for times in ended), ended[-1]
        by_mode = {mode: [times for times in ended if times.mode is mode] for mode in (*Mode, None)}
        by_mode = {_word(mode): members for mode, members in by_mode.items() if members}
        result: dict[str, Any] = {"makespan_s": last.ended_s - start_s}
        result |= {f"{part}_s": seconds for part, seconds in self._without_sampler(start_s, last.ended_s).items()}
        result["critical_path_s"] = last.duration_s
        result |= {f"critical_path/{part}_s": seconds for part, seconds in last.parts_s().items()}
        others = max(1, len(ended) - max(1, int(STRAGGLERS * len(ended))))
        result["straggler_s"] = last.ended_s - ended[others - 1].ended_s
        for word, members in by_mode.items():
            durations = [times.duration_s for times in members]
            result |= {f"episode_s/{word}/p50": statistics.median(durations), f"episode_s/{word}/max": max(durations)}
        result["replayed_turns"] = float(sum(times.replayed_turns for times in ended))
        result["slowest"] = [
            max(members, key=lambda times: times.duration_s).describe() for members in by_mode.values()
        ]
        return {f"perf/{name}": value for name, value in result.items()}

    def _without_sampler(self, start_s: float, end_s: float) -> dict[str, float]:
        """Seconds in which no episode was with the sampler, by what kept them: `wait`, `score`, `host`."""
        spans = [span for times in self.ended for span in times.spans]
        sampling = _merged(spans, (Part.QUEUE, Part.SAMPLE))
        waiting = _merged(spans, (Part.QUEUE, Part.SAMPLE, Part.WAIT))
        any_part = _merged(spans, RUNNING)
        wait, score = _length(waiting) - _length(sampling), _length(any_part) - _length(waiting)
        return {"wait": wait, "score": score, "host": max(0.0, end_s - start_s - _length(any_part))}


def _merged(spans: Sequence[Span], parts: Sequence[Part]) -> list[tuple[float, float]]:
    """The times at which any episode was in one of the parts, as intervals that do not touch."""
    merged: list[tuple[float, float]] = []
    for _, start, end in sorted((s for s in spans if s.part in parts), key=lambda span: span.start_s):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _length(intervals: Sequence[tuple[float, float]]) -> float:
    return math.fsum(end - start for start, end in intervals)


def _word(mode: Mode | None) -> str:
    return "none" if mode is None else mode.word
