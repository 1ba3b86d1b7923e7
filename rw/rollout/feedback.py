"""What the router may learn of programs before it answers: an executor's is run, its observation says how it fared.

Off in the paper's runs. In the authors' code it is on, on the very tests that the reward is measured by. Programs run
where answers are judged, in the processes of `scorer.Scorer` and their sandbox.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

from rw.errors import FailureCause, InfrastructureFailure
from rw.protocol.prompts import Prompts
from rw.rollout.scorer import Scorer
from rw.scoring import scorers
from rw.scoring.config import ScoringConfig
from rw.scoring.program import COMPARISONS, extract_program, run_program
from rw.scoring.program_output import Comparison
from rw.types import CallId, ProgramTests, Query, VerdictKind

RUN = "execution_feedback"  # what the processes serve `run_reply` under
SHOWN = 2000  # characters of what a program wrote
_NO_TESTS = ProgramTests("stdin", ("",), ("",))  # runs a program once, on no input


@dataclasses.dataclass(frozen=True)
class Ran:
    """How a program fared on `tests` tests, of which it passed the first `passed`."""

    kind: VerdictKind
    passed: int
    tests: int
    problem: str  # of the first test that failed; may quote what was expected there
    output: str  # the first of what it wrote on the first test


def served(config: ScoringConfig) -> Mapping[str, Callable]:
    """What the processes of a run serve: the scorers, and running a program."""
    return {**scorers(config), RUN: functools.partial(run_reply, config=config)}


def run_reply(reply: str, query: Query, config: ScoringConfig) -> Ran:
    """Runs the program of a reply on `query.reference`."""
    comparison = COMPARISONS.get(query.dataset, Comparison())
    result = run_program(extract_program(reply), query.reference, config, comparison)
    passed = sum(test.kind is VerdictKind.PASS for test in result.tests)
    output = result.tests[0].output[:SHOWN] if result.tests else ""
    problem = result.tests[-1].detail if result.tests else result.detail
    return Ran(result.kind, passed, len(query.reference.inputs), problem, output)


class ExecutionFeedback:
    """Remarks on the replies of executors, each made once: `JournaledFeedback` keeps them for a restart."""

    def __init__(self, scorer: Scorer, prompts: Prompts, tests: str):
        """`tests`: `hidden` runs a program on all tests of its question, `public` on those that the question shows."""
        self._scorer, self._prompts, self._tests = scorer, prompts, tests

    async def __call__(self, call: CallId, query: Query, reply: str) -> str:
        """What the router is told; "" for a reply without a fenced program, or a question that asks for none.

        Raises:
            InfrastructureFailure: the program could not be run.
        """
        tests = self._tests_of(query)
        if tests is None or "```" not in reply:
            return ""
        ran: Ran = await self._scorer.ask(RUN, dataclasses.replace(query, reference=tests), reply)
        if ran.kind is VerdictKind.SANDBOX_FAULT:
            raise InfrastructureFailure(FailureCause.SANDBOX_FAULT, ran.problem)
        if tests is _NO_TESTS:  # what it wrote is not compared with anything
            ended_well = ran.kind in (VerdictKind.PASS, VerdictKind.WRONG)
            said = ran.output if ended_well else f"{ran.output}\n{ran.problem}"
            return self._prompts.program_output(VerdictKind.PASS if ended_well else ran.kind, said.strip())
        problem = ran.problem if self._tests == "public" else ""  # the question does not show hidden tests, nor may we
        return self._prompts.program_tests(ran.kind, ran.passed, ran.tests, problem)

    def _tests_of(self, query: Query) -> ProgramTests | None:
        tests = query.reference
        if not isinstance(tests, ProgramTests):
            return _NO_TESTS if query.domain == "math" else None
        if self._tests == "hidden":
            return tests
        shown = dataclasses.replace(tests, inputs=tests.inputs[: tests.public], outputs=tests.outputs[: tests.public])
        return shown if tests.public else None
