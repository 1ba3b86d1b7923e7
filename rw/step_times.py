"""Where the seconds of a training step went: its phases by the clock, and what that says with the sampler's counters.

Only measures: nothing in a run depends on what is found here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from rw.rollout.timeline import Timeline


class ProgramCounter:
    """How many programs jax has made in this process since, compiled or read from where they are kept."""

    def __init__(self):
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._note)

    def _note(self, event: str, _seconds: float, **_about: Any) -> None:
        self.count += event == "/jax/core/compile/jaxpr_to_mlir_module_duration"


PROGRAMS = ProgramCounter()


class StepTimes:
    """The phases of one step, from now on, and the timeline of its episodes."""

    def __init__(self):
        self.timeline = Timeline()
        self._programs = PROGRAMS.count
        self._started_s = time.monotonic()
        self._phases: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is done inside is that phase of the step, here and in a profile."""
        start_s = time.monotonic()
        with jax.profiler.TraceAnnotation(name):
            yield
        self._phases[name] = time.monotonic() - start_s

    def metrics(self) -> dict[str, Any]:
        """`perf/{phase}_s`, `perf/step_s` from the beginning until now, what `Timeline.metrics` holds, and as
        `perf/compiled` the programs that were made meanwhile, for shapes that had not come before."""
        phases = {f"perf/{name}_s": seconds for name, seconds in self._phases.items()}
        whole = {"perf/step_s": time.monotonic() - self._started_s, "perf/compiled": PROGRAMS.count - self._programs}
        return {**phases, **whole, **self.timeline.metrics()}


def device_times(row: Mapping[str, Any]) -> dict[str, float]:
    """What a step's row says of the device, by the phases of the step and the sampler's counters.

    `perf/decode_s`, `perf/prefill_s`: seconds in which the sampler had the device, by what it did there.
    `perf/decode_idle_share`: share of the rollouts' time in which it did neither: every episode waited for a Worker or
    its verdict, the learner had the device, or the host was at work between two dispatches.
    `perf/learner_idle_share`: share of the step in which the learner had nothing to do; what it does while rollouts go
    on counts as work.
    """
    result = {f"perf/{kind}_s": row[f"sampler/{kind}_s"] for kind in ("decode", "prefill")}
    sampling = sum(result.values())
    learning = row["sampler/idle_work_s"] + row["perf/train_s"]
    if row["perf/rollout_s"]:
        result["perf/decode_idle_share"] = _idle_share(sampling, row["perf/rollout_s"])
    if row["perf/step_s"]:
        result["perf/learner_idle_share"] = _idle_share(learning, row["perf/step_s"])
    return result


def _idle_share(busy_s: float, of_s: float) -> float:
    return min(1.0, max(0.0, 1.0 - busy_s / of_s))
