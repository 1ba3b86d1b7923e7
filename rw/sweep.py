"""`rw sweep --config FILE --sweep FILE`: one training run a point of a sweep, and one summary of all.

    rw sweep --config configs/quickstart.py --sweep configs/sweeps/alpha.py --processes 2       # on this machine
    rw sweep --config configs/qwen3_4b.py --sweep configs/sweeps/alpha.py --backend slurm --slurm partition=gpu
    rw sweep --config configs/qwen3_4b.py --sweep configs/sweeps/alpha.py --backend print       # commands, one a line

Every config is checked before anything starts. The same command goes on: finished points are left as they are, others
are continued by `rw train`, which samples and pays nothing twice. A point that fails keeps the others from nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence

from rw import progress
from rw.cli import DRY_RUN, Arguments, run_entry
from rw.config_path import config_name
from rw.dry_run import ESTIMATES, amount, training_estimate
from rw.errors import ConfigError
from rw.estimate import NOTHING, Range
from rw.evaluation.sweep_report import has_settings, point_table, setting_table, state_words, write_sweep
from rw.evaluation.sweep_results import FINISHED, settings
from rw.evaluation.table import Table, print_one, terminal
from rw.interrupts import Interrupts, StopRequested, run_in_loop
from rw.sweeps.local import Command, LocalRuns, named_gpus, places_of, train_command
from rw.sweeps.plan import SweepPoint, plan, read_sweep
from rw.sweeps.slurm import options, submit
from rw.sweeps.state import check_continues, result_of
from rw.workdir import Workdir

BACKENDS = ("local", "slurm", "print")
UNFINISHED = 9  # exit code where every run has ended and not all of them well


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep with its runs planned."""

    title: str
    workdir: pathlib.Path
    points: Sequence[SweepPoint]
    command: Sequence[str]  # the one that was given


def main(argv: Sequence[str] | None = None) -> int:
    """`rw sweep`; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    return run_entry("sweep", argv, lambda given: _start(given, argv), lambda given: _dry_run(given, argv), _add_flags)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(DRY_RUN, action="store_true", help="estimate calls and USD of all points; start nothing")
    parser.add_argument("--sweep", required=True, help="Python file with get_sweep(), e.g. configs/sweeps/alpha.py")
    parser.add_argument("--backend", default="local", choices=BACKENDS, help="where runs are started (default: local)")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="runs at a time (default: 1)")
    parser.add_argument("--gpus", default="", metavar="0,1,…", help="of this machine, divided among the runs at a time")
    parser.add_argument(
        "--slurm", action="append", default=[], metavar="KEY=VALUE",
        help="of sbatch, as submitit names it: partition=gpu, gpus_per_node=8, timeout_min=600",
    )  # fmt: skip


def _sweep(given: Arguments, argv: Sequence[str]) -> Sweep:
    flags = given.flags
    if flags.processes < 1:
        raise ConfigError(f"--processes {flags.processes} must be at least 1")
    for flag, values, backend in (("gpus", flags.gpus, "local"), ("slurm", flags.slurm, "slurm")):
        if values and flags.backend != backend:
            raise ConfigError(f"--{flag} is for --backend {backend}, this is {flags.backend}; leave one of them out")
    stem = pathlib.Path(flags.sweep).stem
    workdir = pathlib.Path(flags.workdir or f"runs/{config_name(given.config)}_{stem}")
    points = plan(given.config, read_sweep(flags.sweep), workdir, given.overrides)
    for point in points:
        check_continues(point)
    return Sweep(f"{stem} of {config_name(given.config)}", workdir, points, ("rw", "sweep", *argv))


def _start(given: Arguments, argv: Sequence[str]) -> int:
    sweep, flags = _sweep(given, argv), given.flags
    if flags.backend == "print":
        return print_commands(sweep)
    if flags.backend == "slurm":
        return run_on_slurm(sweep, flags.processes, options(flags.slurm))
    return run_here(sweep, places_of(flags.processes, named_gpus(flags.gpus)))


def unfinished(sweep: Sweep) -> list[SweepPoint]:
    """The points that are left to run, in their order."""
    return [point for point in sweep.points if result_of(point).status != FINISHED]


def run_here(sweep: Sweep, places: Sequence[Mapping[str, str]], command: Command = train_command) -> int:
    """Runs every unfinished point on this machine; returns 0 where all are finished, UNFINISHED or a stop's code else.

    Args:
        places: one a run at a time, as `places_of` gives them.
        command: what runs a point, `rw train` in a process of its own.
    """
    with Workdir(sweep.workdir):
        todo = unfinished(sweep)
        progress.say(
            f"{len(sweep.points)} points, {len(sweep.points) - len(todo)} of them finished; in {sweep.workdir}"
        )

        async def body(interrupts: Interrupts) -> int:
            try:
                await interrupts.guard(LocalRuns(todo, places, command).run())
            except StopRequested as stop:
                progress.say(f"{stop}; the same command continues the sweep")
                return stop.exit_code
            return 0

        stopped, code = run_in_loop(body), summarise(sweep)
        return stopped or code


def run_on_slurm(sweep: Sweep, at_once: int, parameters: dict) -> int:
    """Submits what is neither finished nor submitted already, as one array; returns 0 while anything waits or runs."""
    with Workdir(sweep.workdir):
        waiting = submit(sweep.points, sweep.workdir, at_once, parameters)
        code = summarise(sweep)
    if waiting:
        progress.say(f"{waiting} points wait or run; the same command looks again, and submits what has failed since")
        return 0
    return code


def print_commands(sweep: Sweep) -> int:
    """One command a line for what is not finished, for machines that are reached otherwise."""
    lines = [shlex.join(["rw", "train", *point.arguments]) for point in unfinished(sweep)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def summarise(sweep: Sweep) -> int:
    """Writes and prints the summary; returns 0 where every point is finished, else UNFINISHED."""
    results = [result_of(point) for point in sweep.points]
    path = write_sweep(sweep.workdir, sweep.title, results, sweep.command)
    console = terminal()
    print_one(point_table(results), console)
    grouped = settings(results)
    if has_settings(grouped):
        print_one(setting_table(grouped), console)
    progress.say(f"{state_words(results)}; {path}")
    return 0 if all(result.status == FINISHED for result in results) else UNFINISHED


def _dry_run(given: Arguments, argv: Sequence[str]) -> int:
    return estimate_all(_sweep(given, argv))


def estimate_all(sweep: Sweep, estimate_one: Callable = training_estimate) -> int:
    """Prints calls and USD of every point that is not finished, and of all of them; returns 2 where a cap of one cannot
    be enough, else 0."""
    rows, shortfalls = [], []
    calls = usd = NOTHING
    todo = unfinished(sweep)
    for point in todo:
        found, lacking = estimate_one(point.config, str(point.workdir))
        calls, usd = calls + found.calls, usd + found.usd
        rows.append((point.name, *_cells(found.calls, found.usd)))
        shortfalls += [f"{point.name}: {sentence}" for sentence in lacking]
    rows.append((f"all {len(todo)}", *_cells(calls, usd)))
    columns = ("point", *(f"calls {name}" for name in ESTIMATES), *(f"USD {name}" for name in ESTIMATES))
    console = terminal()
    print_one(Table("Calls and USD of the whole sweep, as rw train --dry-run has them", columns, tuple(rows)), console)
    said = list(shortfalls)
    if done := len(sweep.points) - len(todo):
        said.append(f"{done} of {len(sweep.points)} points are finished, cost nothing more and are left out.")
    if any(point.config.workers.kind != "http" for point in todo):
        said.append("Workers on loopback: those amounts are nominal and nobody is paid.")
    for sentence in (*said, "Nothing was started, nothing was sent and nothing was spent."):
        console.print(sentence, markup=False, soft_wrap=True)
    return 2 if shortfalls else 0


def _cells(calls: Range, usd: Range) -> tuple[str, ...]:
    return tuple(f"{getattr(calls, name):,.0f}" for name in ESTIMATES) + tuple(
        amount(getattr(usd, name)) for name in ESTIMATES
    )


if __name__ == "__main__":
    sys.exit(main())
