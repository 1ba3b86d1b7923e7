"""Profiles of chosen training steps: `rw train --profile 3,5-7` writes a trace of each, for TensorBoard or Perfetto.

A trace holds the phases of the step, what the device thread was given, and every operation by the scope of the model,
sampler or loss that it comes from. It changes nothing of what is sampled or learnt; the step takes longer.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import re
from collections.abc import AsyncIterator, Collection

import jax

from rw import progress
from rw.errors import ConfigError
from rw.sampler.device import DeviceThread

FLAG = "--profile"
FOLDER = "profile"


def add_flag(parser: argparse.ArgumentParser) -> None:
    """`--profile STEPS`."""
    parser.add_argument(FLAG, metavar="STEPS", default="", help="steps to trace, e.g. 3,5-7; into WORKDIR/profile")


def named_steps(text: str) -> frozenset[int]:
    """The steps that a text such as `3,5-7` names; none for an empty one. Raises ConfigError for another text."""
    steps: set[int] = set()
    for part in list(filter(None, text.split(","))) or filter(None, [text]):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last <= first + 99:
            raise ConfigError(
                f"{FLAG} {text}: {part!r} is neither a step, from 1 on, nor a range of at most 100, first-last; name "
                f"steps as in {FLAG} 3,5-7"
            )
        steps.update(range(first, last + 1))
    return frozenset(steps)


def check_steps(steps: Collection[int], last: int, done: int = 0, traced: Collection[int] = ()) -> None:
    """Raises ConfigError where a step was taken before and not traced, or comes after the last one."""
    over = [step for step in sorted(steps) if step <= done and step not in traced]
    beyond = [step for step in sorted(steps) if step > last]
    if over or beyond:
        what = f"step {over[0]} is over" if over else f"step {beyond[0]} comes after the last one (config.steps)"
        left = f"{FLAG} can name steps {done + 1} to {last}" if done < last else "no step is left to trace"
        raise ConfigError(f"{FLAG}: {what}; {left}")


class Profile:
    """Traces of some steps of a run, each in a folder of its own under `folder`."""

    def __init__(self, steps: Collection[int], folder: pathlib.Path, device: DeviceThread):
        self._steps, self._folder, self._device = frozenset(steps), folder, device

    def check(self, done: int, last: int) -> None:
        """Raises ConfigError where a step was taken, and not traced, before or comes after the last one.

        One that was traced is no error: the same command continues a run.
        """
        check_steps(self._steps, last, done, [step for step in self._steps if self._path(step).is_dir()])

    @contextlib.asynccontextmanager
    async def of(self, step: int) -> AsyncIterator[None]:
        """Traces what is done inside, if that step is to be; a trace that fails is said and costs the step nothing."""
        if step not in self._steps:
            yield
            return
        started = await self._try(step, self._start, step)
        try:
            yield
        finally:
            if started and await self._try(step, jax.profiler.stop_trace):
                progress.say(
                    f"step {step}: profile in {self._path(step)}; `tensorboard --logdir {self._folder}` (with the "
                    "package xprof) shows it, and ui.perfetto.dev its .trace.json.gz, up to a million events"
                )

    def _path(self, step: int) -> pathlib.Path:
        return self._folder / f"step_{step:06d}"

    def _start(self, step: int) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # every call of every Python function would hide all else
        jax.profiler.start_trace(self._path(step), profiler_options=options)

    async def _try(self, step: int, function, *args) -> bool:
        """On the device thread, so that the event loop goes on while a trace is written."""
        try:
            await self._device.run(function, *args)
        except Exception as error:  # whatever a profiler may raise, the step is worth more
            progress.say(f"step {step}: no profile ({type(error).__name__}: {error})")
            return False
        return True
