"""`rw report WORKDIR... [--out DIR]`: makes the reports of runs again, and lays several runs side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rw.cli import COMMANDS
from rw.errors import RwError
from rw.evaluation import comparison, report


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="rw report", description=COMMANDS["report"], allow_abbrev=False)
    parser.add_argument("workdirs", nargs="+", metavar="WORKDIR", help="directory of a run, finished or not")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="where the report goes: of one run instead of WORKDIR/report, of several instead of `comparison` beside "
        "the first (each also gets its own)",
    )
    known = parser.parse_args(sys.argv[1:] if argv is None else argv)
    try:
        if len(known.workdirs) == 1:
            report.print_report(report.write_report(known.workdirs[0], known.out))
        else:
            comparison.print_comparison(comparison.write_comparison(known.workdirs, known.out))
    except RwError as error:
        print(f"rw report: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
