"""Who earns a rollout its reward: the router by its own answer, or also a Worker that it asked.

The paper judges the router's answer. The authors' code also counts what Workers said, which two switches allow. Which
texts may count is decided here; what is right is a scorer's.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from rw.errors import ConfigError, InfrastructureFailure
from rw.types import CallStatus, Mode, ProgramTests, Query, Role, Trajectory, Verdict

Score: TypeAlias = Callable[[Query, str], Awaitable[Verdict]]  # bounds its own time; an exception is a scorer fault

SWITCHES: dict[str, tuple[str, ...]] = {
    "code_credit": ("final", "union"),
    "answer_from": ("router", "either"),
    "execution_feedback": ("off", "hidden", "public"),
}
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class CreditConfig:
    """What counts beside the router's own answer, and what it may learn of programs before it answers.

    Args:
        code_credit: `final`: of a question that asks for a program the router's answer counts. `union`: so does the
            fenced program of any Worker that it called [released code].
        answer_from: `router`: the router's answer counts. `either`: in agentic mode the summarizer's does, too
            [released code].
        execution_feedback: whether the router reads how the programs of agentic executors fare: `off`; on the `hidden`
            tests, those that its reward depends on [released code]; or on the `public` ones, which the question shows.
            Under either a program that comes with a mathematical question is run, and its output shown.
    """

    code_credit: str = "final"
    answer_from: str = "router"
    execution_feedback: str = "off"

    def __post_init__(self):
        for name, legal in SWITCHES.items():
            if getattr(self, name) not in legal:
                raise ConfigError(f"credit.{name}={getattr(self, name)!r} is not one of {', '.join(legal)}")

    @property
    def is_of_answer(self) -> bool:
        """Whether a verdict depends on nothing but question and answer."""
        return self.code_credit == "final" and self.answer_from == "router"


PAPER = CreditConfig()


@dataclasses.dataclass(frozen=True)
class Claim:
    """A text that may earn the reward; `by` names whose it is, empty for the router's own answer."""

    text: str
    by: str = ""


def claims(query: Query, trajectory: Trajectory, config: CreditConfig) -> tuple[Claim, ...]:
    """What may count of an answered trajectory, the router's answer first, no text twice."""
    found = [Claim(trajectory.answer or "")]
    calls = [call for call in trajectory.calls if call.status is CallStatus.OK]
    if config.answer_from == "either" and trajectory.mode is Mode.AGENTIC:
        summaries = [call for call in calls if call.role is Role.SUMMARIZER]
        found += [Claim(answer_of(call.output), f"{call.node_id} ({call.worker_id})") for call in summaries[-1:]]
    if config.code_credit == "union" and isinstance(query.reference, ProgramTests):
        fenced = [call for call in calls if "```" in call.output]
        found += [Claim(call.output, f"{call.node_id} ({call.worker_id})") for call in fenced]
    seen: set[str] = set()
    return tuple(claim for claim in found if not (claim.text in seen or seen.add(claim.text)))


def answer_of(reply: str) -> str:
    """What a Worker's reply gives as its answer: the last one between tags, or all of it where there are none."""
    answers = _ANSWER.findall(reply)
    return answers[-1] if answers else reply


async def judge(query: Query, trajectory: Trajectory, score: Score, config: CreditConfig) -> Verdict:
    """The verdict on an answered trajectory: that of the first claim that is right, else of the router's own answer.

    The detail of a verdict that a Worker earned says so. A claim that could not be judged matters only where no other
    one is right: then nothing is known, and its failure is raised.
    """
    own: Verdict | None = None
    failure: InfrastructureFailure | None = None
    for claim in claims(query, trajectory, config):
        try:
            verdict = await score(query, claim.text)
        except InfrastructureFailure as error:
            failure = failure or error
            continue
        if verdict.correct and claim.by:
            return dataclasses.replace(verdict, detail=f"credited to {claim.by}: {verdict.detail}".removesuffix(": "))
        if verdict.correct:
            return verdict
        own = own or verdict
    if failure is not None:
        raise failure
    return own
