"""The child that comparisons run in: watched from outside, restarted, never inherited, never left behind."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from rw.scoring import timed

DATA = pathlib.Path(__file__).parent.parent / "data" / "scorers"


@pytest.fixture
def child(monkeypatch):
    monkeypatch.syspath_prepend(str(DATA))
    process = timed.TimedProcess("children_for_tests", start_s=60)
    yield process
    process.close()


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie counts as running, for nobody has waited for it."""
    return pathlib.Path(f"/proc/{pid}").exists()


def test_replies_are_the_childs_own_and_it_is_started_once(child):
    assert child.pid is None
    first = child.ask({}, 10)
    assert first == child.pid != os.getpid()
    assert child.ask({"echo": ["\ud800\x00é", 1.5, None]}, 10) == ["\ud800\x00é", 1.5, None]
    assert child.ask({"echo": "x" * 100_000}, 10) == "x" * 100_000
    assert child.ask({}, 10) == first


def test_too_much_for_the_child_to_answer_is_no_reply_and_harms_nothing(child):
    pid = child.ask({}, 10)
    assert child.ask({"raise": "anything"}, 10) is None
    assert child.ask({"deep": 0}, 10) is None
    assert child.ask({"allocate": 4 << 30}, 10) is None
    assert child.ask({}, 10) == pid


def test_what_takes_too_long_is_killed_and_reaped_and_the_next_request_has_a_new_child(child):
    first = child.ask({}, 10)
    began = time.monotonic()
    with pytest.raises(timed.TookTooLong, match=r"more than 0\.2 s"):
        child.ask({"sleep": 1000}, 0.2)
    assert time.monotonic() - began < 30
    assert child.pid is None and not lives(first)
    assert child.ask({"echo": 1}, 10) == 1


def test_a_child_that_died_is_replaced_and_one_that_always_dies_is_reported(child):
    os.kill(child.ask({}, 10), signal.SIGKILL)
    assert child.ask({"echo": 2}, 10) == 2
    with pytest.raises(timed.ChildDied, match="died twice"):
        child.ask({"die": 3}, 10)
    assert child.ask({"echo": 3}, 10) == 3


def test_a_child_that_cannot_start_is_no_fault_of_the_request(child):
    missing = timed.TimedProcess("no_such_module_anywhere", start_s=60)
    with pytest.raises(timed.ChildNotStarted, match="no_such_module_anywhere"):
        missing.ask({}, 10)
    assert missing.pid is None


def test_the_child_has_no_keys_and_neither_jax_nor_an_algebra(child, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    environment = child.ask({"about": "environment"}, 10)
    assert set(environment) <= {"PYTHONPATH", "PYTHONHASHSEED", "LC_ALL", "LC_CTYPE"}
    assert not {"jax", "jaxlib", "numpy.random", "sympy", "math_verify"} & set(child.ask({"about": "modules"}, 10))


def test_threads_share_a_child_one_at_a_time(child):
    child.ask({}, 10)
    replies = {}

    def ask(number):
        replies[number] = child.ask({"echo": number}, 10)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == {number: number for number in range(8)}


def test_a_fork_does_not_touch_the_original_child(child):
    original = child.ask({}, 10)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:  # the copy must start a child of its own, and end it
        own = child.ask({}, 10)
        child.close()
        os.write(write, f"{own} {int(lives(own))}".encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    own, survived = os.read(read, 100).decode().split()
    os.close(read)
    assert int(own) not in (original, pid) and survived == "0"
    assert child.ask({}, 10) == original


SCRIPT = textwrap.dedent(
    """
    import sys, threading
    from rw.scoring import timed
    child = timed.TimedProcess("children_for_tests")
    print(child.ask({}, 10), flush=True)
    if sys.argv[1] == "busy":
        child.ask({"spin": 1}, 1)
    """
)


def run_script(mode: str) -> tuple[subprocess.Popen, int]:
    search_path = os.pathsep.join([str(DATA), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, mode],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": search_path},
        text=True,
    )
    return process, int(process.stdout.readline())


def ended(pid: int, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while lives(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not lives(pid)


def test_nothing_is_left_when_the_interpreter_exits():
    process, child_pid = run_script("idle")
    assert process.wait(30) == 0
    process.stdout.close()
    assert ended(child_pid, 10)


@pytest.mark.full
def test_a_busy_child_of_a_killed_process_ends_by_its_own_cpu_limit():
    process, child_pid = run_script("busy")
    process.kill()
    process.wait(30)
    process.stdout.close()
    assert ended(child_pid, 60)
