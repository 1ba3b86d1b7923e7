"""How the answers of a run are judged: the processes of its scorers and, where programs run, their sandbox."""

from __future__ import annotations

import os
from collections.abc import Iterable

from rw import progress
from rw.errors import ConfigError
from rw.protocol.prompts import Prompts
from rw.rollout.episode import Feedback
from rw.rollout.feedback import ExecutionFeedback
from rw.rollout.scorer import Scorer
from rw.run_config import RunConfig
from rw.scoring import scorers
from rw.scoring.own import no_scorer
from rw.scoring.sandbox import Tier, strongest_tier
from rw.types import ProgramTests, Query

LEAK = (
    "warning: credit.execution_feedback='hidden' shows the router how programs fare on the hidden tests, by which its "
    "reward and its accuracy are measured, in training and in the evaluation: neither compares with a router without it"
)


def open_scorer(config: RunConfig) -> Scorer:
    """The run's scorer; its processes start when they are needed."""
    return Scorer(
        "rw.rollout.feedback:served",
        config.scoring,
        processes=scorer_processes(config),
        timeout_s=config.rollout.scorer_timeout_s,
    )


def scorer_processes(config: RunConfig) -> int:
    """How many answers are judged side by side."""
    return config.rollout.scorer_processes or max(2, (os.cpu_count() or 2) // 2)


def feedback(config: RunConfig, scorer: Scorer, prompts: Prompts) -> Feedback | None:
    """What the router is told of programs; None where it is told nothing."""
    tests = config.credit.execution_feedback
    return None if tests == "off" else ExecutionFeedback(scorer, prompts, tests)


def runs_programs(config: RunConfig, queries: Iterable[Query]) -> bool:
    """Whether a run with these questions runs programs that Workers or the router wrote."""
    feeds_back = config.credit.execution_feedback != "off"
    return feeds_back or any(isinstance(query.reference, ProgramTests) for query in queries)


def check_isolation(config: RunConfig, queries: Iterable[Query]) -> None:
    """Says how programs are kept apart from this machine, where any will be run, and warns of what leaks.

    Raises:
        SandboxError: nothing here isolates well enough; names what is missing.
    """
    if runs_programs(config, queries):
        progress.say(tier_line(strongest_tier(config.scoring.allow_weak_sandbox)))
    if config.credit.execution_feedback == "hidden":
        progress.say(LEAK)


def check_scorers(config: RunConfig, queries: Iterable[Query]) -> None:
    """Raises ConfigError where a question's data set has no scorer, with the nearest name, or where one of
    `scoring.own` cannot be loaded."""
    known = scorers(config.scoring)
    for query in queries:
        if query.dataset not in known:
            raise ConfigError(f"question {query.id}: {no_scorer(query.dataset, known)}; scoring.own adds one of yours")


def tier_line(tier: Tier) -> str:
    """One line about the sandbox of programs."""
    return f"programs run in a sandbox of tier {tier}"
