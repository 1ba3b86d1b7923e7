"""What several processes of a run share: limits of Workers, books, journals of one another."""

import pytest

from rw.errors import ConfigError
from rw.ledger import read_books
from rw.types import CallId, CallStatus
from rw.workdir import Workdir, own_files
from rw.worker_pool import with_shared_limits
from rw.workers.config import WorkerEndpoint
from rw.workers.journal import Journals
from rw.workers.ledger import Ledger
from rw.workers.spending import Spent

LIMITS = {"max_concurrent": 64, "requests_per_minute": 90.0, "tokens_per_minute": None}
WORKER = WorkerEndpoint("w", "", "http://127.0.0.1:1/v1", "m", input_price=1.0, output_price=2.0, **LIMITS)


def test_limits_of_a_worker_are_divided():
    shared = with_shared_limits(WORKER, 4)
    assert (shared.max_concurrent, shared.requests_per_minute, shared.tokens_per_minute) == (16, 22.5, None)
    assert with_shared_limits(WORKER, 1) == WORKER
    with pytest.raises(ConfigError, match="Worker w: max_concurrent=64 cannot be shared by 65 processes; raise it"):
        with_shared_limits(WORKER, 65)


def test_spending_of_several_ledgers_is_one_sum():
    one = Spent(1.0, 0.5, 0.25, {"a": 1.0}, {3: 0.75})
    two = Spent(2.0, 0.0, 0.0, {"a": 0.5, "b": 1.5}, {3: 0.25, 4: 1.0})
    assert Spent.sum([one, two]) == Spent(3.0, 0.5, 0.25, {"a": 1.5, "b": 1.5}, {3: 1.0, 4: 1.0})
    assert Spent.sum([]) == Spent() and one.by_worker_usd == {"a": 1.0}


def test_each_process_has_its_own_part_of_a_workdir_and_the_books_count_all(tmp_path):
    with Workdir(tmp_path / "run") as first, Workdir(tmp_path / "run", process=2) as third:
        assert third.file("best") == first.file("best")
        assert third.own_file("x") == tmp_path / "run" / "process_2" / "x"
        for number, workdir in enumerate((first, third), start=1):
            ledger = Ledger(workdir.own_file("ledger.jsonl"), run="run")
            ledger.attempt(CallId(1, 0, 0, 1, 0), "w", 1, 10, 5, 0.25 * number, accepted=True)
            ledger.call(CallId(1, 0, 0, 1, number), "w", CallStatus.OK, 1, 10, 5, 0.25 * number)
            ledger.close()
        assert first.files_of_others("ledger.jsonl") == [third.own_file("ledger.jsonl")]
        assert first.files_of_others("ledger.jsonl", beyond=3) == []
        assert third.files_of_others("ledger.jsonl") == [first.own_file("ledger.jsonl")]
    assert len(own_files(tmp_path / "run", "ledger.jsonl")) == 2
    assert read_books(tmp_path / "run").total.spent_usd == pytest.approx(0.75)


def test_a_journal_holds_what_other_processes_wrote_and_clears_up_only_after_those_that_are_no_more(tmp_path):
    own, living, gone = (tmp_path / name for name in ("own", "living", "gone"))
    for folder in (living, gone):
        journal = Journals(folder, {"run": "r"}).open("step_000001")
        journal.write_final(folder.name, 0, "answered", "4", {"correct": True, "detail": "", "tier": ""})
        journal.close()
    journals = Journals(own, {"run": "r"}, also=(living, gone), retired=(gone,))
    assert journals.scopes() == ["step_000001"]
    journal = journals.open("step_000001")
    assert journal.verdict("living", "4") and journal.verdict("gone", "4") and not journal.verdict("nobody", "4")
    journal.write_final("mine", 0, "answered", "5", None)
    journal.close()
    assert [path.name for path in (own / "step_000001").iterdir()] == ["segment_000001.jsonl"]
    journals.discard("step_000001")
    assert not (own / "step_000001").exists() and not (gone / "step_000001").exists()
    assert (living / "step_000001").exists()
