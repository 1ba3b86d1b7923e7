"""Scorers in processes of their own: they may be slow, hang or be hostile, and can be stopped only from outside.

The children are fresh interpreters (see `scorer_process`), not forks: a fork of a process that holds a device's threads
may deadlock, and none of them must load jax, which would claim the accelerator a second time.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys

from rw.errors import ConfigError, FailureCause, InfrastructureFailure
from rw.rollout import scorer_process
from rw.types import Query, Verdict


class Scorer:
    """Scores answers with the synchronous functions of a `SCORERS` mapping, a few at a time, each within a time limit.

    An instance belongs to the event loop that first awaits it; `close` it, or use it `async with`.
    """

    def __init__(self, scorers: str = "rw.scoring:SCORERS", processes: int = 2, timeout_s: float = 60.0):
        """`scorers` names a mapping from dataset to scorer as `module:attribute`."""
        if scorers.count(":") != 1:
            raise ConfigError(f"scorers is {scorers!r}; it must be of the form module:attribute")
        if processes < 1:
            raise ConfigError(f"{processes} scorer processes; there must be at least 1")
        self.scorers = scorers
        self.timeout_s = timeout_s
        self._places = asyncio.Semaphore(processes)
        self._idle: list[asyncio.subprocess.Process] = []

    async def __call__(self, query: Query, answer: str) -> Verdict:
        """The verdict on an answer; the time limit does not count the wait for a free process.

        Raises InfrastructureFailure(SCORER_FAULT) where the scorer raises, dies or takes too long.
        """
        async with self._places:
            process = self._take_idle() or await self._start()
            try:
                async with asyncio.timeout(self.timeout_s):
                    done, result = await _ask(process, (query.dataset, answer, query))
            except TimeoutError:
                raise InfrastructureFailure(
                    FailureCause.SCORER_FAULT, f"scorer {query.dataset} took more than {self.timeout_s:g} s"
                ) from None
            except (asyncio.IncompleteReadError, ConnectionError):
                raise InfrastructureFailure(
                    FailureCause.SCORER_FAULT, f"the process of scorer {query.dataset} died"
                ) from None
            else:
                self._idle.append(process)
                process = None
            finally:
                if process is not None:  # busy, or in an unknown state: it must not serve another answer
                    await _stop(process)
        if not done:
            raise InfrastructureFailure(FailureCause.SCORER_FAULT, f"scorer {query.dataset} raised\n{result}")
        return result

    def _take_idle(self) -> asyncio.subprocess.Process | None:
        """An idle process that still lives, if any: what ended one while it waited is no fault of the next answer."""
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
            process.stdin.close()
        return None

    async def _start(self) -> asyncio.subprocess.Process:
        search_path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            scorer_process.__name__,
            self.scorers,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": search_path},
        )

    async def close(self) -> None:
        """Ends the idle processes; those at work end with the calls that wait for them."""
        idle, self._idle = self._idle, []
        for process in idle:
            await _stop(process)

    async def __aenter__(self) -> Scorer:
        return self

    async def __aexit__(self, *exception) -> None:
        await self.close()


async def _ask(process: asyncio.subprocess.Process, request: tuple[str, str, Query]) -> tuple[bool, Verdict | str]:
    """One request and its reply: (True, verdict), or (False, traceback)."""
    process.stdin.write(scorer_process.frame(request))
    await process.stdin.drain()
    size = await process.stdout.readexactly(scorer_process.HEADER.size)
    body = await process.stdout.readexactly(*scorer_process.HEADER.unpack(size))
    return pickle.loads(body)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        try:
            process.kill()
        except ProcessLookupError:  # it has just ended by itself
            pass
    process.stdin.close()
    await process.wait()
