"""What a ledger's lines sum to, and what a kill leaves in it."""

import dataclasses
import json

import pytest

from rw.errors import WorkdirError
from rw.types import CallId, CallStatus, Mode
from rw.workers import spending
from rw.workers.ledger import Ledger, booked_usd, read_ledger, spent_usd
from rw.workers.spending import NOT_RECORDED, Summary

CALL = CallId(step=3, group=0, rollout=1, turn=2, call=0)
OTHER = dataclasses.replace(CALL, call=1)


def open_ledger(tmp_path):
    return Ledger(tmp_path / "ledger.jsonl", run="run")


def lines(tmp_path):
    return read_ledger(tmp_path / "ledger.jsonl")[0]


def test_an_attempt_that_a_kill_left_open_is_booked_once_at_its_worst_case(tmp_path):
    ledger = open_ledger(tmp_path)
    ledger.sent(CALL, "a", 1, 0.5, Mode.MULTI, "q")
    ledger.sent(CALL, "a", 2, 0.5, Mode.MULTI, "q")  # the first was refused, without cost
    ledger.sent(OTHER, "b", 1, 0.25)
    ledger.attempt(OTHER, "b", 1, 10, 20, 0.125, accepted=True)
    ledger.close()
    for _ in range(2):
        again = open_ledger(tmp_path)
        assert (again.spent.total_usd, again.spent.unknown_usd) == (0.625, 0.5)
        assert again.spent.by_worker_usd == {"a": 0.5, "b": 0.125} and again.spent.by_step_usd == {3: 0.625}
        again.close()
    (booked,) = [line for line in lines(tmp_path) if line.get("failure") == "killed"]
    assert (booked["attempt"], booked["unknown_usd"], booked["mode"], booked["query"]) == (2, 0.5, "multi", "q")
    assert spent_usd(lines(tmp_path)) == 0.625


def test_an_attempt_whose_call_ended_was_not_left_open(tmp_path):
    ledger = open_ledger(tmp_path)
    ledger.sent(CALL, "a", 1, 0.5)
    ledger.call(CALL, "a", CallStatus.FAILED, 1, None, None, None, "connect", "refused")
    ledger.close()
    ledger = open_ledger(tmp_path)
    assert ledger.spent.total_usd == 0 and len(lines(tmp_path)) == 2
    ledger.sent(CALL, "a", 1, 0.5)  # the step is run again, and killed
    ledger.close()
    assert open_ledger(tmp_path).spent.total_usd == 0.5


def test_a_run_whose_directory_was_renamed_goes_on_with_the_same_calls(tmp_path):
    ledger = open_ledger(tmp_path)
    ledger.attempt(CALL, "a", 1, 1, 2, 0.5, accepted=True)
    ledger.call(CALL, "a", CallStatus.OK, 1, 1, 2, 0.5)
    ledger.close()
    ledger = Ledger(tmp_path / "ledger.jsonl", run="renamed")
    ledger.attempt(CALL, "a", 1, 1, 2, 0.25, accepted=True)
    ledger.call(CALL, "a", CallStatus.OK, 1, 1, 2, 0.25)
    ledger.run = "renamed/validation"
    ledger.call(CALL, "a", CallStatus.OK, 1, 1, 2, 2.0)
    ledger.close()
    records = lines(tmp_path)
    assert (spent_usd(records), booked_usd(records)) == (0.75, 2.25)
    assert spending.summarise(records, lambda record: "all")["all"].calls == 2


def test_a_torn_line_of_what_was_sent_is_no_spending_and_the_ledger_goes_on(tmp_path):
    ledger = open_ledger(tmp_path)
    ledger.attempt(CALL, "a", 1, 1, 2, 0.5, accepted=True)
    ledger.sent(OTHER, "a", 1, 0.5)
    ledger.close()
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(path.read_bytes()[:-7] + b"\xff\x00")
    ledger = open_ledger(tmp_path)
    assert ledger.spent.total_usd == 0.5
    ledger.replayed(CALL, "a", 0.5, "journal")
    assert ledger.spent.replayed_usd == 0.5 and ledger.spent.total_usd == 0.5
    assert read_ledger(path)[1] == 1


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("attempt", {"kind": "atempt"}),
        ("attempt", {"kind": ["attempt"]}),
        ("attempt", {"worker": None}),
        ("attempt", {"step": "3"}),
        ("attempt", {"mode": ["multi"]}),
        ("attempt", {"cost_usd": "0.5"}),
        ("attempt", {"cost_usd": float("nan")}),
        ("attempt", {"cost_usd": 1e999}),
        ("attempt", {"cost_usd": 1e308}),
        ("attempt", {"cost_usd": 10**400}),
        ("attempt", {"unknown_usd": None}),
        ("attempt", {"unknown_usd": -0.5}),
        ("attempt", {"accepted": None}),
        ("sent", {"worst_case_usd": None}),
        ("call", {"attempts": None}),
        ("call", {"status": None}),
        ("replayed", {"cost_usd": True}),
    ],
)
def test_a_line_that_cannot_be_counted_is_refused_and_named(tmp_path, kind, change):
    ledger = open_ledger(tmp_path)
    ledger.sent(CALL, "a", 1, 0.5)
    ledger.attempt(CALL, "a", 1, 1, 2, 0.5, accepted=True)
    ledger.call(CALL, "a", CallStatus.OK, 1, 1, 2, 0.5)
    ledger.replayed(CALL, "a", 0.5, "journal")
    ledger.close()
    records = lines(tmp_path)
    assert all(spending.is_sound(record) for record in records)
    text = [json.dumps(record | change if record["kind"] == kind else record) for record in records]
    (tmp_path / "ledger.jsonl").write_text("\n".join(text) + "\n")
    number = 1 + [record["kind"] for record in records].index(kind)
    with pytest.raises(WorkdirError, match=f"line {number} of .*ledger.jsonl is none of a ledger"):
        open_ledger(tmp_path)


@pytest.mark.parametrize("line", ["7", "null", "[]", "{}", '{"step": 1, "loss": 0.5}', '"text"'])
def test_a_file_of_other_lines_is_no_ledger(tmp_path, line):
    (tmp_path / "ledger.jsonl").write_text(line + "\n")
    with pytest.raises(WorkdirError, match="line 1 of .*ledger.jsonl is none of a ledger"):
        lines(tmp_path)


@pytest.fixture
def books(tmp_path):
    ledger = open_ledger(tmp_path)
    for label, call, mode in (
        ("run", dataclasses.replace(CALL, step=-4), None),
        ("run", CALL, Mode.SINGLE),
        ("run", OTHER, Mode.AGENTIC),
        ("run/validation", CALL, Mode.SINGLE),
        ("run/test_forced_multi", CALL, Mode.MULTI),
    ):
        ledger.run = label
        ledger.sent(call, "a", 1, 1.0, mode)
        ledger.attempt(call, "a", 1, None, None, None, False, unknown_usd=1.0, failure="timeout", mode=mode)
        ledger.sent(call, "a", 2, 1.0, mode)
        ledger.attempt(call, "a", 2, 10, 20, 0.25, True, mode=mode)
        ledger.call(call, "a", CallStatus.OK, 2, 10, 20, 0.25, mode=mode)
    ledger.run = "run"
    ledger.call(OTHER, "a", CallStatus.OK, 1, 10, 20, 0.125, mode=Mode.AGENTIC)  # run again: this line counts
    ledger.replayed(CALL, "b", 0.25, "journal", Mode.SINGLE)
    ledger.replayed(CALL, "b", None, "cassette", Mode.SINGLE)
    ledger.call(dataclasses.replace(CALL, turn=9), "a", CallStatus.FAILED, 3, None, None, None, "reset", "gone")
    return ledger


def test_summaries_by_phase(books):
    found = spending.summarise(read_ledger(books.path)[0], spending.phase)
    assert list(found) == list(spending.PHASES)
    one = Summary(1, 0, 2, 10, 20, 1.25, 1.0, 1.0, 0.25)
    assert found["warm start"] == found["validation"] == found["test"] == one
    assert found["training"] == Summary(2, 1, 6, 20, 40, 2.5, 2.0, 2.0, 0.375, 2, 0.25)
    assert found["training"].rejected_share == 0.8 and Summary().rejected_share is None


def test_summaries_by_worker_mode_and_in_all(books):
    records, _ = read_ledger(books.path)
    by_worker = spending.summarise(records, lambda record: record["worker"])
    assert (by_worker["a"].calls, by_worker["b"].replayed_calls, by_worker["b"].spent_usd) == (5, 2, 0)
    by_mode = spending.summarise(records, spending.mode)
    assert {mode: summary.calls for mode, summary in by_mode.items()} == {
        NOT_RECORDED: 1, "single": 2, "agentic": 1, "multi": 1
    }  # fmt: skip
    (all_of_it,) = spending.summarise(records, lambda record: "all").values()
    assert all_of_it.spent_usd == spent_usd(records) == books.spent.total_usd == 6.25
    assert all_of_it.booked_usd == booked_usd(records) == 1.125


def test_lines_without_modes_and_unknown_spending_are_read(tmp_path):
    old = {"run": "r", "step": 1, "group": 0, "rollout": 0, "turn": 1, "call": 0, "worker": "a"}
    usage = {"input_tokens": 1, "output_tokens": 2, "cost_usd": 0.5, "accepted": True}
    records = [
        {"kind": "attempt", **old, **usage, "attempt": 1},
        {"kind": "call", **old, **usage, "status": "ok", "attempts": 1},
    ]
    assert spending.summarise(records, spending.mode) == {NOT_RECORDED: Summary(1, 0, 1, 1, 2, 0.5, 0, 0, 0.5)}
    assert spent_usd(records) == 0.5
