"""What processes tell each other, on a board in memory: rounds end alike for all, whoever stops."""

import asyncio
import errno
import pickle
import threading
import time

import numpy as np
import pytest

from rw import agreement
from rw import processes as module
from rw.errors import BudgetExhaustedError, WorkdirError
from rw.interrupts import StopRequested
from rw.processes import Processes, StoppedElsewhere
from rw.types import Group, Mode, Query
from rw.workdir import Workdir
from rw.workers.spending import Spent


class Board:
    """A board in memory."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def put(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key, timeout_s):
        with self.changed:
            self.changed.wait_for(lambda: key in self.values, timeout_s)
            return self.values.get(key)

    def look(self, prefix):
        with self.changed:
            return {key: value for key, value in self.values.items() if key.startswith(prefix)}

    def remove(self, key):
        with self.changed:
            del self.values[key]


@pytest.fixture
def three():
    board = Board()
    return [Processes(index, 3, board) for index in range(3)]


async def test_a_round_gives_all_values_to_all_in_order_and_leaves_nothing_behind(three):
    group = Group(1, Query("q", "simulated", "math", "?", "a"), Mode.MULTI, ())
    for value in (group, Spent(total_usd=1.5, by_step_usd={3: 1.5}), np.arange(3, dtype=np.int32), None, [(1, "é")]):
        found = await asyncio.gather(*(p.exchange((p.index, value)) for p in three))
        for values in found:
            assert [index for index, _ in values] == [0, 1, 2]
            assert all(str(other) == str(value) and type(other) is type(value) for _, other in values)
    assert len(three[0]._board.look("rw/round/")) == 3  # of the last round, which someone might still read


async def test_a_process_alone_needs_no_board():
    alone = Processes()
    assert await alone.exchange(5) == [5] and await alone.of_first(lambda: 6) == 6
    assert list(alone.share(range(7))) == list(range(7)) and alone.others([1]) == []
    with pytest.raises(BudgetExhaustedError):
        await alone.stop_together(BudgetExhaustedError("enough"))
    assert alone.is_agreed(ValueError())


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_shares_are_even_and_cover_everything_in_order(count):
    for size in (0, 1, 5, 8, 40):
        shares = [list(Processes(index, count).share(range(size))) for index in range(count)]
        assert sum(shares, []) == list(range(size))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


async def test_only_the_first_process_looks(three):
    asked = []
    found = await asyncio.gather(*(p.of_first(lambda i=p.index: asked.append(i) or i + 10) for p in three))
    assert found == [10, 10, 10] and asked == [0]


async def test_where_one_stops_all_stop_and_all_know_why(three):
    ends = await asyncio.gather(
        three[0].exchange("done"),
        three[1].stop_together(StopRequested(15)),
        three[2].exchange("done"),
        return_exceptions=True,
    )
    assert [type(end) for end in ends] == [StoppedElsewhere, StopRequested, StoppedElsewhere]
    assert {end.exit_code for end in ends} == {143}
    assert str(ends[0]) == "process 1: stopped by SIGTERM" == str(ends[2])
    assert all(p.is_agreed(end) for p, end in zip(three, ends, strict=True))
    assert not three[0].is_agreed(ValueError("another"))


async def test_an_error_of_one_ends_all_with_its_exit_code(three):
    ends = await asyncio.gather(
        three[0].stop_together(BudgetExhaustedError("enough")),
        three[1].stop_together(StopRequested(15)),
        three[2].exchange("done"),
        return_exceptions=True,
    )
    assert [type(end) for end in ends] == [BudgetExhaustedError, StopRequested, StoppedElsewhere]
    assert ends[2].exit_code == 5 and "enough" in str(ends[2])


async def test_a_message_cannot_name_what_no_message_of_ours_names(three):
    class Evil:
        def __reduce__(self):
            return (print, ("run by the reader",))

    three[0]._board.put("rw/round/1/1", pickle.dumps(("value", Evil())))
    with pytest.raises(pickle.UnpicklingError, match="names builtins.print"):
        await asyncio.gather(three[0].exchange(1), three[2].exchange(1))


async def test_processes_with_directories_of_their_own_are_refused(three, monkeypatch, tmp_path):
    monkeypatch.setattr(agreement, "SEEN_AFTER_S", 0)
    with Workdir(tmp_path / "a") as first, Workdir(tmp_path / "a", 1) as same, Workdir(tmp_path / "b", 2) as other:
        checks = [agreement.check_same_workdir(w, p) for w, p in zip((first, same, other), three, strict=True)]
        results = await asyncio.gather(*checks, return_exceptions=True)
    assert results[:2] == [None, None] and isinstance(results[2], WorkdirError)
    assert "process 2 does not see what process 0 writes" in str(results[2]) and "/b'" in str(results[2])


# As the watch's thread ends where the process would.
ends_its_thread = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def watched(monkeypatch, processes, on_stop=lambda stop: None, asked=lambda: None):
    """Ends of this process, as the watch would end it."""
    ends = []

    def end(text, exit_code=module.LOST_EXIT_CODE):
        ends.append((text, exit_code))
        raise SystemExit

    monkeypatch.setattr(module, "_end", end)
    monkeypatch.setattr(module, "_catch_abort", lambda function: None)
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.02)
    processes.watch(on_stop, asked)
    return ends


def until(condition, timeout=5):
    deadline = time.monotonic() + timeout
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


def test_a_stop_reaches_the_others_at_once_and_once(three, monkeypatch):
    stops = []
    watched(monkeypatch, three[2], stops.append)
    three[0].tell("process 0: stopped by SIGTERM", 143)
    until(lambda: stops)
    time.sleep(0.1)
    three[2].close()
    assert [(str(stop), stop.exit_code) for stop in stops] == [("process 0: stopped by SIGTERM", 143)]
    assert three[2].exit_code == 143  # also if the coordinator should go before this process


def test_what_a_process_is_asked_reaches_the_others_while_it_is_busy(three, monkeypatch):
    stops, signals = [], []
    watched(monkeypatch, three[2], stops.append)
    watched(monkeypatch, three[1], asked=lambda: signals[-1] if signals else None)
    time.sleep(0.1)
    assert not stops
    signals.append(StopRequested(15))
    until(lambda: stops)
    three[1].close()
    three[2].close()
    assert [(str(stop), stop.exit_code) for stop in stops] == [("process 1: stopped by SIGTERM", 143)]
    assert three[1].exit_code == three[2].exit_code == 143


@ends_its_thread
def test_an_error_of_a_device_program_waits_for_the_loss_that_caused_it(monkeypatch):
    board = Board()
    processes = Processes(1, 3, board, lost_after_s=0.3)
    board.put("rw/alive/2", b"17")  # and never again
    ends = watched(monkeypatch, processes)
    processes.wait_for_cause()
    assert [code for _, code in ends] == [8]


def test_an_error_of_a_device_program_is_its_own_where_all_others_live(monkeypatch):
    processes = Processes(1, 2, Board(), lost_after_s=0.2)
    ends = watched(monkeypatch, processes)
    processes.wait_for_cause()
    assert not ends
    processes.exit_code = 143
    with pytest.raises(SystemExit):  # of a job that stops, it is the end of another that broke it off
        processes.wait_for_cause()
    processes.close()
    assert [code for _, code in ends] == [143]


@ends_its_thread
def test_a_process_that_is_refused_before_it_watches_takes_the_others_with_it(three, monkeypatch):
    ends = watched(monkeypatch, three[1])
    three[2].close(OSError(errno.ENOSPC, "No space left on device"))
    until(lambda: ends)
    assert ends == [("process 2 failed: OSError: [Errno 28] No space left on device", 2)]


@ends_its_thread
def test_a_process_that_shows_no_sign_of_life_is_lost_but_one_that_has_left_is_not(monkeypatch):
    board = Board()
    processes = Processes(1, 3, board, lost_after_s=0.3)
    board.put("rw/alive/0", b"left")
    board.put("rw/alive/2", b"17")
    ends = watched(monkeypatch, processes)
    until(lambda: ends)
    assert ends[0][0].startswith("process 2 of 3 was lost: no sign of life for") and ends[0][1] == 8
    assert b"process 2 of 3 was lost" in board.values["rw/word/gone"]  # so that the others need not wait for it


@ends_its_thread
def test_a_process_that_fails_alone_takes_the_others_with_it(three, monkeypatch):
    ends = watched(monkeypatch, three[1])
    three[2]._watch = threading.Thread(target=lambda: None)
    three[2]._watch.start()
    three[2].close(BudgetExhaustedError("no room"))
    until(lambda: ends)
    assert ends == [("process 2 failed: BudgetExhaustedError: no room", 5)]
