"""How a command's body runs: with the parts of a run in a working directory, until it is done or told to stop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable

from rw import progress
from rw.agreement import check_same_config, check_same_workdir
from rw.errors import StopFileError
from rw.interrupts import STOP_FILE, Interrupts, StopRequested, run_in_loop
from rw.parts import Parts, open_parts
from rw.processes import Processes
from rw.run_config import RunConfig
from rw.workdir import Workdir

GRACE_S = 15.0  # from SIGTERM to the end at the latest: most schedulers kill after 30 s


def run_interruptible(
    config: RunConfig,
    workdir_path: str,
    body: Callable[[Parts], Awaitable[None]],
    after_stop: str,
    processes: Processes,
    trains: bool = True,
) -> int:
    """Runs `body` with the parts of a run in a working directory of its own; returns the exit code.

    SIGTERM, SIGINT and a file STOP in the directory end it in order, with a line that says `after_stop` and an exit
    code: what shells give a signal, or 7. Where it is not through GRACE_S after a SIGTERM it ends all the same. It can
    be called in a notebook too, whose stop button is a SIGINT.
    """

    async def run(workdir: Workdir, interrupts: Interrupts) -> int:
        processes.watch(interrupts.ask_with, lambda: interrupts.asked)
        # The first process keeps what the others learn of one another: it goes last.
        interrupts.grace_s = GRACE_S if processes.is_alone or not processes.is_first else GRACE_S + 3
        try:
            await check_same_config(config, processes)
            await check_same_workdir(workdir, processes)
            async with open_parts(config, workdir, processes, interrupts, trains) as parts:
                watching = asyncio.create_task(interrupts.watch(workdir.file(STOP_FILE)))
                try:
                    await body(parts)
                finally:
                    watching.cancel()
        except StopRequested as stop:
            progress.say(f"{stop}; {after_stop}")
            processes.exit_code = stop.exit_code
        else:
            processes.exit_code = 0
        return processes.exit_code

    if not processes.is_first:
        progress.say(f"process {processes.index} of {processes.count}: process 0 says how the run goes")
        progress.be_quiet()
    with Workdir(workdir_path, processes.index) as workdir:
        if (path := workdir.file(STOP_FILE)).exists():
            raise StopFileError(
                f"{path} is there: it was put there to stop the run; remove it and give the same command again"
            )
        return run_in_loop(functools.partial(run, workdir))
