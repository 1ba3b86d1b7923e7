"""`rw ledger`: what several ledgers sum to, in tables and files, also while a run writes."""

import csv
import dataclasses
import json

import pytest

from rw.cli import main
from rw.evaluation.spending_tables import STEP_ROWS, Books, sentences, tables
from rw.types import CallId, CallStatus, Mode
from rw.workers.ledger import Ledger, read_ledger

CALL = CallId(step=1, group=0, rollout=1, turn=2, call=0)


def book(ledger, call, worker_id="a", mode=Mode.MULTI, cost_usd=0.25):
    ledger.sent(call, worker_id, 1, 1.0, mode)
    ledger.attempt(call, worker_id, 1, 10, 20, cost_usd, True, mode=mode)
    ledger.call(call, worker_id, CallStatus.OK, 1, 10, 20, cost_usd, mode=mode)


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path / "run" / "ledger.jsonl", run="run")
    for step in (-1, 1, 2):
        book(ledger, dataclasses.replace(CALL, step=step))
    other = dataclasses.replace(CALL, call=1)
    book(ledger, other, "b", Mode.SINGLE, 0.5)
    ledger.replayed(other, "b", 0.5, "journal", Mode.SINGLE)
    ledger.sent(dataclasses.replace(CALL, turn=3), "b", 1, 2.0)
    yield ledger
    ledger.close()


def books_of(ledger, name="run"):
    return Books.of(name, *read_ledger(ledger.path))


def cells(table):
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


def test_every_table_sums_to_the_same_and_steps_to_those_of_training(ledger):
    found = {table.title: cells(table) for table in tables([books_of(ledger)])}
    assert list(found) == ["By phase, USD", "By worker, USD", "By mode, USD", "By step, USD"]
    assert list(found["By phase, USD"]) == ["warm start", "training", "all"]
    assert list(found["By mode, USD"]) == ["single", "multi", "not recorded", "all"]
    assert list(found["By step, USD"]) == ["1", "2", "all"]
    assert [found[title]["all"]["spent"] for title in found] == ["1.250", "1.250", "1.250", "1.000"]
    assert found["By worker, USD"]["b"]["saved"] == "0.500"


def test_what_is_open_is_said_and_in_no_table(ledger):
    said = " ".join(sentences([books_of(ledger)]))
    assert "attempts 1, worst case 2.000; not in the tables" in said and "saved 0.500" in said
    assert "cut short" not in said


def test_runs_are_laid_side_by_side_and_summed(ledger):
    by_run, by_phase, *_ = map(cells, tables([books_of(ledger, "x"), books_of(ledger, "y")]))
    assert [by_run[name]["spent"] for name in ("x", "y", "all")] == ["1.250", "1.250", "2.500"]
    assert by_phase["warm start"]["calls"] == "2"


def test_many_steps_are_shown_in_blocks(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", run="run")
    for step in range(1, 3 * STEP_ROWS):
        book(ledger, dataclasses.replace(CALL, step=step))
    by_step = cells(tables([books_of(ledger)])[-1])
    assert len(by_step) == STEP_ROWS + 1 and by_step["1 to 3"]["calls"] == "3" and by_step["58 to 59"]["calls"] == "2"


def test_the_command_reads_a_ledger_that_is_being_written_and_writes_every_figure(ledger, tmp_path, capsys):
    with open(ledger.path, "ab") as file:
        file.write(b'{"kind": "att')
    before = ledger.path.read_bytes()
    files = [str(tmp_path / name) for name in ("out.csv", "out.json")]
    assert main(["ledger", str(tmp_path / "run"), "--csv", files[0], "--json", files[1]]) == 0
    printed = capsys.readouterr().out
    assert "By phase" in printed and "cut short" in printed
    assert ledger.path.read_bytes() == before
    with open(files[0], encoding="utf-8") as file:
        rows = {(row["by"], row["key"]): row for row in csv.DictReader(file)}
    assert float(rows["worker", "a"]["spent_usd"]) == 0.75 and float(rows["step", "1"]["booked_usd"]) == 0.75
    with open(files[1], encoding="utf-8") as file:
        (run,) = json.load(file)
    assert run["all"]["spent_usd"] == 1.25 and run["by_step"]["2"]["calls"] == 1 and run["torn_lines"] == 1


def test_an_empty_ledger_and_a_missing_one(tmp_path, capsys):
    Ledger(tmp_path / "empty" / "ledger.jsonl").close()
    assert main(["ledger", str(tmp_path / "empty")]) == 0
    assert "Spent 0.000 USD" in capsys.readouterr().out
    assert main(["ledger", str(tmp_path / "nowhere")]) == 2
    assert "no ledger can be read" in capsys.readouterr().err
