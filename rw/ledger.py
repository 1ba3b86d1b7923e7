"""`rw ledger WORKDIR... [--csv FILE] [--json FILE]`: what runs have spent, from their ledgers, also while they run."""

from __future__ import annotations

import csv
import io
import json
import os
import pathlib
import sys
from collections.abc import Sequence

from rw.cli import Parser
from rw.errors import RwError, WorkdirError
from rw.evaluation.report import write_whole
from rw.evaluation.spending_tables import Books, sentences, tables
from rw.evaluation.table import print_one, terminal
from rw.workdir import LEDGER, own_files
from rw.workers.ledger import read_ledger


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = Parser("ledger")
    parser.add_argument("workdirs", nargs="+", metavar="WORKDIR", help="directory of a run, finished or not")
    parser.add_argument("--csv", metavar="FILE", help="write every figure there too, one row a summary")
    parser.add_argument("--json", metavar="FILE", help="write every figure there too, one object a run")
    try:
        known = parser.parse_args(sys.argv[1:] if argv is None else argv)
        books = [read_books(path) for path in known.workdirs]
        for path, text in ((known.csv, as_csv(books)), (known.json, as_json(books))):
            if path:
                write_file(pathlib.Path(path), text)
    except RwError as error:
        print(f"rw ledger: error: {error}", file=sys.stderr)
        return error.exit_code
    console = terminal()
    for table in tables(books):
        print_one(table, console)
    for sentence in sentences(books):
        console.print(sentence, markup=False, soft_wrap=True)
    return 0


def read_books(workdir: str | os.PathLike[str]) -> Books:
    """The books of the run in that directory; WorkdirError where it has none."""
    path = pathlib.Path(workdir)
    try:
        parts = [read_ledger(file) for file in own_files(path, LEDGER) or [path / LEDGER]]
    except OSError as error:
        raise WorkdirError(f"no ledger can be read in {str(path)!r}: {error.strerror}; runs leave {LEDGER}") from error
    records = [record for part, _ in parts for record in part]
    return Books.of(str(path), records, sum(torn for _, torn in parts))


def as_csv(books: Sequence[Books]) -> str:
    """A header and one row a summary."""
    rows = [row for book in books for row in book.rows()]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(books: Sequence[Books]) -> str:
    """A list of one object a run."""
    return json.dumps([book.as_dict() for book in books], indent=2) + "\n"


def write_file(path: pathlib.Path, text: str) -> None:
    """Writes a file whole or not at all; WorkdirError where that cannot be done."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise WorkdirError(f"cannot write {str(path)!r}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
