"""The `rw` command: `rw train`, `rw warmstart`, `rw report` and so on. Errors that a user can act on are one line on
stderr."""

from __future__ import annotations

import argparse
import errno
import importlib
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rw.config_path import config_name
from rw.errors import ConfigError, RwError
from rw.kept_memory import keep_memory
from rw.typed_values import did_you_mean

COMMANDS = {
    "train": "train a router; the same command continues a stopped run",
    "warmstart": "supervised training on scripted routers, the start of a training run",
    "sweep": "many runs of one config that differ in some keys, and one summary of them",
    "evaluate": "what a saved router earns on test questions and held-out sets, with intervals",
    "calibrate": "the reference cost of the efficiency reward, from rollouts of a checkpoint",
    "baselines": "what fixed, scripted and learned routers earn on a config's test questions",
    "report": "tables and plots of one run, or of several side by side, from the files they left",
    "doctor": "is every Worker there, with key, model, usage and price? asks each one a few tokens",
    "convert": "Hugging Face's Qwen3 to parameters that a run begins from, and routers of runs to Hugging Face's Qwen3",
    "data": "questions of a data set into a checked file that runs and rw score read: rw data prepare",
    "score": "anyone's answers to the questions of a data set, judged as in training and evaluation",
    "ledger": "what runs have spent, by phase, Worker, mode and step, also while they run",
}

COMPUTE = ("train", "warmstart", "evaluate", "baselines", "calibrate")  # run a model

MODULES = {"data": "prepare"}  # of commands that are not named like theirs

DRY_RUN = "--dry-run"  # of commands that ask Workers
ALLOW_LIVE = "--allow-live"  # of these, too: short for --config.workers.allow_live=true
# What the default workdir ends with, where it is not that of a training run.
WORKDIRS = {"evaluate": "_evaluation", "baselines": "_evaluation", "calibrate": "_calibration"}
NO_SPEND = "--no-spend"  # of doctor
OVERRIDE = "--config."
NO_FLAG = "; config values are set as --config.section.key=value"
OVERRIDES = "Any value of the config can be set as --config.section.key=value, e.g. --config.steps=20."


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of the console command; returns the exit code. Without `argv` the process is this command's alone."""
    owns_process = argv is None
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: rw train|warmstart --config FILE [--workdir DIR] [--dry-run] [--allow-live] [--config.a.b=v ...]")
        print("       … of several processes: --processes N|auto [--process I --coordinator HOST:PORT]")
        print("       rw train [...] --profile 3,5-7, to trace these steps for TensorBoard or Perfetto")
        print(
            "       rw sweep --config FILE --sweep FILE [--backend local|slurm|print] [--processes N] [--dry-run] [...]"
        )
        print(
            "       rw evaluate --config FILE --checkpoint PATH [--step N] [--arms A,B] [--against WORKDIR ...] [...]"
        )
        print("       rw calibrate --config FILE --checkpoint PATH [--queries N] [--rollouts K] [--workdir DIR] [...]")
        print("       rw baselines --config FILE | --outcomes llmrouter9 [--only A,B] [--yes] [--dry-run] [...]")
        print("       rw doctor --config FILE [--no-spend] [--config.a.b=v ...]")
        print("       rw report WORKDIR... [--out DIR] [--against WORKDIR[:ARM] ...]")
        print("       rw convert --from-hf DIR --to PATH | --from PATH|WORKDIR --to-hf DIR [--dtype D] [--overwrite]")
        print("       rw data prepare --dataset NAME --input FILE|DIR|hub --output FILE [...]")
        print("       rw score --dataset NAME --queries FILE --responses FILE --output FILE [...]")
        print("       rw ledger WORKDIR... [--csv FILE] [--json FILE]\n")
        print("\n".join(f"  {name:<11}{text}" for name, text in COMMANDS.items()))
        return 0 if argv else 2
    command, rest = argv[0], argv[1:]
    if command not in COMMANDS:
        hint = did_you_mean(command, COMMANDS) or f"; one of {', '.join(COMMANDS)}"
        print(f"rw: unknown command {command!r}{hint}", file=sys.stderr)
        return 2
    if owns_process and command in COMPUTE:
        keep_memory()
    return importlib.import_module(f"rw.{MODULES.get(command, command)}").main(rest)  # each loads only what it needs


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class Arguments(NamedTuple):
    """What a command was given."""

    config: str  # path of the config file
    overrides: list[tuple[str, str]]  # (dotted key, text)
    workdir: str
    flags: argparse.Namespace  # the others


class Parser(argparse.ArgumentParser):
    """Takes no abbreviations, and names a misspelt flag before it misses another one."""

    def __init__(self, name: str, otherwise: str = "", **given):
        """`name`: of the command; `otherwise`: what to say of a flag that is near none."""
        self._flags: list[str] = []
        self._otherwise = otherwise
        super().__init__(**{"prog": f"rw {name}", "description": COMMANDS.get(name), "allow_abbrev": False, **given})

    def add_argument(self, *names, **given) -> argparse.Action:
        """As argparse does."""
        self._flags += names
        return super().add_argument(*names, **given)

    def parse_known_args(self, args=None, namespace=None):
        """As argparse does; ConfigError for a flag that there is not, with the nearest one."""
        for word in args or ():
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag not in self._flags:
                hint = did_you_mean(flag, self._flags, cutoff=0.75) or self._otherwise  # all of them begin with --
                raise ConfigError(f"unknown argument {word!r}{hint}")
        return super().parse_known_args(args, namespace)


Body = Callable[[Arguments], int]  # -> exit code


AddFlags = Callable[[argparse.ArgumentParser], None]


def run_entry(
    name: str, argv: Sequence[str], body: Body, dry_run: Body | None = None, add_flags: AddFlags | None = None
) -> int:
    """Parses `--config`, `--workdir`, overrides and the flags of a command's own, runs `body` or, with `--dry-run`,
    `dry_run`; reports RwErrors."""
    try:
        return (dry_run if dry_run and DRY_RUN in argv else body)(parse_arguments(name, argv, add_flags))
    except RwError as error:
        print(f"rw {name}: error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        print(f"rw {name}: error: {error}; make room, and give the same command again", file=sys.stderr)
        return RwError.exit_code


def parse_arguments(name: str, argv: Sequence[str], add_flags: AddFlags | None = None) -> Arguments:
    """The arguments of a command; workdir defaults to runs/<name of the config file>, with _<NAME> of FILE:NAME."""
    parser = Parser(name, otherwise=NO_FLAG, epilog=OVERRIDES)
    parser.add_argument("--config", required=True, help="FILE or FILE:NAME, a Python file with get_config()")
    parser.add_argument("--workdir", default="", help="directory of the run (default: runs/<config name>)")
    if name in ("train", "warmstart", "evaluate", "calibrate"):
        parser.add_argument(DRY_RUN, action="store_true", help="estimate calls and USD; call nobody, change nothing")
        parser.add_argument(ALLOW_LIVE, action="store_true", help="in a replay: ask and pay for what was not recorded")
        parser.add_argument("--processes", metavar="N", help="processes of the job, one a host; auto: ask the machine")
        parser.add_argument("--process", metavar="I", type=int, help="index of this one, from 0")
        parser.add_argument("--coordinator", metavar="HOST:PORT", help="where the others reach process 0")
    elif name == "doctor":
        parser.add_argument(NO_SPEND, action="store_true", help="ask Workers for nothing that costs anything")
    if add_flags is not None:
        add_flags(parser)
    others, overrides = _apart(argv)
    known, unknown = parser.parse_known_args(others)
    if unknown:
        raise ConfigError(f"unknown argument {unknown[0]!r}{NO_FLAG}")
    if ALLOW_LIVE in others:
        overrides.insert(0, ("workers.allow_live", "true"))
    suffix = WORKDIRS.get(name, "")
    workdir = known.workdir or str(pathlib.Path("runs") / f"{config_name(known.config)}{suffix}")
    return Arguments(known.config, overrides, workdir, known)


def _apart(argv: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """(arguments, overrides): a parser would take an override with a space in it for a value of the flag before it."""
    others: list[str] = []
    overrides: list[tuple[str, str]] = []
    rest = list(argv)
    while rest:
        head = rest.pop(0)
        if not head.startswith(OVERRIDE):
            others.append(head)
            continue
        key, equals, text = head.removeprefix(OVERRIDE).partition("=")
        if not equals:
            if not rest:
                raise ConfigError(f"{OVERRIDE}{key} needs a value: {OVERRIDE}{key}=VALUE")
            text = rest.pop(0)
        overrides.append((key, text))
    return others, overrides


if __name__ == "__main__":
    sys.exit(main())
