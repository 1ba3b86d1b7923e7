"""Before anything is spent a run knows how programs are kept apart, and says what leaks."""

import dataclasses

import pytest

from rw import judging
from rw.errors import ConfigError, SandboxError
from rw.judging import LEAK, check_isolation, check_scorers, feedback, open_scorer, runs_programs, scorer_processes
from rw.protocol.prompts import Prompts
from rw.rollout.credit import CreditConfig
from rw.rollout.feedback import ExecutionFeedback
from rw.run_config import RolloutConfig, RunConfig
from rw.scoring.config import ScoringConfig
from rw.types import ProgramTests, Query

TEXT = Query("t", "trivia_qa", "recall", "Who?", ("I",))
CODE = Query("c", "apps", "code", "Double it.", ProgramTests("stdin", ("1",), ("2",)))
PAPER = RunConfig()


def feeding_back(tests):
    return dataclasses.replace(PAPER, credit=CreditConfig(execution_feedback=tests))


@pytest.fixture
def probed(monkeypatch):
    """Which probes were made: whether each allowed a weak sandbox."""
    asked = []
    monkeypatch.setattr(judging, "strongest_tier", lambda allow_weak: asked.append(allow_weak) or "bubblewrap")
    return asked


def test_a_run_without_programs_needs_no_sandbox(probed, capsys):
    check_isolation(PAPER, [TEXT])
    assert probed == [] and capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "config, questions", [(PAPER, [TEXT, CODE]), (feeding_back("public"), [TEXT]), (feeding_back("hidden"), [])]
)
def test_where_programs_will_run_the_tier_is_said_in_one_line(probed, capsys, config, questions):
    check_isolation(config, questions)
    said = capsys.readouterr().out.splitlines()
    assert probed == [False] and said[0] == "programs run in a sandbox of tier bubblewrap"
    assert said[1:] == ([LEAK] if config.credit.execution_feedback == "hidden" else [])


def test_where_nothing_isolates_the_run_is_refused(monkeypatch):
    def none(allow_weak):
        raise SandboxError("install bubblewrap")

    monkeypatch.setattr(judging, "strongest_tier", none)
    with pytest.raises(SandboxError, match="install bubblewrap"):
        check_isolation(PAPER, [CODE])


def test_a_weak_sandbox_is_taken_only_where_the_config_allows_it(probed):
    check_isolation(dataclasses.replace(PAPER, scoring=ScoringConfig(allow_weak_sandbox=True)), [CODE])
    assert probed == [True] and runs_programs(PAPER, [CODE])


def test_feedback_costs_nothing_where_it_is_off():
    prompts = Prompts.load("default")
    assert feedback(PAPER, open_scorer(PAPER), prompts) is None
    assert isinstance(feedback(feeding_back("public"), open_scorer(PAPER), prompts), ExecutionFeedback)


def test_scorer_processes_are_as_many_as_asked_or_half_of_the_cores(monkeypatch):
    assert scorer_processes(dataclasses.replace(PAPER, rollout=RolloutConfig(scorer_processes=5))) == 5
    for cores, expected in ((1, 2), (2, 2), (16, 8), (None, 2)):
        monkeypatch.setattr(judging.os, "cpu_count", lambda cores=cores: cores)
        assert scorer_processes(PAPER) == expected


def test_a_question_that_nobody_can_judge_ends_the_run_before_it_begins():
    check_scorers(PAPER, [TEXT, CODE])
    with pytest.raises(ConfigError, match=r"question t: no scorer is named 'triviaqa'; did you mean 'trivia_qa'\?"):
        check_scorers(PAPER, [dataclasses.replace(TEXT, dataset="triviaqa")])
    lengths = dataclasses.replace(PAPER, scoring=ScoringConfig(own=("lengths=rw.scoring.choice:choice",)))
    check_scorers(lengths, [dataclasses.replace(TEXT, dataset="lengths")])
    with pytest.raises(ConfigError, match="cannot be loaded"):
        check_scorers(dataclasses.replace(PAPER, scoring=ScoringConfig(own=("lengths=rw.scoring.choice:no",))), [])
