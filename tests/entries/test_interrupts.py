"""The orderly end of a run, in a process of its own: on the main thread, and beside a loop that runs already."""

import pathlib
import signal
import subprocess
import sys

import pytest

from rw.cli import main

PROGRAM = """
import asyncio, os, signal, sys, threading, time
from rw.interrupts import StopRequested, run_in_loop

signal.signal(signal.SIGINT, signal.default_int_handler)  # as on a terminal; jobs in the background ignore it

async def body(interrupts):
    print("thread", threading.current_thread() is threading.main_thread(), flush=True)
    try:
        await interrupts.guard(wait())
    except StopRequested as stop:
        return stop.exit_code

async def wait():
    try:
        {told}
        await asyncio.sleep(60)
    finally:
        print("cleaned up", flush=True)

def start():
    began = time.monotonic()
    code = run_in_loop(body)
    assert time.monotonic() - began < 30
    return code

async def notebook():
    return start()

print("code", asyncio.run(notebook()) if sys.argv[1] == "notebook" else start())
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("signals are back")
"""
TOLD = "os.kill(os.getpid(), signal.SIGINT)"


def output(where: str, told: str = TOLD) -> list[str]:
    program = PROGRAM.format(told=told)
    done = subprocess.run([sys.executable, "-c", program, where], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("where, main", [("script", True), ("notebook", False)])
def test_an_interrupt_cancels_what_waits_and_ends_in_order(where, main):
    code = 128 + signal.SIGINT
    assert output(where) == [f"thread {main}", "cleaned up", f"code {code}", "signals are back"]


def test_a_signal_that_comes_twice_at_once_is_one_request_and_a_later_one_ends_it_all():
    again = "signal.raise_signal(signal.SIGINT)"
    code = 128 + signal.SIGINT
    assert output("script", f"{again}; {again}") == ["thread True", "cleaned up", f"code {code}", "signals are back"]
    program = PROGRAM.format(told=f"{again}; time.sleep(1.1); signal.raise_signal(signal.SIGTERM)")
    done = subprocess.run([sys.executable, "-c", program, "script"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "thread True\n")


@pytest.mark.parametrize("where, main", [("script", True), ("notebook", False)])
def test_what_ends_by_itself_returns_what_it_returns(where, main):
    with_error = output(where, told="raise StopRequested(signal.SIGTERM)")
    assert with_error == [f"thread {main}", "cleaned up", f"code {128 + signal.SIGTERM}", "signals are back"]


FOUND = """
import asyncio, pathlib, sys
from rw.interrupts import StopRequested, run_in_loop

async def body(interrupts):
    path = pathlib.Path(sys.argv[1])
    watching = asyncio.create_task(interrupts.watch(path))
    asyncio.get_running_loop().call_later(0.2, path.touch)
    try:
        await interrupts.guard(asyncio.sleep(60))
    except StopRequested as stop:
        print(stop, stop.exit_code)

run_in_loop(body)
"""


def test_a_file_that_appears_ends_in_order_too(tmp_path):
    path = tmp_path / "STOP"
    done = subprocess.run([sys.executable, "-c", FOUND, str(path)], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"stopped by {path}, which keeps the run from starting again until it is removed 7\n"


def test_a_run_does_not_start_beside_the_file_that_stops_it(tmp_path, capsys):
    (tmp_path / "STOP").touch()
    config = pathlib.Path(__file__).parent.parent / "data" / "configs" / "tiny.py"
    assert main(["train", "--config", str(config), "--workdir", str(tmp_path)]) == 7
    assert "STOP is there" in (error := capsys.readouterr().err) and "remove it" in error


BUSY = """
import asyncio, os, signal, time
from rw.interrupts import run_in_loop

async def body(interrupts):
    interrupts.grace_s = 0.5
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.1)
    {then}
    await asyncio.to_thread(time.sleep, 2)  # a step on a device, which nothing can cancel
    return 0

print("ended by itself", run_in_loop(body))
"""


def test_what_is_busy_beyond_its_grace_ends_with_the_code_of_the_signal():
    done = subprocess.run([sys.executable, "-c", BUSY.format(then="")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 128 + signal.SIGTERM and done.stdout == ""
    assert "rw: stopped by SIGTERM, and still busy 0 s later: this process ends as it stands" in done.stderr


def test_what_is_through_has_the_time_that_it_takes():
    program = BUSY.format(then="interrupts.close()")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ended by itself 0\n"), done.stderr
