"""Is a run's config ready to spend money? `rw doctor --config FILE` asks every Worker a question of a few tokens.

`--no-spend` only looks: names, connections, certificates, keys, lists of models. Pools on loopback are started first.
Questions in files are read, and where the answers to some are programs, the sandbox is tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from rw import progress
from rw.cli import NO_SPEND, run_entry
from rw.config import load_config
from rw.errors import RwError
from rw.evaluation.table import terminal
from rw.judging import runs_programs, tier_line
from rw.questions import file_questions, held_out_queries, query_batches
from rw.run_config import RunConfig
from rw.scoring.sandbox import strongest_tier
from rw.worker_pool import open_workers
from rw.workers.checkup import GREETING, MOST_COMPLETIONS, REPLY_TOKENS, Finding, State, check_worker, most_usd
from rw.workers.config import WorkerEndpoint
from rw.workers.replay_pool import QUESTION_HEADING

_STYLES = {State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red", State.SKIPPED: "dim"}


def main(argv: Sequence[str] | None = None) -> int:
    """`rw doctor`; 0 where every Worker can be used and questions and sandbox are there, 1 where something is not, 2
    where the config is refused."""
    argv = list(sys.argv[1:] if argv is None else argv)
    spends = NO_SPEND not in argv
    return run_entry("doctor", argv, lambda given: examine(load_config(given.config, given.overrides), spends))


def examine(config: RunConfig, spends: bool) -> int:
    """Checks every Worker of a config, its questions and its sandbox, and prints what was found; the exit code.

    Args:
        spends: whether Workers are asked for completions, for a few hundredths of a cent at usual prices.
    """
    workers, findings = asyncio.run(_check_all(config, spends))
    found = {worker.id: found for worker, found in zip(workers, findings, strict=True)}
    print_findings(found)
    failed = [name for name, each in found.items() if any(one.state is State.FAIL for one in each)]
    failed += [name for name, check in (("questions", _questions), ("sandbox", _sandbox)) if not _passes(check, config)]
    progress.say(f"not ready: {', '.join(failed)}" if failed else _all_well(len(found)))
    return 1 if failed else 0


def _passes(check: Callable[[RunConfig], str], config: RunConfig) -> bool:
    """Whether a check finds all in order; prints what it found, if that is worth a line, or what is wrong."""
    try:
        if found := check(config):
            progress.say(found)
    except RwError as error:
        progress.say(str(error))
        return False
    return True


def _questions(config: RunConfig) -> str:
    """What the run's files hold; raises RwError where they cannot be used."""
    if config.data.source != "files":
        return ""
    query_batches(config)
    validation, test = held_out_queries(config)
    found = file_questions(config.data)
    return f"questions: {len(found.train)} to train on, {len(validation)} for validation, {len(test)} for the test"


def _sandbox(config: RunConfig) -> str:
    """How programs are kept apart, where the run has any; raises SandboxError where they cannot be."""
    try:
        known = file_questions(config.data) if config.data.source == "files" else None
    except RwError:  # said before
        known = None
    questions = (*known.train, *known.validation, *known.test) if known else ()
    return tier_line(strongest_tier(config.scoring.allow_weak_sandbox)) if runs_programs(config, questions) else ""


def print_findings(found: dict[str, list[Finding]]) -> None:
    """A table of all findings, then the remedies in words."""
    table = Table("Worker", "check", "", "seen", highlight=False)
    for worker_id, findings in found.items():
        for finding in findings:
            state = Text(finding.state.value, style=_STYLES[finding.state])
            table.add_row(Text(worker_id), Text(finding.check), state, Text(finding.seen))
        table.add_section()
    terminal().print(table)
    remedies: dict[tuple[str, str, str], list[str]] = {}
    for worker_id, findings in found.items():
        for finding in findings:
            if finding.remedy:
                remedies.setdefault((finding.check, finding.state, finding.remedy), []).append(worker_id)
    for (check, state, remedy), worker_ids in remedies.items():
        progress.say(f"{check} {state} ({', '.join(worker_ids)}): {remedy}")


async def _check_all(config: RunConfig, spends: bool) -> tuple[Sequence[WorkerEndpoint], list[list[Finding]]]:
    live = dataclasses.replace(config.workers, cassette="", cassette_mode="off", allow_live=False)
    config = dataclasses.replace(config, workers=live)
    content = GREETING if config.workers.kind == "http" else _known_question(config)
    async with contextlib.AsyncExitStack() as stack:
        workers, _ = await open_workers(config, stack)
        if spends:
            progress.say(
                f"at most {MOST_COMPLETIONS} requests for {REPLY_TOKENS} tokens to each of {len(workers)} Workers: "
                f"{most_usd(workers, content):.6f} USD at most, at the config's prices; {NO_SPEND} leaves them out"
            )
        checks = [check_worker(worker, config.client, spends=spends, content=content) for worker in workers]
        return workers, await asyncio.gather(*checks)


def _all_well(workers: int) -> str:
    return "the one Worker can be used" if workers == 1 else f"all {workers} Workers can be used"


def _known_question(config: RunConfig) -> str:
    """A message that simulated and recorded Workers can answer."""
    (query,) = query_batches(config)(0, config.queries_per_batch)[:1]
    return f"{QUESTION_HEADING}\n{query.prompt}"


if __name__ == "__main__":
    sys.exit(main())
