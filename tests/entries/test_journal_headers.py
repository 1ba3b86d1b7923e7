"""What a journal depends on: a restart under anything else is refused, and told by name."""

import dataclasses
import pathlib

import pytest

from rw.config import load_config
from rw.errors import JournalError
from rw.journals import discard_steps, open_journals, step_scope
from rw.parts import load_codec
from rw.processes import Processes
from rw.protocol.prompts import Prompts
from rw.workdir import Workdir
from rw.workers.config import WorkerEndpoint

TINY = str(pathlib.Path(__file__).parent.parent / "data" / "configs" / "tiny.py")
WORKER = WorkerEndpoint("worker_1", "Answers.", "http://127.0.0.1:1/v1", "m", input_price=1.0, output_price=2.0)
VERDICT = {"correct": True, "detail": "", "tier": ""}


@pytest.fixture
def opened(tmp_path):
    """opened(overrides, worker, templates, tokenizer) -> the journals of a run in one directory."""

    def make(overrides=(), worker=WORKER, templates="short", tokenizer="quickstart"):
        config = load_config(TINY, overrides)
        with Workdir(tmp_path / "run") as workdir:
            return open_journals(config, workdir, load_codec(tokenizer), Prompts.load(templates), [worker], Processes())

    journals = make()
    journal = journals.open(step_scope(3))
    journal.write_final("q", 0, "answered", "4", VERDICT)
    journal.close()
    return make


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"overrides": [("optimizer.learning_rate", "0.5")]}, "run"),
        ({"overrides": [("seed", "7")]}, "run"),
        ({"worker": dataclasses.replace(WORKER, model="another")}, "pool"),
        ({"worker": dataclasses.replace(WORKER, description="Answers well.")}, "pool"),
        ({"worker": dataclasses.replace(WORKER, temperature=1.0)}, "pool"),
        ({"worker": dataclasses.replace(WORKER, extra_body={"reasoning": {"enabled": False}})}, "pool"),
        ({"worker": dataclasses.replace(WORKER, output_price=3.0)}, "prices"),
        ({"templates": "default"}, "prompts"),
        ({"tokenizer": "qwen3_nq6"}, "tokenizer"),
    ],
)
def test_what_would_change_an_answer_is_refused_by_name(opened, changes, name):
    with pytest.raises(JournalError, match=f"was written with another {name}; take the change back"):
        opened(**changes).open(step_scope(3))


@pytest.mark.parametrize(
    "changes",
    [
        {"overrides": [("steps", "9"), ("rollout.concurrency", "3"), ("journal.segment_s", "1.0")]},
        {"overrides": [("budget.run_usd", "5.0"), ("client.attempt_timeout_s", "9.0")]},
        {"worker": dataclasses.replace(WORKER, base_url="https://elsewhere/v1", max_concurrent=2, stream="never")},
        {"worker": dataclasses.replace(WORKER, key_env="KEY_ELSEWHERE", requests_per_minute=60)},
    ],
)
def test_where_workers_are_and_how_they_are_asked_may_change(opened, changes):
    assert opened(**changes).open(step_scope(3)).verdict("q", "4") == VERDICT


def test_journals_of_steps_that_a_checkpoint_covers_go(opened):
    journals = opened()
    for scope in (step_scope(12), "validation_000002"):
        journal = journals.open(scope)
        journal.write_final("q", 0, "answered", "4", None)
        journal.close()
    discard_steps(journals, upto=3)
    assert journals.scopes() == ["step_000012", "validation_000002"]
