"""What became of each question of an evaluation, and the file that keeps it.

An arm is one way to answer the same questions: the trained router, the router it began as, a mode forced on it, a
scripted router. `<workdir>/evaluation/<arm>.jsonl` holds a header line and then one line a question; reports are made
from these files alone, so they can be made again at any time. Nothing here samples, calls or scores.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rw.errors import DataError, WorkdirError
from rw.typed_values import did_you_mean
from rw.types import POLICY_SEGMENTS, Group, ScoredTrajectory, Status, WorkerCall

FOLDER = "evaluation"
TRAJECTORIES = "trajectories"  # folder in it: what was said, one file an arm


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One question under one arm. What infrastructure prevented is not correct and is counted beside, by `status`."""

    query_id: str
    kind: str  # by which shares and accuracies are split: a simulated question's `metadata["type"]`, else the domain
    mode: str | None  # word of the mode; None where none was declared
    status: str  # a value of types.Status
    violation: str | None  # a value of types.Violation, where status is terminal_invalid
    cause: str | None  # what exhausted it, or which failure ended it
    correct: bool
    cost_usd: float | None  # C(τ) at the frozen prices; None where a call's usage is missing
    workers: tuple[str, ...]  # of its calls, in order
    # What follows is None, or empty, where it is not known: in files of older runs, and of arms without a rollout.
    dataset: str = ""
    domain: str = ""
    score: float | None = None  # in [0, 1], where the records of a pool grade answers; else `correct` says it
    answer: str | None = None
    verdict: str = ""  # a value of types.VerdictKind
    worker_input_tokens: int | None = None  # of all its calls
    worker_output_tokens: int | None = None
    router_input_tokens: int | None = None  # of the context, each counted once: prompt, observations, rules
    router_output_tokens: int | None = None  # sampled
    latency_s: float | None = None  # of its Workers: the slowest call of each turn, turn after turn

    @property
    def value(self) -> float:
        """What the question counts in an accuracy, in [0, 1]."""
        return float(self.correct) if self.score is None else self.score


@dataclasses.dataclass(frozen=True)
class ArmResult:
    """An arm's outcomes, in the order of the questions.

    `about` says what was evaluated, as plain JSON values: `split`, `draw_seed`, `queries`, `source`, `step` (updates
    that made the router; None for a script), `greedy`, `seed`, `config_fingerprint`, `conditions` (fingerprint of what
    decides answers and costs); of files `files` and `held_out_files` (fingerprints); of a router `router` (`path`,
    `what`, `fingerprint`) and `router_input_price`, `router_output_price` (USD per million tokens, or None).
    """

    arm: str
    about: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]


def outcome(group: Group, scored: ScoredTrajectory) -> Outcome:
    """The outcome of one rollout of a group."""
    trajectory, query = scored.trajectory, group.query
    sampled = int(np.isin(trajectory.segments, POLICY_SEGMENTS).sum())
    return Outcome(
        query_id=query.id,
        kind=str(query.metadata["type"]) if query.dataset == "simulated" else query.domain,
        mode=None if trajectory.mode is None else trajectory.mode.word,
        status=trajectory.status.value,
        violation=None if trajectory.violation is None else trajectory.violation.value,
        cause=trajectory.cause,
        correct=trajectory.status is Status.ANSWERED and scored.correct,
        cost_usd=trajectory.cost_usd,
        workers=tuple(call.worker_id for call in trajectory.calls),
        dataset=query.dataset,
        domain=query.domain,
        answer=trajectory.answer,
        verdict="" if scored.verdict is None else scored.verdict.kind,
        worker_input_tokens=_total(call.input_tokens for call in trajectory.calls),
        worker_output_tokens=_total(call.output_tokens for call in trajectory.calls),
        router_input_tokens=int(len(trajectory.tokens) - sampled),
        router_output_tokens=sampled,
        latency_s=worker_latency_s(trajectory.calls),
    )


def worker_latency_s(calls: Iterable[WorkerCall]) -> float:
    """Seconds that a rollout waited for its Workers, as far as these took them: the calls of a turn run in parallel, so
    each turn counts its slowest one. Queueing on our side is not in it."""
    slowest: dict[int | None, float] = {}
    for call in calls:
        slowest[call.turn] = max(slowest.get(call.turn, 0.0), call.latency_s)
    return sum(slowest.values())


def _total(counts: Iterable[int | None]) -> int | None:
    counts = list(counts)
    return None if None in counts else sum(counts)


def outcomes(groups: Iterable[Group]) -> tuple[Outcome, ...]:
    """The outcomes of all rollouts, in order."""
    return tuple(outcome(group, scored) for group in groups for scored in group.rollouts)


def arm_path(workdir: str | os.PathLike[str], arm: str) -> pathlib.Path:
    """Where an arm of a run is kept."""
    return pathlib.Path(workdir) / FOLDER / f"{arm}.jsonl"


def trajectories_path(workdir: str | os.PathLike[str], arm: str) -> pathlib.Path:
    """Where the trajectories of an arm are kept, one line a question, as rollout/record.py describes them."""
    return pathlib.Path(workdir) / FOLDER / TRAJECTORIES / f"{arm}.jsonl"


def write_arm(workdir: str | os.PathLike[str], result: ArmResult) -> pathlib.Path:
    """Writes an arm's file whole or not at all, and returns it; an older one is replaced."""
    path = arm_path(workdir, result.arm)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".jsonl.part")
    lines = [{"arm": result.arm, **result.about}, *map(dataclasses.asdict, result.outcomes)]
    # An answer may hold half a surrogate pair, which UTF-8 lacks; as a backslash escape it is still the same JSON.
    with open(aside, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    return path


def read_arm(path: str | os.PathLike[str]) -> ArmResult:
    """The arm that a file holds; DataError, naming file and line, where it does not hold one."""
    path = pathlib.Path(path)
    number = 0
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        about = json.loads(lines[0])
        results = []
        for number, line in enumerate(lines[1:], start=1):  # noqa: B007, the error below names it
            if line:
                results.append(_outcome(json.loads(line)))
        if len(results) != about.get("queries", len(results)):
            raise ValueError(f"{len(results)} of {about['queries']} questions are there")
        return ArmResult(about.pop("arm"), about, tuple(results))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} line {number + 1}: not an evaluation ({type(error).__name__}: {error}); the command that made it "
            "answers again what cannot be read, or remove the file"
        ) from error


def readable_part(path: str | os.PathLike[str]) -> ArmResult | None:
    """What of an arm's damaged file is whole: its header and the lines that are outcomes, the first of each question;
    None where there is no header."""
    unreadable = (OSError, ValueError, KeyError, TypeError, AttributeError)
    try:
        header, *lines = pathlib.Path(path).read_bytes().split(b"\n")
        about = json.loads(header)
        arm = about.pop("arm")
    except unreadable:
        return None
    found: dict[str, Outcome] = {}
    for line in lines:
        with contextlib.suppress(*unreadable):
            outcome = _outcome(json.loads(line))
            found.setdefault(outcome.query_id, outcome)
    return ArmResult(arm, about, tuple(found.values()))


_NUMBERS = ("cost_usd", "score", "latency_s")  # may be written without a point
_TYPES = {
    name: hint | int if name in _NUMBERS else hint
    for name, hint in typing.get_type_hints(Outcome).items()
    if name != "workers"
}


def _outcome(record: Mapping[str, Any]) -> Outcome:
    """The outcome of a line; ValueError or TypeError where it holds what none can."""
    if not isinstance(record["workers"], list) or not all(isinstance(worker, str) for worker in record["workers"]):
        raise TypeError(f"workers {record['workers']!r} is no list of names")
    found = Outcome(**{**record, "workers": tuple(record["workers"])})
    for name, types in _TYPES.items():
        if not isinstance(getattr(found, name), types):
            raise TypeError(f"{name} {getattr(found, name)!r} is of another type than {types}")
    if found.score is not None and not 0 <= found.score <= 1:
        raise ValueError(f"score {found.score} is not in [0, 1]")
    for name in ("cost_usd", "latency_s"):
        value = getattr(found, name)
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{name} {value} is no number")
    Status(found.status)
    return found


def read_arms(workdir: str | os.PathLike[str]) -> dict[str, ArmResult]:
    """All arms of a run by name, in order of name; empty where nothing was evaluated.

    Raises:
        DataError: an arm's file is damaged, or two files hold one arm.
    """
    results: dict[str, ArmResult] = {}
    for path in sorted((pathlib.Path(workdir) / FOLDER).glob("*.jsonl")):
        result = read_arm(path)
        if result.arm in results:
            raise DataError(f"{path} holds arm {result.arm!r}, as another file beside it does: remove one of them")
        results[result.arm] = result
    return results


def named_arms(reference: str) -> tuple[pathlib.Path, dict[str, ArmResult]]:
    """(directory, its arms by name) of `WORKDIR`, which names all of them, or `WORKDIR:ARM`.

    Raises:
        WorkdirError: none is there.
        DataError: an arm's file is damaged.
    """
    folder, _, arm = reference.rpartition(":") if not pathlib.Path(reference).is_dir() else ("", "", "")
    if folder and arm:
        path = arm_path(folder, arm)
        if not path.is_file():
            hint = did_you_mean(arm, [other.stem for other in path.parent.glob("*.jsonl")])
            raise WorkdirError(f"no arm {arm!r} in {folder!r}: {path} is not there{hint}")
        return pathlib.Path(folder), {arm: read_arm(path)}
    if not (found := read_arms(reference)):
        raise WorkdirError(
            f"no arm to compare with in {reference!r}: give a directory of an evaluation, or WORKDIR:ARM"
        )
    return pathlib.Path(reference), found
