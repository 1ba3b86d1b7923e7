"""`rw report WORKDIR... [--out DIR]`: makes the reports of runs and evaluations again, and lays several runs side by
side."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence

from rw.cli import Parser
from rw.errors import ConfigError, RwError
from rw.evaluation import comparison, report, results


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = Parser("report")
    parser.add_argument("workdirs", nargs="+", metavar="WORKDIR", help="directory of a run, finished or not")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="where the report goes: of one run instead of WORKDIR/report, of several instead of `comparison` beside "
        "the first (each also gets its own)",
    )
    parser.add_argument(
        "--against", nargs="+", default=[], metavar="WORKDIR[:ARM]",
        help="evaluations whose arms those of the one WORKDIR are compared with, on the questions in common",
    )  # fmt: skip
    try:
        known = parser.parse_args(sys.argv[1:] if argv is None else argv)
        if len(known.workdirs) == 1:
            _report_one(known.workdirs[0], known.out, known.against)
        elif known.against:
            raise ConfigError("--against compares the arms of one WORKDIR; several are laid side by side without it")
        else:
            comparison.print_comparison(comparison.write_comparison(known.workdirs, known.out))
    except RwError as error:
        print(f"rw report: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _report_one(workdir: str, out: str | None, against: Sequence[str]) -> None:
    """The report of a training run; of a directory that holds an evaluation alone, its results."""
    is_run = (pathlib.Path(workdir) / "metrics.jsonl").exists()
    if is_run or not results.has_arms(workdir):
        report.print_report(report.write_report(workdir, out))
    if results.has_arms(workdir) and (against or not is_run):
        results.print_results(results.write_results(workdir, out, against))


if __name__ == "__main__":
    sys.exit(main())
