"""Runs the points of a sweep on this machine: so many processes at a time, one a point, each with a log of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from rw import progress
from rw.errors import ConfigError
from rw.evaluation.sweep_results import FAILED, FINISHED
from rw.sweeps.plan import SweepPoint
from rw.sweeps.state import LOG, end_words, forget_outcome, is_locked, last_words, result_of, write_outcome
from rw.typed_values import one_line

Command = Callable[[SweepPoint], list[str]]  # what runs a point
GRACE_S = 30.0  # a run is through 15 s after a SIGTERM at the latest, and Python takes its time to end
POLL_S = 1.0
NOT_RUN = 71  # exit code noted for a run that has none: EX_OSERR of sysexits.h
FIRST_LOOK_S = 5.0  # a run that was stopped with the sweep before needs a moment to go


def train_command(point: SweepPoint) -> list[str]:
    """`rw train` of a point, which ends when this process does."""
    return [sys.executable, "-m", "rw.sweeps.child", str(os.getpid()), *point.arguments]


def named_gpus(text: str, devices: str = "/dev") -> tuple[str, ...]:
    """The numbers in `0,1,2`; says which of them this machine does not show.

    Raises:
        ConfigError: a word that is no number.
    """
    gpus = tuple(filter(None, (word.strip() for word in text.split(","))))
    if odd := [word for word in gpus if not (word.isascii() and word.isdecimal())]:
        raise ConfigError(f"--gpus {text}: {odd[0]!r} is no number of a GPU, which count from 0, as in --gpus 0,1")
    seen = len([path for path in pathlib.Path(devices).glob("nvidia*") if path.name[len("nvidia") :].isdecimal()])
    if unseen := [word for word in gpus if int(word) >= seen]:
        progress.say(
            f"warning: --gpus {text}: this machine shows {seen} NVIDIA GPUs; a run that is given "
            f"{', '.join(unseen)} finds no such one, and computes on the CPU or fails"
        )
    return gpus


def places_of(processes: int, gpus: Sequence[str] = ()) -> list[dict[str, str]]:
    """What each of so many runs at a time adds to its environment: its own share of the GPUs, where some are named.

    Raises:
        ConfigError: a number of GPUs that cannot be divided among them.
    """
    if not gpus:
        return [{} for _ in range(processes)]
    share, rest = divmod(len(gpus), processes)
    if rest or not share:
        raise ConfigError(
            f"--gpus {','.join(gpus)}: {len(gpus)} cannot be divided evenly among --processes {processes}"
        )
    return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[k * share : (k + 1) * share])} for k in range(processes)]


class LocalRuns:
    """The runs of a sweep's points on this machine."""

    def __init__(
        self, points: Sequence[SweepPoint], places: Sequence[Mapping[str, str]], command: Command = train_command
    ):
        """`points`: those to run, as many at a time as there are places; each place is what it adds to the environment
        of its runs (`places_of`)."""
        self.points, self.command = points, command
        self._places: asyncio.Queue[Mapping[str, str]] = asyncio.Queue()
        for place in places:
            self._places.put_nowait(place)
        self._running: dict[str, SweepPoint] = {}
        self._ended = self._failed = 0

    async def run(self) -> None:
        """Waits until every point has ended, whatever became of it. When cancelled, stops all and waits for that."""
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch())
            runs = [group.create_task(self._in_turn(point)) for point in self.points]
            if runs:
                await asyncio.wait(runs)
            watching.cancel()

    async def _in_turn(self, point: SweepPoint) -> None:
        place = await self._places.get()
        try:
            await self._free(point)
            self._running[point.name] = point
            progress.say(f"{point.name}: begins; {point.workdir / LOG} has what it says")
            try:
                code, words = await self._try(point, place)
            finally:
                del self._running[point.name]
        finally:
            self._places.put_nowait(place)
        self._say_end(point, code, words)

    async def _free(self, point: SweepPoint) -> None:
        """Waits until no process works in the point's directory: one that the sweep before left may still be ending."""
        began, said = time.monotonic(), False
        while await asyncio.to_thread(is_locked, point.workdir):
            if not said and time.monotonic() - began >= FIRST_LOOK_S:
                said = True
                progress.say(f"{point.name}: another process works in {point.workdir}; waiting for its end")
            await asyncio.sleep(POLL_S)

    async def _try(self, point: SweepPoint, place: Mapping[str, str]) -> tuple[int, str]:
        """(exit code, last words) of the point's run; one that this machine cannot start is a failure of that point."""
        try:
            return await self._run(point, place)
        except (OSError, ValueError) as error:  # no memory, no room, arguments that no process can be given
            code, words = NOT_RUN, f"cannot run it: {one_line(error)}"
            with contextlib.suppress(OSError):  # the directory itself may be what is wrong
                write_outcome(point.workdir, code, words)
            return code, words

    async def _run(self, point: SweepPoint, place: Mapping[str, str]) -> tuple[int, str]:
        point.workdir.mkdir(parents=True, exist_ok=True)
        forget_outcome(point.workdir)
        path = point.workdir / LOG
        with open(path, "ab") as log:
            since = log.tell()
            process = await asyncio.create_subprocess_exec(
                *self.command(point),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, **place},
                start_new_session=True,  # Ctrl-C is for the sweep, which stops its runs itself
            )
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                await asyncio.shield(_stopped(process))
            words = last_words(path, since)
            write_outcome(point.workdir, process.returncode, words if process.returncode else "")
        return code, words

    def _say_end(self, point: SweepPoint, code: int, words: str) -> None:
        result = result_of(point)
        self._ended += 1
        self._failed += result.status == FAILED
        if result.status == FINISHED:
            found = result.measured
            right = "" if found is None or found.accuracy is None else f", {100 * found.accuracy.mean:.1f} % right"
            progress.say(f"[{self._ended}/{len(self.points)}] {point.name}: finished{right}")
        else:
            log = point.workdir / LOG
            progress.say(f"[{self._ended}/{len(self.points)}] {point.name}: {end_words(code, words)} ({log})")

    async def _watch(self) -> None:
        """Says now and then how far everything is."""
        while True:
            await asyncio.sleep(progress.LINE_EVERY_S)
            progress.say(await asyncio.to_thread(self._line))

    def _line(self) -> str:
        running = [f"{r.name} {r.steps}/{r.total_steps}" for r in map(result_of, list(self._running.values()))]
        failed = f", {self._failed} of them failed" if self._failed else ""
        return f"{self._ended} of {len(self.points)} ended{failed}; running, by step: {', '.join(running) or 'none'}"


async def _stopped(process: asyncio.subprocess.Process) -> None:
    """Ends a run in order, and with all its children where it does not."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), GRACE_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
