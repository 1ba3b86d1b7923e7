"""Scorers in processes of their own: they may be slow, hang or be hostile, and can be stopped only from outside.

The children are fresh interpreters (see `scorer_process`), not forks: a fork of a process that holds a device's threads
may deadlock, and none of them must load jax, which would claim the accelerator a second time. Of this process's
environment they get what an interpreter needs to start, and no key.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

from rw.errors import ConfigError, FailureCause, InfrastructureFailure
from rw.rollout import scorer_process
from rw.scoring.config import ScoringConfig
from rw.scoring.program import longest_s
from rw.types import ProgramTests, Query, Verdict, VerdictKind

# What an interpreter and the programs that isolate others need; keys and tokens are in none of these.
ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
DEFAULTS = ScoringConfig()


@dataclasses.dataclass
class Tally:
    """What was scored of a data set; seconds are of the wall clock."""

    answers: int = 0
    scoring_s: float = 0.0
    longest_s: float = 0.0
    waiting_s: float = 0.0  # for a free process
    faults: int = 0  # nothing was learnt of the answer

    def metrics(self, name: str) -> dict[str, float]:
        """By name, for one step; means are over its answers."""
        return {
            f"scoring/{name}/answers": float(self.answers),
            f"scoring/{name}/mean_s": self.scoring_s / self.answers,
            f"scoring/{name}/max_s": self.longest_s,
            f"scoring/{name}/waiting_s": self.waiting_s / self.answers,
            f"scoring/{name}/faults": float(self.faults),
        }


class Scorer:
    """Scores answers with synchronous functions by data set, a few at a time, each within a time limit.

    An instance belongs to the event loop that first awaits it; `close` it, or use it `async with`.
    """

    def __init__(
        self,
        scorers: str = "rw.scoring:scorers",
        config: ScoringConfig = DEFAULTS,
        *,
        processes: int = 2,
        timeout_s: float = 60.0,
        own_limit_s: Callable[[Query], float] | None = None,
    ):
        """Starts nothing yet.

        Args:
            scorers: names a mapping from data set to scorer as `module:attribute`, or a function that makes one of a
                ScoringConfig.
            own_limit_s: how long the scorer of a query may take by its own limits; an answer that reaches them is
                wrong. Beyond them comes `timeout_s`, after which the scorer is at fault. None: that of programs, and
                nothing for texts, whose limits are well below `timeout_s`.
        """
        if scorers.count(":") != 1:
            raise ConfigError(f"scorers is {scorers!r}; it must be of the form module:attribute")
        if processes < 1:
            raise ConfigError(f"{processes} scorer processes; there must be at least 1")
        self.scorers, self.config = scorers, config
        self.timeout_s = timeout_s
        self._own_limit_s = own_limit_s or (lambda query: program_limit_s(query, config))
        self._places = asyncio.Semaphore(processes)
        self._idle: list[asyncio.subprocess.Process] = []
        self._tallies: dict[str, Tally] = collections.defaultdict(Tally)

    async def __call__(self, query: Query, answer: str) -> Verdict:
        """The verdict on an answer; the time limit does not count the wait for a free process.

        Raises:
            InfrastructureFailure: SCORER_FAULT where the scorer raises, dies or takes too long, SANDBOX_FAULT where the
                sandbox could not run the program.
        """
        verdict = await self.ask(query.dataset, query, answer)
        if verdict.kind == VerdictKind.SANDBOX_FAULT:
            self._tallies[query.dataset].faults += 1
            raise InfrastructureFailure(FailureCause.SANDBOX_FAULT, verdict.detail or "the sandbox failed")
        return verdict

    async def ask(self, key: str, query: Query, response: str) -> Any:
        """What the function served under `key` returns for a response; InfrastructureFailure(SCORER_FAULT) as above."""
        loop, tally = asyncio.get_running_loop(), self._tallies[key]
        asked_s = loop.time()
        async with self._places:
            started_s = loop.time()
            tally.answers += 1
            tally.waiting_s += started_s - asked_s
            try:
                return await self._ask_a_process(key, query, response)
            except InfrastructureFailure:
                tally.faults += 1
                raise
            finally:
                took_s = loop.time() - started_s
                tally.scoring_s += took_s
                tally.longest_s = max(tally.longest_s, took_s)

    def take_metrics(self) -> dict[str, float]:
        """What was scored since this was last asked, by data set."""
        tallies, self._tallies = self._tallies, collections.defaultdict(Tally)
        return {
            k: v for name, tally in sorted(tallies.items()) if tally.answers for k, v in tally.metrics(name).items()
        }

    async def _ask_a_process(self, key: str, query: Query, response: str) -> Any:
        limit_s = self.timeout_s + self._own_limit_s(query)
        process = self._take_idle() or await self._start()
        try:
            async with asyncio.timeout(limit_s):
                done, result = await _ask(process, (key, response, query))
        except TimeoutError:
            raise InfrastructureFailure(
                FailureCause.SCORER_FAULT, f"scorer {key} took more than {limit_s:g} s"
            ) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise InfrastructureFailure(FailureCause.SCORER_FAULT, f"the process of scorer {key} died") from None
        else:
            self._idle.append(process)
            process = None
        finally:
            if process is not None:  # busy, or in an unknown state: it must not serve another answer
                await _stop(process)
        if not done:
            raise InfrastructureFailure(FailureCause.SCORER_FAULT, f"scorer {key} raised\n{result}")
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
        kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            scorer_process.__name__,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**kept, "PYTHONPATH": search_path, "PYTHONHASHSEED": "0"},
        )
        process.stdin.write(scorer_process.frame((self.scorers, self.config)))
        return process

    async def close(self) -> None:
        """Ends the idle processes; those at work end with the calls that wait for them."""
        idle, self._idle = self._idle, []
        for process in idle:
            await _stop(process)

    async def __aenter__(self) -> Scorer:
        return self

    async def __aexit__(self, *exception) -> None:
        await self.close()


def program_limit_s(query: Query, config: ScoringConfig) -> float:
    """How long the program that a question asks for may take; 0 for other questions."""
    return longest_s(query.reference, config) if isinstance(query.reference, ProgramTests) else 0.0


async def _ask(process: asyncio.subprocess.Process, request: tuple[str, str, Query]) -> tuple[bool, Any]:
    """One request and its reply: (True, result), or (False, traceback)."""
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
