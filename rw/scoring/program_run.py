"""One program in one sandbox: hands it over, runs tests in it within limits, and says how each of them ended.

Knows no expected outputs. How a program may end, in this order: `output` and `memory` where it passed those limits;
`time` where it used up its CPU time or the wall clock; `crash` where a signal, an exception or an exit status other
than 0 ended it, whatever it had written before; else it ended well, and what it wrote may be compared.
"""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from typing import Any

from rw.scoring.config import ScoringConfig
from rw.scoring.sandbox_frames import unframed
from rw.scoring.sandbox_pool import pool
from rw.scoring.sandbox_process import SandboxEnded, SandboxFault, SandboxGarbled, SandboxLate
from rw.scoring.sandbox_tiers import process_limit
from rw.types import VerdictKind

OUTPUT_BYTES = 16 << 20  # of one test, all that it writes together
_FILE_BYTES = 32 << 20  # of each file
_MORE_BYTES = 1 << 18  # beyond them what was read in one piece, and standard error
_MANY_TESTS = 20  # CPU time of a whole program is that of so many tests at most


def case_wall_s(config: ScoringConfig) -> float:
    """Wall clock of one test in s: loose, so that a busy machine does not decide; who sleeps ends too."""
    return 5 * config.test_s + 10


def program_cpu_s(tests: int, config: ScoringConfig) -> float:
    """CPU time in s of all tests of a program together."""
    return min(tests, _MANY_TESTS) * config.test_s


def program_wall_s(tests: int, config: ScoringConfig) -> float:
    """Wall clock of all tests of a program together in s."""
    return 2 * program_cpu_s(tests, config) + case_wall_s(config)


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a test ended, and what came out of it."""

    kind: VerdictKind | None  # None: it ended well
    detail: str = ""
    output: bytes = b""
    error: str = ""  # the last of what it wrote to standard error
    report: dict[str, Any] = dataclasses.field(default_factory=dict)
    value: bytes = b""  # that came with the report


class SandboxLost(Exception):
    """The sandbox ended while it held the program, though nothing inside should be able to end it."""


class ProgramRun:
    """A sandbox with a program in it, for its tests one after another. Use it `with`.

    Everything raises SandboxFault where the sandbox fails before it holds the program, SandboxLost where it does later.
    """

    def __init__(
        self, tier: str, program: str, setup: str, prelude: bool, tests: int, config: ScoringConfig, end: float
    ):
        """Hands the program over.

        Args:
            tier: name of the sandbox's.
            setup: source that runs before the program, in its namespace.
            prelude: whether names of the standard library that judges give to programs are there without an import.
            tests: how many tests the program has to pass.
            end: when the last of them must have ended, on the monotonic clock.
        """
        self._config = config
        self._cpu_left = program_cpu_s(tests, config)
        self._end = self._test_end = end
        self._pool = pool(tier)
        self._sandbox = self._pool.take()
        header = {"do": "program", "setup": setup, "prelude": prelude}
        try:
            self._sandbox.send(header, program.encode("utf-8", "surrogatepass"), self._end)
            self._sandbox.receive(self._end, 0)
        except BaseException as trouble:
            self._sandbox.end()
            if isinstance(trouble, (SandboxEnded, SandboxGarbled, SandboxLate)):
                raise SandboxFault(f"{tier} takes no program") from None
            raise

    def __enter__(self) -> ProgramRun:
        return self

    def __exit__(self, *exception) -> None:
        self._sandbox.end()
        self._pool.refill()

    def test(self, header: dict[str, Any], payload: bytes) -> Ending:
        """Runs one test to its end."""
        self.begin(header, payload)
        return self.next_message()

    def begin(self, header: dict[str, Any], payload: bytes) -> None:
        """Starts a test, whose messages or end `next_message` awaits."""
        limits = {
            "cpu_s": math.ceil(self._config.test_s),
            "memory": self._config.memory_mib << 20,
            "file_bytes": _FILE_BYTES,
            "processes": process_limit(self._sandbox.tier),
            "output_bytes": OUTPUT_BYTES,
        }
        self._test_end = min(self._end, time.monotonic() + case_wall_s(self._config))
        self.send(header | limits, payload)

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Sends a message to a test that has begun, which may be too late: then `next_message` says how it ended."""
        try:
            self._sandbox.send(header, payload, self._test_end)
        except (SandboxEnded, SandboxLate):
            return

    def next_message(self) -> Ending | tuple[dict[str, Any], bytes]:
        """What the test says next; how it ended, where it has."""
        try:
            header, payload = self._sandbox.receive(self._test_end, OUTPUT_BYTES + _MORE_BYTES)
            return self._ending(header, payload) if header.get("ended") is True else (header, payload)
        except SandboxEnded:
            raise SandboxLost(f"{self._sandbox.tier} ended during a test") from None
        except SandboxLate:
            return Ending(VerdictKind.TIME, "no end within the wall clock")
        except (SandboxGarbled, ArithmeticError, LookupError, TypeError, ValueError):  # in a session it can write there
            return Ending(VerdictKind.CRASH, "it wrote where it must not")

    def _ending(self, header: dict[str, Any], payload: bytes) -> Ending:
        output_end, error_end = (sum(map(int, header["sizes"][:many])) for many in (1, 2))
        output, error = payload[:output_end], payload[output_end:error_end].decode(errors="replace")
        report, value = unframed(payload[error_end:])
        cpu_s, status = float(header["cpu_s"]), int(header["status"])
        self._cpu_left -= cpu_s
        failed = bool(status) or "error" in report
        words = str(report.get("error", "")) or (error.strip().splitlines() or [""])[-1][:500]

        def ending(kind: VerdictKind | None, detail: str = "") -> Ending:
            return Ending(kind, detail, output, error, report, value)

        if header["stopped"] == "output":
            return ending(VerdictKind.OUTPUT, f"more than {OUTPUT_BYTES} bytes of output, or far too many files")
        if header["stopped"] == "memory" or (failed and words.startswith("MemoryError")):
            return ending(VerdictKind.MEMORY, f"more than {self._config.memory_mib} MiB of memory")
        if header["signal"] == signal.SIGXCPU or cpu_s >= math.ceil(self._config.test_s):
            return ending(VerdictKind.TIME, f"no end within {math.ceil(self._config.test_s)} s of CPU time")
        if self._cpu_left <= 0:
            return ending(VerdictKind.TIME, "the tests together took too much CPU time")
        if header["signal"]:
            return ending(VerdictKind.CRASH, f"ended by signal {_signal_name(header['signal'])}")
        if failed:
            return ending(VerdictKind.CRASH, words or f"exit status {status}")
        return ending(None)


def _signal_name(number: Any) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
