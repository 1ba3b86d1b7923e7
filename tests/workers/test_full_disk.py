"""A disk that is full for a while: what was not taken whole is not there, and what is written later is whole."""

import os

import pytest

from rw.errors import CassetteError, JournalError, RwError, WorkdirError
from rw.types import CallId, CallStatus, WorkerCall
from rw.workers.cassette import Cassette
from rw.workers.journal import Journal
from rw.workers.ledger import Ledger, read_ledger
from rw.workers.lines import append_line, read_lines, write_line

from ..full_disk import room_for

CALL = CallId(1, 0, 0, 1, 0)
OTHER = CallId(1, 0, 0, 1, 1)
MADE_OF = {"w": {"model": "m", "input_price": 1.0, "output_price": 1.0}}


def reply(text):
    return WorkerCall("n1", "w", None, (), "s", text, 1, 2, 0.5, 0.1, 1, CallStatus.OK)


def test_a_line_is_appended_whole_or_not_at_all(tmp_path):
    path = tmp_path / "lines"
    first, second = write_line({"a": 1}), write_line({"b": "long enough to be cut"})
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    append_line(file, first)
    for room in range(len(first), len(first + second)):
        with room_for(room), pytest.raises(OSError):
            append_line(file, second)
        assert path.read_bytes() == first
    append_line(file, second)
    os.close(file)
    assert read_lines(path.read_bytes()) == ([{"a": 1}, {"b": "long enough to be cut"}], len(first + second))


@pytest.mark.parametrize("room", [0, 10, 200, 500])
def test_a_journal_goes_on_where_a_full_disk_has_room_again(tmp_path, room):
    journal = Journal(tmp_path, {"run": "r" * 100})
    failed = []
    with room_for(room):
        for call in (CALL, OTHER):
            try:
                journal.write_response(call, "digest", reply("text" * 50))
            except JournalError as error:
                failed.append(str(error))
    assert failed and all(f"cannot write to the journal {tmp_path}" in said for said in failed)
    journal.write_response(CALL, "digest", reply("later"))
    journal.close()
    assert Journal(tmp_path, {"run": "r" * 100}).response(CALL, "digest") == reply("later")


def test_a_ledger_loses_no_line_behind_one_that_was_cut(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", "run")
    ledger.sent(CALL, "w", 1, 0.5)
    size = ledger.path.stat().st_size
    with room_for(size + 20), pytest.raises(WorkdirError, match="cannot write to the ledger"):
        ledger.sent(OTHER, "w", 1, 0.5)
    ledger.attempt(CALL, "w", 1, 10, 20, 0.25, accepted=True)
    ledger.close()
    records, torn = read_ledger(ledger.path)
    assert ([record["kind"] for record in records], torn) == (["sent", "attempt"], 0)
    assert Ledger(ledger.path, "run").spent.total_usd == 0.25


def test_a_cassette_is_not_damaged_by_a_line_that_was_cut(tmp_path):
    path = tmp_path / "calls.jsonl"
    cassette = Cassette(path, MADE_OF, records=True, begins=True)
    with room_for(path.stat().st_size + 20), pytest.raises(CassetteError, match="cannot write to the cassette"):
        cassette.write("training", CALL, "digest", reply("first"))
    cassette.write("training", OTHER, "digest", reply("second"))
    cassette.close()
    assert Cassette(path, MADE_OF).take("training", OTHER, "digest") == reply("second")


def test_a_cassette_that_cannot_be_begun_is_begun_later(tmp_path):
    path = tmp_path / "calls.jsonl"
    with room_for(7), pytest.raises(RwError, match="cannot write to the cassette"):
        Cassette(path, MADE_OF, records=True, begins=True)
    Cassette(path, MADE_OF, records=True, begins=True).close()
    assert len(Cassette(path, MADE_OF)) == 0
