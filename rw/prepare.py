"""`rw data prepare`: questions of a data set into one checked file that runs and scorers read.

    rw data prepare --dataset math --input DIR --split test --levels 2-5 --limit 120 --output data/math.test.jsonl
    rw data prepare --dataset math --input DIR --split train --disjoint-from data/*.test.jsonl --output data/math.jsonl

Prepare what is held out first: what is trained on can then be kept apart from it, also for sets of a single split.
"""

from __future__ import annotations

import argparse
import hashlib
import pathlib
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from rw import progress
from rw.cli import Parser
from rw.data import disjoint, prepared
from rw.data.rows import data_files, read_rows
from rw.data.source import Loaded, load, set_name, source_of
from rw.data.sources import SOURCES
from rw.data.sources.contests import special_judged
from rw.data.sources.schema import Options
from rw.errors import DataError, RwError
from rw.evaluation.table import Table, print_one, terminal
from rw.protocol.config import ProtocolConfig
from rw.protocol.dialogue import RouterProtocol
from rw.protocol.prompts import Prompts
from rw.types import Query, WorkerCard

USAGE = "usage: rw data prepare --dataset NAME --input FILE|DIR|hub --output FILE.jsonl [...]; --help tells the rest"
SPLITS = ("train", "validation", "test")
TOO_LONG, NOT_DRAWN = "prompt_too_long", "not_drawn"
# What decides beside the files, written down where the first is given.
RECORDED = (("limit", "seed"), ("per",), ("levels",), ("drop_ambiguous",), ("tokenizer", "prompt_limit"))
ONLY = {
    "levels": "math", "special_judge": "taco", "drop_ambiguous": "live_code_bench", "own_scorers": "custom"
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] != "prepare":
        is_help = argv[:1] in (["-h"], ["--help"])
        print(USAGE, file=sys.stdout if is_help else sys.stderr)
        return 0 if is_help else RwError.exit_code
    try:
        return prepare(_arguments(argv[1:]))
    except RwError as error:
        print(f"rw data prepare: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("rw data prepare: stopped; a file is written whole or not at all", file=sys.stderr)
        return 128 + signal.SIGINT


def prepare(known: argparse.Namespace) -> int:
    """Reads, drops, writes and tells; returns the exit code."""
    output = pathlib.Path(known.output)
    _check(known, output)
    others = [(path, prepared.read_queries(path)) for path in known.disjoint_from]
    progress.say(f"{known.dataset}: reading {known.input}{' ' + known.split if known.split else ''}")
    with progress.counted(f"{known.dataset}: rows") as on_row:
        loaded = load(known.dataset, known.input, known.split, _options(known), on_row)
    read, names = loaded.rows, [str(file["name"]) for file in loaded.files]
    if len(names) > 1:
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        progress.say(f"{known.dataset}: read {', '.join(names[:5])}{more}")
    if others and loaded.queries:
        held_out = [query for _, other in others for query in other.queries]
        progress.say(f"{known.dataset}: comparing {len(loaded.queries)} questions with {len(held_out)} others")
        with progress.counted(f"{known.dataset}: compared", len(loaded.queries)) as on_count:
            loaded = loaded.without(disjoint.overlapping(_counted(loaded.queries, on_count), held_out))
    if known.tokenizer:
        progress.say(f"{known.dataset}: counting the tokens of {len(loaded.queries)} prompts")
        loaded = loaded.without(too_long(loaded.queries, known.tokenizer, known.prompt_limit))
    if known.limit is not None:
        loaded = loaded.without(not_drawn(loaded.queries, known.limit, known.seed, known.per))
    if not loaded.queries:
        reasons = ", ".join(f"{reason} {count}" for reason, count in loaded.dropped.items())
        raise DataError(f"no question is left of {read} rows of {known.input} ({reasons or 'no rows'}); wrote nothing")
    header = {
        "dataset": set_name(known.dataset),
        "split": known.split,
        "options": {name: getattr(known, name) for names in RECORDED if getattr(known, names[0]) for name in names},
        "dropped": dict(loaded.dropped),
        "sources": [dict(record) for record in loaded.files],
        "disjoint_from": [
            {"name": pathlib.Path(path).name, "records": other.header["records"], "sha256": other.header["sha256"]}
            for path, other in others
        ],
    }
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        prepared.write_queries(output, loaded.queries, header)
    except OSError as error:
        raise DataError(f"cannot write {output}: {error.strerror}") from error
    print_one(counts_table(known.dataset, loaded), terminal())
    progress.say(f"{known.dataset}: {len(loaded.queries)} questions in {output}")
    return 0


def too_long(queries: Sequence[Query], tokenizer: str, prompt_limit: int) -> dict[str, str]:
    """Ids of the questions whose first prompt, frame included, is over the limit, each with TOO_LONG."""
    from rw.parts import load_codec  # brings jax along, which takes seconds

    card = WorkerCard("worker_1", "Any.")  # the first prompt names no Worker
    config = ProtocolConfig(prompt_limit=prompt_limit)
    protocol = RouterProtocol(load_codec(tokenizer), Prompts.load(config.templates), (card,), config)
    return {query.id: TOO_LONG for query in queries if len(protocol.prompt_tokens(query)) > prompt_limit}


def not_drawn(queries: Sequence[Query], limit: int, seed: int, per: str = "") -> dict[str, str]:
    """Ids of all but `limit` questions, each with NOT_DRAWN.

    Whether one is drawn before another depends on the seed and their ids alone, whatever else is there.

    Args:
        per: name of a metadatum; `limit` questions are drawn of each of its values.

    Raises:
        DataError: a question has no such metadatum.
    """
    ranked = sorted(queries, key=lambda query: hashlib.sha256(f"{seed}/{query.id}".encode()).digest())
    drawn: Counter[str] = Counter()
    left_out = {}
    for query in ranked:
        if per and per not in query.metadata:
            raise DataError(
                f"--per {per}: question {query.id} has no such metadatum; it has {', '.join(query.metadata) or 'none'}"
            )
        value = str(query.metadata[per]) if per else ""
        drawn[value] += 1
        if drawn[value] > limit:
            left_out[query.id] = NOT_DRAWN
    return left_out


def counts_table(dataset: str, loaded: Loaded) -> Table:
    """How many questions were kept, and how many rows were not, by reason, with the first of each."""
    kept = ("kept", str(len(loaded.queries)), loaded.queries[0].id)
    drops = [(reason, str(count), loaded.examples[reason][0]) for reason, count in loaded.dropped.most_common()]
    return Table(f"{dataset}: {loaded.rows} rows", ("rows", "count", "the first"), (kept, *drops))


def _counted(queries: Sequence[Query], on_count: Callable[[int], None]) -> Iterator[Query]:
    for count, query in enumerate(queries, start=1):
        on_count(count)
        yield query


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        "data prepare",
        description="questions of a data set into one checked file; prepare what is held out first",
        epilog=f"data sets: {', '.join(SOURCES)}; custom are one's own rows: id, domain, prompt, answer, scorer",
    )
    add = parser.add_argument
    add("--dataset", required=True, metavar="NAME", help="one of those below, or your own package.module:source")
    add("--input", required=True, metavar="FILE|DIR|hub", help="JSON lines, JSON, CSV, parquet or arrow; gz or xz too")
    add("--output", required=True, metavar="FILE.jsonl", help="written whole or not at all")
    add("--split", default="", choices=SPLITS, help="which files of DIR or the hub; written down with the questions")
    add("--limit", type=int, metavar="N", help="draw so many (the paper tests with 120 of most sets)")
    add("--per", default="", metavar="KEY", help="draw so many of each value of that metadatum (bbh: task)")
    add("--seed", type=int, default=0, metavar="S", help="of that draw")
    add(
        "--disjoint-from", nargs="+", default=[], metavar="FILE", help="leave out what is, or nearly is, in these files"
    )
    add("--levels", default="", metavar="2-5", help="math: these levels only (the released test has 2-5)")
    add("--special-judge", default="", metavar="FILE", help="taco: the authors' list of rows with a judge of their own")
    add("--drop-ambiguous", action="store_true", help="live_code_bench: without problems of several right answers")
    add(
        "--own-scorers", nargs="+", default=[], metavar="NAME", help="custom: scorers of scoring.own that rows may name"
    )
    add("--tokenizer", default="", metavar="NAME|FILE", help="leave out prompts over the limit, counted with qwen3, …")
    limit = ProtocolConfig.prompt_limit
    add("--prompt-limit", type=int, metavar="N", help=f"in tokens of --tokenizer ({limit})")
    return parser.parse_args(argv)


def _check(known: argparse.Namespace, output: pathlib.Path) -> None:
    source_of(known.dataset)
    for name, dataset in ONLY.items():
        if getattr(known, name) and known.dataset != dataset:
            raise DataError(f"--{name.replace('_', '-')} is for the data set {dataset}, not {known.dataset}")
    if known.prompt_limit is None:
        known.prompt_limit = ProtocolConfig.prompt_limit
    elif not known.tokenizer:
        raise DataError("--prompt-limit needs --tokenizer, by which the tokens are counted")
    if known.limit is not None and known.limit < 1:
        raise DataError(f"--limit {known.limit} must be at least 1")
    if known.per and known.limit is None:
        raise DataError(f"--per {known.per} needs --limit, how many are drawn of each")
    for path in known.disjoint_from:
        if output.resolve() == pathlib.Path(path).resolve():
            raise DataError(f"--output {output} is among the files of --disjoint-from: it would lose what it holds")
    if output.is_dir() or (output.exists() and not prepared.is_prepared(output)):
        raise DataError(f"{output} is there and no file of prepared questions; name another --output")


def _options(known: argparse.Namespace) -> Options:
    levels = frozenset()
    if known.levels:
        found = re.fullmatch(r"([1-5])(?:-([1-5]))?", known.levels)
        levels = frozenset(range(int(found[1]), int(found[2] or found[1]) + 1)) if found else frozenset()
        if not levels:
            raise DataError(f"--levels {known.levels} must be one level of 1 to 5 or a range such as 2-5")
    judged: frozenset[int] = frozenset()
    if known.special_judge:
        rows = (row.values for file in data_files(known.special_judge) for row in read_rows(file))
        judged = special_judged(rows)
    return Options(
        levels=levels,
        special_judge=judged,
        drop_ambiguous=known.drop_ambiguous,
        own_scorers=frozenset(known.own_scorers),
    )


if __name__ == "__main__":
    sys.exit(main())
