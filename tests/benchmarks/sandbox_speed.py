"""Programs a second through the sandbox, and what it adds to a program.

    PYTHONPATH=. python tests/benchmarks/sandbox_speed.py [--programs 40]

Overhead: wall clock of grading a program that adds two numbers, with sandboxes ahead and nothing else to do. Sustained:
as many programs as come, by 1 and 2 grading processes; bounded by the start of a sandbox for each program.
"""

import argparse
import multiprocessing
import statistics
import time

from rw.scoring.config import ScoringConfig
from rw.scoring.program import run_program
from rw.scoring.sandbox import strongest_tier
from rw.scoring.sandbox_process import Sandbox
from rw.types import ProgramTests, VerdictKind

PROGRAM = "a, b = map(int, input().split())\nprint(a + b)"
ONE = ProgramTests("stdin", ("1 2\n",), ("3\n",))
TEN = ProgramTests("stdin", ONE.inputs * 10, ONE.outputs * 10)


def seconds(tests: ProgramTests) -> float:
    """Wall clock of one program in s."""
    started = time.monotonic()
    result = run_program(PROGRAM, tests, ScoringConfig())
    if result.kind is not VerdictKind.PASS:
        raise SystemExit(f"the program did not pass: {result}")
    return time.monotonic() - started


def unhurried(tests: ProgramTests, programs: int) -> str:
    """Median and 9th decile over programs that come one by one, with time for the next sandbox in between."""
    times = []
    for _ in range(programs):
        times.append(1e3 * seconds(tests))
        time.sleep(0.25)
    return f"median {statistics.median(times):.1f} ms, 90 % within {statistics.quantiles(times, n=10)[-1]:.1f} ms"


def cold(tier: str, starts: int) -> str:
    """Median of starting a sandbox, until it takes a program, and ending it."""
    times = []
    for _ in range(starts):
        started = time.monotonic()
        sandbox = Sandbox(tier)
        sandbox.await_ready()
        sandbox.end()
        times.append(1e3 * (time.monotonic() - started))
    return f"median {statistics.median(times):.1f} ms"


def graded(programs: int) -> None:
    """One grading process at work."""
    for _ in range(programs):
        seconds(ONE)


def sustained(graders: int, programs: int) -> float:
    """Programs a second by so many processes, their own start not counted."""
    context = multiprocessing.get_context("forkserver")
    with context.Pool(graders) as pool:
        pool.map(graded, [2] * graders, chunksize=1)  # the probe and the first sandboxes
        started = time.monotonic()
        pool.map(graded, [programs // graders] * graders, chunksize=1)
        return programs / (time.monotonic() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=40)
    programs = parser.parse_args().programs
    started = time.monotonic()
    tier = strongest_tier()
    print(f"tier {tier}, found in {time.monotonic() - started:.2f} s")
    print(f"cold start: {cold(tier.name, programs)}")
    seconds(ONE)
    print(f"one test a program: {unhurried(ONE, programs)}")
    print(f"ten tests a program: {unhurried(TEN, programs)}")
    for graders in (1, 2):
        print(f"sustained, {graders} grading: {sustained(graders, 2 * programs):.1f} programs/s")


if __name__ == "__main__":
    main()
