"""Trajectories as JSON a person can read, one line each, from which a notebook can rebuild them exactly."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import lzma
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rw.errors import DataError
from rw.protocol.chat import TokenCodec
from rw.types import (
    POLICY_SEGMENTS,
    Group,
    Mode,
    ProgramTests,
    Query,
    ScoredTrajectory,
    Segment,
    Status,
    Trajectory,
    Verdict,
    Violation,
)
from rw.workers.call_record import describe_call, load_call


def describe(
    scored: ScoredTrajectory,
    query: Query,
    codec: TokenCodec,
    *,
    step: int,
    rewards: Mapping[str, float] | None = None,
    with_arrays: bool = True,
) -> dict[str, Any]:
    """One trajectory as plain JSON types; what was not measured is None.

    `rewards` are shown as given, NaN as None. `with_arrays` adds the token ids, the segments as runs of (code, length)
    and the log-probs of the policy tokens alone (all others are 0): what `load_trajectory` needs.
    """
    trajectory, verdict = scored.trajectory, scored.verdict
    record = {
        "step": step,
        "query_id": query.id,
        "dataset": query.dataset,
        "domain": query.domain,
        "rollout": trajectory.rollout_index,
        "question": query.prompt,
        "mode": None if trajectory.mode is None else trajectory.mode.word,
        "forced": trajectory.forced,
        "status": trajectory.status.value,
        "violation": None if trajectory.violation is None else trajectory.violation.value,
        "cause": trajectory.cause,
        "turns": [
            {"segment": Segment(code).name.lower(), "text": codec.decode(trajectory.tokens[start:end])}
            for code, start, end in segment_runs(trajectory.segments)
        ],
        "answer": trajectory.answer,
        "reference": _described_reference(query.reference),
        "metadata": dict(query.metadata),
        "correct": None if verdict is None else verdict.correct,
        "verdict": None if verdict is None else dataclasses.asdict(verdict),
        "rewards": None if rewards is None else {name: _measured(reward) for name, reward in rewards.items()},
        "cost_usd": trajectory.cost_usd,
        "calls": [describe_call(call) for call in trajectory.calls],
        "policy_version": trajectory.policy_version,
        "router_turns": trajectory.turns,
        "prompt_length": trajectory.prompt_length,
    }
    if with_arrays:
        is_policy = np.isin(trajectory.segments, POLICY_SEGMENTS)
        record["arrays"] = {
            "tokens": trajectory.tokens.tolist(),
            "segments": [[code, end - start] for code, start, end in segment_runs(trajectory.segments)],
            # A float32 is exact as a Python float, and a Python float is exact as JSON writes it.
            "logprobs": trajectory.sampled_logprobs[is_policy].tolist(),
        }
    return record


def _described_reference(reference: Any) -> Any:
    """A reference as the records show it. Tests are named by count and digest: each rollout of a group would repeat
    them, at up to 256 KB."""
    if not isinstance(reference, ProgramTests):
        return reference
    fields = json.dumps(vars(reference), sort_keys=True)
    return {
        "kind": reference.kind,
        "tests": len(reference.inputs),
        "public": reference.public,
        "function": reference.function,
        "sha256": hashlib.sha256(fields.encode("utf-8", "surrogatepass")).hexdigest(),
    }


def _measured(number: float) -> float | None:
    """JSON has no NaN: a correct rollout without a cost record has no efficiency."""
    return None if math.isnan(number) else float(number)


def segment_runs(segments: np.ndarray) -> list[tuple[int, int, int]]:
    """Runs of equal segments as (code, start, end), u8[T] in."""
    ends = [*(np.flatnonzero(np.diff(segments)) + 1).tolist(), len(segments)]
    return [(int(segments[start]), start, end) for start, end in itertools.pairwise([0, *ends]) if end > start]


def load_trajectory(record: Mapping[str, Any]) -> ScoredTrajectory:
    """The trajectory and verdict that `describe` was given, bit for bit; the record must hold its arrays."""
    if "arrays" not in record:
        raise DataError(f"the record of rollout {record['rollout']} of {record['query_id']} holds no arrays")
    arrays = record["arrays"]
    runs = [np.full(length, code, np.uint8) for code, length in arrays["segments"]]
    segments = np.concatenate([np.zeros(0, np.uint8), *runs])
    logprobs = np.zeros(len(segments), np.float32)
    logprobs[np.isin(segments, POLICY_SEGMENTS)] = arrays["logprobs"]
    trajectory = Trajectory(
        query_id=record["query_id"],
        rollout_index=record["rollout"],
        mode=None if record["mode"] is None else Mode[record["mode"].upper()],
        forced=record["forced"],
        tokens=np.array(arrays["tokens"], np.int32),
        segments=segments,
        sampled_logprobs=logprobs,
        prompt_length=record["prompt_length"],
        calls=tuple(load_call(call) for call in record["calls"]),
        answer=record["answer"],
        status=Status(record["status"]),
        violation=None if record["violation"] is None else Violation(record["violation"]),
        cause=record["cause"],
        policy_version=record["policy_version"],
        turns=record["router_turns"],
    )
    return ScoredTrajectory(trajectory, None if record["verdict"] is None else Verdict(**record["verdict"]))


def read_groups(path: str | os.PathLike) -> list[Group]:
    """The groups of a file that `TrajectoryWriter` wrote, in its order; under xz where the name ends so.

    The reference of a question that asks for a program is what the record says of its tests, not the tests.

    Raises:
        DataError: it cannot be read, or a record lacks what is needed, its arrays perhaps; names the line.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
        text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8")
    except (OSError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise DataError(f"trajectories {path} cannot be read: {error}") from error
    rollouts: dict[str, list[ScoredTrajectory]] = {}  # a batch holds a query once
    queries: dict[str, Query] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):  # texts may hold other separators
        try:
            record = json.loads(line)
            scored = load_trajectory(record)
            query = _load_query(record)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, DataError) as error:
            reason = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
            raise DataError(f"trajectories {path}, line {number}, are not those of a run: {reason}") from error
        queries[query.id] = query
        rollouts.setdefault(query.id, []).append(scored)
    return [
        Group(
            index,
            queries[query_id],
            members[0].trajectory.mode if members[0].trajectory.forced else None,
            tuple(members),
        )
        for index, (query_id, members) in enumerate(rollouts.items())
    ]


def _load_query(record: Mapping[str, Any]) -> Query:
    reference = record["reference"]
    return Query(
        id=record["query_id"],
        dataset=record["dataset"],
        domain=record["domain"],
        prompt=record["question"],
        reference=tuple(reference) if isinstance(reference, list) else reference,
        metadata=record.get("metadata", {}),
    )


def write_trajectories(
    path: str | os.PathLike,
    groups: Sequence[Group],
    codec: TokenCodec,
    *,
    step: int,
    rewards: np.ndarray | None = None,
    with_arrays: bool = True,
) -> None:
    """Writes one line a rollout, group by group, whole or not at all; what was there under that name is replaced.

    `rewards` is f32[G, K, 2], (task, efficiency) in the order of `groups`; an infrastructure failure has none.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".jsonl.part")
    # A Worker may send half a surrogate pair, which UTF-8 lacks; as a backslash escape it is still the same JSON.
    with open(aside, "w", encoding="utf-8", errors="backslashreplace") as file:
        for place, group in enumerate(groups):
            for k, scored in enumerate(group.rollouts):
                shown = None
                if rewards is not None and scored.trajectory.status is not Status.INFRASTRUCTURE_FAILURE:
                    shown = dict(zip(("task", "efficiency"), rewards[place, k].tolist(), strict=True))
                record = describe(scored, group.query, codec, step=step, rewards=shown, with_arrays=with_arrays)
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


class TrajectoryWriter:
    """Writes the trajectories of each step to `<workdir>/trajectories/step_000012.jsonl`."""

    def __init__(self, workdir: str | os.PathLike, codec: TokenCodec, with_arrays: bool = True):
        self.folder = Path(workdir) / "trajectories"
        self.codec = codec
        self.with_arrays = with_arrays

    def resume(self, step: int) -> int:
        """Sets the files of steps beyond `step` aside, in `superseded/`, since those steps are run again; their number.

        A file that lies there already under that name is replaced.
        """
        by_step = {path.stem.removeprefix("step_"): path for path in self.folder.glob("step_*.jsonl")}
        later = [path for number, path in by_step.items() if number.isdecimal() and int(number) > step]
        for path in later:
            aside = self.folder / "superseded" / path.name
            aside.parent.mkdir(exist_ok=True)
            os.replace(path, aside)
        return len(later)

    def write(self, step: int, groups: Sequence[Group], rewards: np.ndarray | None = None) -> Path:
        """Writes one line a rollout, group by group, and returns the file; a file of that step is replaced.

        `rewards` is f32[G, K, 2], (task, efficiency) in the order of `groups`; an infrastructure failure has none. The
        file appears whole or not at all: it is written aside and renamed.
        """
        path = self.folder / f"step_{step:06d}.jsonl"
        write_trajectories(path, groups, self.codec, step=step, rewards=rewards, with_arrays=self.with_arrays)
        return path
