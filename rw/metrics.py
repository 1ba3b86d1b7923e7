"""Numbers of a run: a writer (one JSON line and one TensorBoard point a step), and what finished rollouts say.

The second half is the one place that defines the metrics of trajectories, pure functions on the host; those of rewards,
advantages and log-probs are in core/diagnostics.py. V is the set of retained rollouts. A quantity with nothing to be
measured on is left out, never reported as 0. Knows no device, no model and no training loop.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import pathlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rw.errors import ConfigError, FailureCause
from rw.types import (
    CallStatus,
    Group,
    Mode,
    ScoredTrajectory,
    Segment,
    Status,
    Trajectory,
    Violation,
    WorkerCall,
)

log = logging.getLogger(__name__)

TRUNCATIONS = (str(Violation.MODE_TRUNCATED), "response_budget", "turns")
Metrics = dict[str, float]


class MetricWriter:
    """Appends one row a step to <workdir>/<name>.jsonl, flushed at once, and its numbers to <workdir>/tensorboard.

    Any other name than "metrics" has a folder of its own there: TensorBoard takes the beginning of a file of events for
    a restart of all that lies in its folder, and drops the steps after that.

    A line that a kill cut short is set aside when the file is opened, in <name>.superseded.jsonl.
    """

    def __init__(
        self,
        workdir: str | os.PathLike,
        tensorboard: bool = True,
        clock: Callable[[], float] = time.time,
        name: str = "metrics",
    ):
        """Raises ConfigError where TensorBoard is asked for and tensorboardX is not installed."""
        self.path = pathlib.Path(workdir) / f"{name}.jsonl"
        self.superseded_path = pathlib.Path(workdir) / f"{name}.superseded.jsonl"
        self._clock = clock
        self._events_type = _event_writer() if tensorboard else None
        self._events_folder = pathlib.Path(workdir, "tensorboard", *([] if name == "metrics" else [name]))
        self._events = None
        self._purge_step: int | None = None
        self._file = None
        self._open(lambda step: True)

    @property
    def last_row(self) -> Mapping[str, Any]:
        """The last row as written; {"step": -1} where there is none."""
        return self._last_row

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends a row: numbers, strings, None, lists and dicts of these; numbers that are not finite become strings.

        Raises:
            ValueError: the file already holds that step or a later one; `resume` comes first.
        """
        if step <= self._last_row["step"]:
            raise ValueError(f"step {step} follows step {self._last_row['step']} in {self.path}; call resume first")
        now = self._clock()
        row = {"step": int(step), "time_s": round(now, 3), **_plain(values)}
        self._file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()
        self._last_row = row
        if self._events_type is not None:
            self._write_events(step, values, now)

    def rows(self) -> list[dict[str, Any]]:
        """All rows as written, in order of step."""
        return [json.loads(line) for line in _lines(self.path)]

    def resume(self, step: int) -> int:
        """Sets rows beyond `step` aside, so that each step appears once in metrics.jsonl; returns their number."""
        self._purge_step = step + 1
        self._close_events()
        return self._open(lambda row_step: row_step <= step)

    def close(self) -> None:
        self._close_events()
        self._file.close()

    def __enter__(self) -> MetricWriter:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _open(self, keep: Callable[[int], bool]) -> int:
        """Opens the file for appending after setting aside what is not to be kept; returns how many lines that was.

        What is set aside is written there before it goes from here, each file by one rename: a kill in between loses
        nothing, and the next attempt does not set the same line aside twice.
        """
        if self._file is not None:
            self._file.close()
        kept, moved = [], []
        for line in _lines(self.path):
            step = _step_of(line)
            (kept if step is not None and keep(step) else moved).append(line)
        if moved:
            there = _lines(self.superseded_path)
            _replace(self.superseded_path, there + [line for line in moved if line not in there])
            log.info("%d rows of %s set aside in %s", len(moved), self.path.name, self.superseded_path.name)
        if moved or not _ends_whole(self.path):
            _replace(self.path, kept)
        self._last_row = json.loads(kept[-1]) if kept else {"step": -1}
        self._file = open(self.path, "a", encoding="utf-8", newline="\n")
        return len(moved)

    def _write_events(self, step: int, values: Mapping[str, Any], now: float) -> None:
        if self._events is None:
            # File names hold whole seconds only: without a suffix a quick restart would overwrite what is there.
            self._events = self._events_type(
                str(self._events_folder),
                purge_step=self._purge_step,
                filename_suffix=f".{time.time_ns()}",
            )
        for name, value in values.items():
            number = _plain(value)
            if isinstance(number, int | float):
                self._events.add_scalar(name, float(number), step, walltime=now)
        self._events.flush()

    def _close_events(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None


def _event_writer() -> type:
    try:
        return importlib.import_module("tensorboardX").SummaryWriter
    except ImportError as error:
        raise ConfigError("tensorboardX is not installed; install it or switch TensorBoard off") from error


def _plain(value: Any) -> Any:
    """A JSON value: arrays and array scalars as Python numbers, NaN and ±inf as strings that float() reads."""
    if hasattr(value, "tolist"):
        value = np.asarray(value).tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _lines(path: pathlib.Path) -> list[bytes]:
    """The lines of a file, the last one too where it was cut short; [] for no file."""
    return [line for line in path.read_bytes().split(b"\n") if line] if path.exists() else []


def _ends_whole(path: pathlib.Path) -> bool:
    """Whether the next line can be appended: a kill may come between a row and its line feed."""
    return not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")


def _step_of(line: bytes) -> int | None:
    """The step of a row; None for what is not a whole row."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) else None


def _replace(path: pathlib.Path, lines: Iterable[bytes]) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.writelines(line + b"\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def step_metrics(
    groups: Sequence[Group],
    retained,
    *,
    reference_cost_usd: float,
    spent_before_usd: float = 0.0,
    retry_cost: str = "accepted",
) -> Metrics:
    """Everything below, of the groups of one step.

    Args:
        retained: bool[G, K], V, in the order of `groups` and their rollouts; a smaller group is filled up.
        reference_cost_usd: C_ref.
        spent_before_usd: `cost/total` of the step before.
        retry_cost: one of types.RETRY_COSTS, what C counts.
    """
    return {
        **mode_metrics(groups),
        **length_metrics(groups),
        **invalid_metrics(groups, retained),
        **infrastructure_metrics(groups, retained),
        **worker_metrics(groups),
        **cost_metrics(groups, retained, reference_cost_usd, spent_before_usd, retry_cost),
    }


def mode_metrics(groups: Sequence[Group]) -> Metrics:
    """What was chosen and what was assigned.

    `mode/sampled_freq/{mode}`: share of the rollouts of free groups whose mode turn ended, whatever became of them
    later; `none` is those that broke the grammar there. `mode/forced_freq/{mode}`: share of forced groups.
    `mode/forced_frac`: share of groups that are forced.
    """
    free = [r.trajectory for group in groups if group.forced_mode is None for r in group.rollouts]
    chosen = [_word(t.mode) for t in free if t.mode is not None or t.status is Status.TERMINAL_INVALID]
    forced = [group.forced_mode.word for group in groups if group.forced_mode is not None]
    words = [mode.word for mode in Mode]
    result = _shares("mode/sampled_freq", chosen, [*words, "none"]) | _shares("mode/forced_freq", forced, words)
    if groups:
        result["mode/forced_frac"] = len(forced) / len(groups)
    return result


def length_metrics(groups: Sequence[Group]) -> Metrics:
    """Raw lengths of all rollouts, before any exclusion.

    `len/{router_tokens,obs_tokens,turns,calls}/{mean,p95,max}`: sampled tokens, observation tokens with their wrappers,
    router turns with the mode turn, Worker calls. `len/truncated_frac/{cause}`: share of rollouts ended by the limit of
    the mode turn (`mode_truncated`), the response budget or the number of turns.
    """
    trajectories = [rollout.trajectory for rollout in _rollouts(groups)]
    lengths = {
        "router_tokens": [_count(t, Segment.MODE, Segment.INNER) for t in trajectories],
        "obs_tokens": [_count(t, Segment.OBSERVATION) for t in trajectories],
        "turns": [t.turns for t in trajectories],
        "calls": [len(t.calls) for t in trajectories],
    }
    result: Metrics = {}
    for name, values in lengths.items():
        if values:
            result[f"len/{name}/mean"] = float(np.mean(values))
            result[f"len/{name}/p95"] = float(np.percentile(values, 95))
            result[f"len/{name}/max"] = float(np.max(values))
    causes = [t.violation or t.cause for t in trajectories]  # exhausted ones may count as invalid, without a violation
    return result | _shares("len/truncated_frac", causes, TRUNCATIONS)


def invalid_metrics(groups: Sequence[Group], retained) -> Metrics:
    """Shares of V: `invalid/{reason}` broke the grammar so, summing to `invalid/total`; `exhausted_frac` ran out."""
    members = [rollout.trajectory for rollout, keep in _with_retained(groups, retained) if keep]
    violations = [t.violation if t.status is Status.TERMINAL_INVALID else None for t in members]
    result = _shares("invalid", violations, [str(reason) for reason in Violation])
    if members:
        result["invalid/total"] = sum(t.status is Status.TERMINAL_INVALID for t in members) / len(members)
        result["exhausted_frac"] = sum(t.status is Status.EXHAUSTED for t in members) / len(members)
    return result


def infrastructure_metrics(groups: Sequence[Group], retained) -> Metrics:
    """What could not be measured; never merged with `invalid`.

    `infra/{cause}`: rollouts lost to a failure. `infra/unmeasured`: other rollouts outside V, such as those without a
    cost record. `infra/excluded_frac`: share of rollouts outside V, `infra/excluded_frac/{mode}`: of those of a mode.
    `infra/excluded_unevenly`: 1 where the shares of two modes that occur differ by more than a factor of 2, since such
    exclusions bias what is learnt about modes. `infra/groups_fully_lost`: groups with an empty V. `retries/total`:
    attempts beyond the first, over all calls.
    """
    rollouts = list(_with_retained(groups, retained))
    failed = Counter(r.trajectory.cause for r, _ in rollouts if r.trajectory.status is Status.INFRASTRUCTURE_FAILURE)
    excluded = sum(not keep for _, keep in rollouts)
    result: Metrics = {f"infra/{cause}": float(failed[cause]) for cause in FailureCause}
    result["infra/unmeasured"] = float(excluded - failed.total())
    by_mode = {mode: [not keep for r, keep in rollouts if r.trajectory.mode is mode] for mode in (*Mode, None)}
    shares = {mode: float(np.mean(flags)) for mode, flags in by_mode.items() if flags}
    result |= {f"infra/excluded_frac/{_word(mode)}": share for mode, share in shares.items()}
    declared = [share for mode, share in shares.items() if mode is not None]
    if rollouts:
        result["infra/excluded_frac"] = excluded / len(rollouts)
        result["infra/excluded_unevenly"] = float(max(declared, default=0) > 2 * min(declared, default=0))
    result["infra/groups_fully_lost"] = float(np.sum(~np.asarray(retained, bool).any(axis=-1)))
    result["retries/total"] = float(sum(max(call.attempts - 1, 0) for call in _calls(groups)))
    return result


def worker_metrics(groups: Sequence[Group]) -> Metrics:
    """Per Worker, over its accepted calls, whatever became of their rollouts.

    `worker/{id}/latency/{p50,p90,p99}`: seconds of the accepted attempt; `queue_wait/…`: seconds waited here before it.
    `calls`, `tokens_in`, `tokens_out`, `usage_missing` (calls without usage): of the step; `failed`: calls lost after
    their retries. `finish_reason/{reason}`: share of accepted calls.
    """
    result: Metrics = {}
    for worker_id in sorted({call.worker_id for call in _calls(groups)}):
        calls = [call for call in _calls(groups) if call.worker_id == worker_id]
        values = _worker_values(calls)
        result |= {f"worker/{worker_id}/{name}": value for name, value in values.items()}
    return result


def _worker_values(calls: Sequence[WorkerCall]) -> Metrics:
    accepted = [call for call in calls if call.status is CallStatus.OK]
    missing = [call for call in accepted if call.input_tokens is None or call.output_tokens is None]
    result = {
        "calls": float(len(accepted)),
        "failed": float(sum(call.status is CallStatus.FAILED for call in calls)),
        "tokens_in": float(sum(call.input_tokens or 0 for call in accepted)),
        "tokens_out": float(sum(call.output_tokens or 0 for call in accepted)),
        "usage_missing": float(len(missing)),
    }
    if accepted:
        latency, wait = [call.latency_s for call in accepted], [call.queue_wait_s for call in accepted]
        for p in (50, 90, 99):
            result[f"latency/p{p}"] = float(np.percentile(latency, p))
            result[f"queue_wait/p{p}"] = float(np.percentile(wait, p))
    reasons = [call.finish_reason or "missing" for call in accepted]
    return result | _shares("finish_reason", reasons, sorted(set(reasons)))


def cost_metrics(
    groups: Sequence[Group],
    retained,
    reference_cost_usd: float,
    spent_before_usd: float = 0.0,
    retry_cost: str = "accepted",
) -> Metrics:
    """Worker cost in USD at the frozen price table, each logical call once.

    `cost/per_step`: of all accepted calls, those of excluded rollouts too: they were paid for; `cost/total`: and of the
    steps before. `cost/unpriced_calls`: accepted calls without usage, which neither holds. `cost/per_rollout` (mean),
    `cost/p95` and `cost/p95_to_ref` = p95 / C_ref: over rollouts of any outcome, without infrastructure failures and
    incomplete records. `cost/score_mean`: mean S_cost = 1 / (1 + C / C_ref) of the correct rollouts of V.
    """
    accepted = [call for call in _calls(groups) if call.status is CallStatus.OK]
    spent = math.fsum(call.cost_usd for call in accepted if call.cost_usd is not None)
    result: Metrics = {
        "cost/per_step": spent,
        "cost/total": spent_before_usd + spent,
        "cost/unpriced_calls": float(sum(call.cost_usd is None for call in accepted)),
    }
    measured = [r.trajectory for r in _rollouts(groups) if r.trajectory.status is not Status.INFRASTRUCTURE_FAILURE]
    if costs := [cost for t in measured if (cost := t.counted_cost_usd(retry_cost)) is not None]:
        result["cost/per_rollout"] = float(np.mean(costs))
        result["cost/p95"] = float(np.percentile(costs, 95))
        result["cost/p95_to_ref"] = result["cost/p95"] / reference_cost_usd
    correct = [r.trajectory for r, keep in _with_retained(groups, retained) if keep and r.correct]
    if priced := [cost for t in correct if (cost := t.counted_cost_usd(retry_cost)) is not None]:
        result["cost/score_mean"] = float(np.mean([1 / (1 + cost / reference_cost_usd) for cost in priced]))
    return result


def _rollouts(groups: Sequence[Group]) -> Iterator[ScoredTrajectory]:
    return (rollout for group in groups for rollout in group.rollouts)


def _calls(groups: Sequence[Group]) -> Iterator[WorkerCall]:
    return (call for rollout in _rollouts(groups) for call in rollout.trajectory.calls)


def _with_retained(groups: Sequence[Group], retained) -> Iterator[tuple[ScoredTrajectory, bool]]:
    for group, flags in zip(groups, np.asarray(retained, bool), strict=True):
        yield from zip(group.rollouts, map(bool, flags), strict=False)


def _word(mode: Mode | None) -> str:
    return "none" if mode is None else mode.word


def _count(trajectory: Trajectory, *segments: Segment) -> int:
    return int(np.isin(trajectory.segments, [int(segment) for segment in segments]).sum())


def _shares(prefix: str, values: Sequence[str | None], names: Sequence[str]) -> Metrics:
    """The share of `values` that is each of `names`; {} for no values."""
    counts = Counter(values)
    return {f"{prefix}/{name}": counts[name] / len(values) for name in names} if values else {}
