"""Programs with LiveCodeBench's own verdicts get the same ones here."""

import json
import lzma
import pathlib

import pytest

from rw.scoring.config import ScoringConfig
from rw.scoring.program import COMPARISONS, run_program
from rw.types import ProgramTests, VerdictKind

RUNS = pathlib.Path(__file__).parent.parent / "data" / "livecodebench" / "runs.jsonl.xz"
pytestmark = pytest.mark.usefixtures("tight_sandbox")


def recorded():
    with lzma.open(RUNS, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def both(rows):
    """The problems of which one program is right and the other wrong."""
    return [row for row in rows if len({run["graded"] for run in row["runs"]}) == 2]


@pytest.mark.parametrize("taken, test_s", [(both, 2), pytest.param(list, 6, marks=pytest.mark.full)])
def test_programs_graded_right_pass_and_those_graded_wrong_fail(taken, test_s):
    right = wrong = 0
    for row in taken(recorded()):
        tests = ProgramTests(row["kind"], tuple(row["inputs"]), tuple(row["outputs"]), row["function"])
        for run in row["runs"]:
            result = run_program(run["code"], tests, ScoringConfig(test_s=test_s), COMPARISONS["live_code_bench"])
            if run["graded"]:
                right += 1
                assert result.kind is VerdictKind.PASS, (row["question_id"], result)
            elif run["failing_test_known"]:
                wrong += 1
                assert result.kind not in (VerdictKind.PASS, VerdictKind.SANDBOX_FAULT), (row["question_id"], result)
    assert right >= 6 and wrong >= 5


def test_the_record_is_whole():
    runs = [run for row in recorded() for run in row["runs"]]
    assert (len(runs), sum(run["graded"] for run in runs)) == (280, 72)
    assert sum(not run["graded"] and run["failing_test_known"] for run in runs) == 203
