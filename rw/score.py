"""`rw score`: judges anyone's answers to the questions of a data set, by the rules that training and evaluation use.

Every answer is a line of the output as soon as it is judged, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import signal
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence

from rw import progress
from rw.cli import Parser
from rw.data.prepared import is_prepared, read_queries
from rw.data.source import load
from rw.errors import ConfigError, DataError, FailureCause, InfrastructureFailure, OutageError, RwError
from rw.evaluation.judged import Judged, Response, Verdicts, read_responses
from rw.interrupts import Interrupts, StopRequested, run_in_loop
from rw.rollout.scorer import Scorer
from rw.rollout.tasks import gather_or_cancel
from rw.scoring import scorers
from rw.scoring.config import MATH_EQUALITIES, ScoringConfig
from rw.scoring.own import no_scorer
from rw.types import ProgramTests, Query, Verdict, VerdictKind

EXAMPLES = 3  # ids that are named of a kind of mistake


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 6 where some answers could not be judged, 2 where files cannot be used, or what
    shells give the signal that stopped it."""
    try:
        known = _parse(sys.argv[1:] if argv is None else argv)
        config = ScoringConfig(
            math_equality=known.math_equality, allow_weak_sandbox=known.allow_weak_sandbox, own=tuple(known.scorer)
        )
        queries = read_questions(known.dataset, known.queries)
        responses, questions = matched(read_responses(known.responses), queries, known.dataset)
        if any(isinstance(questions[response.id].reference, ProgramTests) for response in responses):
            say_tier(config)
        return score(questions, responses, known.output, config, known.processes)
    except (RwError, OSError) as error:
        print(f"rw score: error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, RwError) else RwError.exit_code
    except StopRequested as stop:
        progress.say(f"{stop}; the same command goes on from {known.output}")
        return stop.exit_code
    except KeyboardInterrupt:  # before anything was judged
        return 128 + signal.SIGINT


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("score")
    parser.add_argument("--dataset", required=True, metavar="NAME", help="of the questions, e.g. math or apps")
    parser.add_argument(
        "--queries", required=True, metavar="FILE", help="a file of `rw data prepare`, or of the set's own"
    )
    parser.add_argument("--responses", required=True, metavar="FILE", help='JSON lines: {"id": …, "response": …}')
    parser.add_argument("--output", required=True, metavar="FILE", help="JSON lines, a verdict each; added to if there")
    cores = max(1, (os.cpu_count() or 2) // 2)
    parser.add_argument(
        "--processes", type=int, default=cores, metavar="N", help=f"answers judged side by side (default {cores})"
    )
    parser.add_argument(
        "--math-equality", default=MATH_EQUALITIES[0], choices=MATH_EQUALITIES, help="when two answers are the same"
    )
    parser.add_argument(
        "--allow-weak-sandbox",
        action="store_true",
        help="run programs under resource limits alone where nothing isolates: they can read this machine's files",
    )
    parser.add_argument(
        "--scorer",
        action="append",
        default=[],
        metavar="NAME=MODULE:FUNCTION",
        help="a scorer of your own, for questions of that data set",
    )
    known = parser.parse_args(argv)
    if known.processes < 1:
        parser.error("--processes must be at least 1")
    return known


def say_tier(config: ScoringConfig) -> None:
    """Finds out, before anything is judged, how programs are kept apart from this machine; SandboxError if not at
    all."""
    from rw.scoring.sandbox import strongest_tier  # it tries for a second, and only programs need it

    progress.say(f"programs run in sandbox tier {strongest_tier(config.allow_weak_sandbox)}")


def read_questions(dataset: str, path: str) -> tuple[Query, ...]:
    """The questions of a prepared file that are of that data set, or those of a file in the set's own schema.

    Raises:
        DataError: a file that cannot be used, or that has none of them.
    """
    try:
        prepared = os.path.isfile(path) and is_prepared(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if not prepared:
        loaded = load(dataset, path)
        if loaded.dropped.total():
            reasons = ", ".join(f"{count} {reason}" for reason, count in loaded.dropped.items())
            progress.say(f"{path}: {len(loaded.queries)} questions; left out: {reasons}")
        return loaded.queries
    found = read_queries(path)
    if found.header.get("dataset") == dataset:
        return found.queries
    queries = tuple(query for query in found.queries if query.dataset == dataset)
    if not queries:
        there = ", ".join(sorted({query.dataset for query in found.queries}))
        raise DataError(f"{path} has no questions of {dataset!r}; it has those of {there}")
    return queries


def matched(
    responses: Sequence[Response], queries: Iterable[Query], dataset: str
) -> tuple[list[Response], dict[str, Query]]:
    """The responses to known questions under the questions' ids, and the questions by id; says what does not match.

    A response may name a question without the data set in front: `12` for `mbpp/12`.

    Raises:
        DataError: not one of them is to a known question.
    """
    by_id = {query.id: query for query in queries}
    counts: collections.Counter[str] = collections.Counter()
    kept, unknown = [], []
    for response in responses:
        name = next((name for name in (response.id, f"{dataset}/{response.id}") if name in by_id), None)
        if name is None:
            unknown.append(response.id)
            continue
        kept.append(dataclasses.replace(response, id=name, index=counts[name]))
        counts[name] += 1
    if unknown:
        progress.say(f"{len(unknown)} responses name no question of the file: {_examples(unknown)}")
    if not kept:
        raise DataError(f"no response names a question of the file; its first is {next(iter(by_id), None)!r}")
    if several := [name for name, count in counts.items() if count > 1]:
        progress.say(f"{len(several)} questions have several responses; each is judged: {_examples(several)}")
    if missing := [name for name in by_id if name not in counts]:
        progress.say(f"{len(missing)} of {len(by_id)} questions have no response: {_examples(missing)}")
    return kept, by_id


def _examples(names: Sequence[str]) -> str:
    return ", ".join(names[:EXAMPLES]) + (", …" if len(names) > EXAMPLES else "")


def score(
    questions: Mapping[str, Query], responses: Sequence[Response], output: str, config: ScoringConfig, processes: int
) -> int:
    """Judges what the output does not have yet and says how it went; the exit code."""

    async def run(interrupts: Interrupts) -> list[Judged]:
        async with Scorer(config=config, processes=processes) as scorer:
            return await interrupts.guard(_judge_all(scorer, questions, responses, output, config, processes))

    judged = run_in_loop(run)
    for line in summary(judged):
        progress.say(line)
    return OutageError.exit_code if any(one.is_fault for one in judged) else 0


async def _judge_all(
    scorer: Scorer,
    questions: Mapping[str, Query],
    responses: Sequence[Response],
    output: str,
    config: ScoringConfig,
    processes: int,
) -> list[Judged]:
    with Verdicts(output, config, await _versions(scorer, questions, responses, scorers(config))) as verdicts:
        kept = {response: verdicts.kept(response, questions[response.id]) for response in responses}
        due = [response for response in responses if kept[response] is None]
        verdicts.open(due)
        if len(due) < len(responses):
            progress.say(f"{len(responses) - len(due)} of {len(responses)} answers were judged before")
        with progress.counted("answers", len(due)) as on_count:
            done = 0

            async def judge_next(waiting) -> None:
                nonlocal done
                for response in waiting:  # all share one iterator
                    query = questions[response.id]
                    kept[response] = verdicts.add(response, query, await _verdict(scorer, query, response.text))
                    done += 1
                    on_count(done)

            waiting = iter(due)
            await gather_or_cancel(judge_next(waiting) for _ in range(2 * processes))  # some wait, so that none idles
        return [one for one in kept.values() if one is not None]


async def _versions(
    scorer: Scorer, questions: Mapping[str, Query], responses: Sequence[Response], known: Collection[str]
) -> dict[str, str]:
    """Name and version of each data set's scorer, as it says itself of an empty answer."""
    one_each = {questions[response.id].dataset: questions[response.id] for response in responses}
    versions = {}
    for dataset, query in one_each.items():
        if dataset not in known:
            raise ConfigError(f"question {query.id}: {no_scorer(dataset, known)}; --scorer adds one of yours")
        try:
            versions[dataset] = (await scorer.ask(dataset, query, "")).scorer
        except InfrastructureFailure as failure:
            raise OutageError(f"the scorer of {dataset} does not work here: {failure}") from failure
    return versions


async def _verdict(scorer: Scorer, query: Query, response: str) -> Verdict:
    """The verdict; that of a fault, which says nothing of the answer, where it could not be judged."""
    try:
        return await scorer(query, response)
    except InfrastructureFailure as failure:
        is_sandbox = failure.cause is FailureCause.SANDBOX_FAULT
        kind = VerdictKind.SANDBOX_FAULT if is_sandbox else FailureCause.SCORER_FAULT
        return Verdict(False, detail=str(failure).strip().splitlines()[-1], kind=kind.value)


def summary(judged: Sequence[Judged]) -> list[str]:
    """How many are right of those that could be judged, and what became of the others."""
    known = [one for one in judged if not one.is_fault]
    correct = sum(one.correct for one in known)
    share = f" ({correct / len(known):.1%})" if known else ""
    kinds = collections.Counter(one.verdict for one in judged)
    lines = [
        f"{correct} of {len(known)} answers are right{share}",
        "verdicts: " + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()),
    ]
    by_scorer = collections.defaultdict(list)
    for one in known:
        by_scorer[one.scorer].append(one.correct)
    if len(by_scorer) > 1:
        shares = (f"{name} {sum(right)} of {len(right)}" for name, right in by_scorer.items())
        lines.append(f"right, by scorer: {', '.join(shares)}")
    if faults := len(judged) - len(known):
        lines.append(f"{faults} answers could not be judged and count as nothing; the same command tries them again")
    return lines


if __name__ == "__main__":
    sys.exit(main())
