"""Programs as answers: cut out of the response, run in a sandbox on the question's tests, judged outside of it.

All tests must pass, in order, and the first that fails ends it (RouteWeaver, Appendix B.2). A program that wrote the
right output and then crashed, left with an exit status other than 0, or ran out of time, is wrong.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator

from rw.errors import DataError
from rw.scoring.config import ScoringConfig
from rw.scoring.program_checks import check_ending
from rw.scoring.program_output import EXACT, Comparison, same_output, same_value, shortened
from rw.scoring.program_run import Ending, ProgramRun, SandboxLost, program_wall_s
from rw.scoring.program_values import json_value, text_value, value_text
from rw.scoring.sandbox import Tier, strongest_tier
from rw.scoring.sandbox_process import START_S, SandboxFault
from rw.types import PROGRAM_KINDS, ProgramTests, Query, Verdict, VerdictKind

VERSION = "program/1"  # raised whenever a verdict could change
COMPARISONS = {
    "apps": Comparison(wrapped=True),
    "live_code_bench": Comparison(decimals=True),
    "taco": Comparison(wrapped=True),
}
_SHOWN_OUTPUT = 4096  # characters kept of a test's output
_VALUE_BYTES = 4 << 20  # of what a function returns, as text; as values they are a hundred times that
_END_S = 30.0  # at most, for sandboxes to be gone
_FENCE = re.compile(r"^([ \t]*)(`{3,}(?=[^`\n]*$)|~{3,})(.*)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class CaseResult:
    """One test of a program."""

    kind: VerdictKind
    detail: str = ""
    output: str = ""  # the first of what it wrote to standard output
    error: str = ""  # the last of what it wrote to standard error


@dataclasses.dataclass(frozen=True)
class ProgramResult:
    """What became of a program: the kind and the detail of its first test that failed, or `pass`."""

    kind: VerdictKind
    detail: str
    tests: tuple[CaseResult, ...]  # those that were run
    tier: str  # of the sandbox


def extract_program(response: str) -> str:
    """The last fenced block of a response; to the end where that one is not closed; all of it where there is none.

    Without the byte order mark that editors put before a text: Python takes it in a file, not in a string.
    """
    opened, end = None, 0  # the last opening fence, and where its block ends; 0 while it is open
    for fence in _FENCE.finditer(response):
        _, marks, words = fence.groups()
        if opened is not None and not end and marks.startswith(opened[2]) and not words.strip():
            end = fence.start()
        elif opened is None or end or (marks[0] == opened[2][0] and words.strip()):  # or it was never closed
            opened, end = fence, 0
    if opened is None:
        return response.removeprefix("\ufeff")
    body = response[opened.end() + 1 : end or len(response)].removeprefix("\ufeff")
    # moved to the left as far as the fence was to the right
    return re.sub(rf"^[ \t]{{1,{len(opened[1])}}}", "", body, flags=re.MULTILINE) if opened[1] else body


def longest_s(tests: ProgramTests, config: ScoringConfig) -> float:
    """Wall clock in s within which `run_program` returns, whatever the program does.

    A test may use `config.test_s` of CPU time, and all tests together that of 20 tests: a program that needs more is
    too slow (`time`, so wrong). The wall clock is there for programs that sleep, and looser: 5 times the CPU time plus
    10 s for a test, twice the CPU time plus as much for all together.
    """
    return START_S + program_wall_s(len(tests.inputs), config) + _END_S


def run_program(
    program: str,
    tests: ProgramTests,
    config: ScoringConfig,
    comparison: Comparison = EXACT,
    tier: Tier | None = None,
) -> ProgramResult:
    """Runs a program on its tests until one fails.

    Args:
        comparison: what the data set's own runner forgives.
        tier: the sandbox's; None takes the strongest that there is.

    A sandbox that fails is replaced once. Where the second fails too, the result is a sandbox fault if the program was
    not running, and a crash if it was: then the program does it.

    Raises:
        DataError: tests that no program can be run on.
        SandboxError: nothing here isolates well enough.
    """
    if tests.kind not in PROGRAM_KINDS or not tests.inputs:
        raise DataError(f"program tests of kind {tests.kind!r} with {len(tests.inputs)} inputs cannot be run")
    if tests.kind != "asserts" and len(tests.outputs) != len(tests.inputs):
        raise DataError(f"program tests with {len(tests.inputs)} inputs have {len(tests.outputs)} outputs")
    tier = tier or strongest_tier(config.allow_weak_sandbox)
    end = time.monotonic() + START_S + program_wall_s(len(tests.inputs), config)
    for _ in range(2):
        results: list[CaseResult] = []
        try:
            for ending, judged in _TESTED[tests.kind](tier.name, program, tests, config, comparison, end):
                results.append(_result(ending, judged))
                if results[-1].kind is not VerdictKind.PASS:
                    detail = f"test {len(results)} of {len(tests.inputs)}: {results[-1].detail}"
                    return ProgramResult(results[-1].kind, detail, tuple(results), str(tier))
            return ProgramResult(VerdictKind.PASS, f"{len(results)} tests passed", tuple(results), str(tier))
        except SandboxFault as fault:
            failure = ProgramResult(VerdictKind.SANDBOX_FAULT, str(fault), tuple(results), str(tier))
        except SandboxLost as lost:
            failure = ProgramResult(VerdictKind.CRASH, str(lost), tuple(results), str(tier))
    return failure


def program_scorer(config: ScoringConfig) -> Callable[[str, Query], Verdict]:
    """The scorer of all sets whose reference is `ProgramTests`."""

    def program(response: str, query: Query) -> Verdict:
        text = extract_program(response) if isinstance(response, str) else ""
        if not text.strip() or not isinstance(query.reference, ProgramTests):
            lacking = "no program" if not text.strip() else "the question has no tests"
            return Verdict(False, lacking, kind=VerdictKind.WRONG, scorer=VERSION)
        result = run_program(text, query.reference, config, COMPARISONS.get(query.dataset, EXACT))
        return Verdict(result.kind is VerdictKind.PASS, result.detail, result.tier, result.kind, VERSION)

    return program


def _result(ending: Ending, wrong: str) -> CaseResult:
    kind = ending.kind or (VerdictKind.WRONG if wrong else VerdictKind.PASS)
    output = ending.output[: 4 * _SHOWN_OUTPUT].decode(errors="replace")[:_SHOWN_OUTPUT]
    return CaseResult(kind, ending.detail or wrong, output, ending.error)


def _texts(
    tier: str, program: str, tests: ProgramTests, config: ScoringConfig, comparison: Comparison, end: float
) -> Iterator[tuple[Ending, str]]:
    """Of each test of kind `stdin`: how it ended, and what is wrong with its output."""
    with ProgramRun(tier, program, tests.setup, True, len(tests.inputs), config, end) as run:
        for given, expected in zip(tests.inputs, tests.outputs, strict=True):
            ending = run.test({"do": "stdin"}, given.encode("utf-8", "surrogatepass"))
            output = ending.output.decode(errors="replace")
            same = ending.kind is None and same_output(output, expected, comparison.decimals)
            yield ending, "" if same else f"expected {shortened(expected)}, got {shortened(output)}"


def _values(
    tier: str, program: str, tests: ProgramTests, config: ScoringConfig, comparison: Comparison, end: float
) -> Iterator[tuple[Ending, str]]:
    """Of each test of kind `function`: how it ended, and what is wrong with the value returned."""
    with ProgramRun(tier, program, tests.setup, True, len(tests.inputs), config, end) as run:
        for arguments, expected in zip(tests.inputs, tests.outputs, strict=True):
            ending = run.test({"do": "function", "function": tests.function}, value_text(tuple(arguments)))
            if ending.kind is None and "returned" not in ending.report:
                ending = dataclasses.replace(ending, kind=VerdictKind.CRASH, detail="it ended before it returned")
            yield ending, "" if ending.kind is not None else _wrong_value(ending, expected, comparison)


def _wrong_value(ending: Ending, expected: object, comparison: Comparison) -> str:
    if ending.report["returned"] is not True:
        return f"returned no plain data: {str(ending.report.get('instead'))[:500]}"
    if len(ending.value) > _VALUE_BYTES:
        return f"returned more than {_VALUE_BYTES} bytes"
    try:
        given = text_value(ending.value, json_value)
    except ValueError as error:
        return f"returned {error}"
    same = same_value(given, expected, comparison.wrapped)
    return "" if same else f"expected {shortened(expected)}, got {shortened(given)}"


def _checks(
    tier: str, program: str, tests: ProgramTests, config: ScoringConfig, comparison: Comparison, end: float
) -> Iterator[tuple[Ending, str]]:
    """Of each test of kind `asserts`: how it ended."""
    many = len(tests.inputs)
    with (
        ProgramRun(tier, program, tests.setup, False, many, config, end) as run,
        ProgramRun(tier, "", tests.setup, False, many, config, end) as check,
    ):
        for source in tests.inputs:
            yield check_ending(check, run, source, tests.function, tests.setup), ""


_TESTED = {"stdin": _texts, "function": _values, "asserts": _checks}
