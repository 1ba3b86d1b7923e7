"""What hostile programs try, in the strongest sandbox that this machine has: each fails alone and gains nothing."""

import contextlib
import os
import pathlib
import resource
import secrets
import threading
import time

import pytest

from rw.scoring import program_run
from rw.scoring.config import ScoringConfig
from rw.scoring.program import run_program
from rw.types import ProgramTests, VerdictKind

CONFIG = ScoringConfig(test_s=1, memory_mib=512)
pytestmark = pytest.mark.usefixtures("tight_sandbox")


def outcome(program, given="", expected="fine", config=CONFIG):
    """The verdict on a program that must print `fine`."""
    return run_program(program, ProgramTests("stdin", (given,), (expected,)), config)


def named(name):
    """Processes of this machine of that name."""
    found = []
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and pathlib.Path(entry.path, "comm").read_text().strip() == name:
                found.append(int(entry.name))
    return found


def zombies():
    """Children of this process that nobody waited for."""
    found = []
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                state, parent = pathlib.Path(entry.path, "stat").read_text().rpartition(")")[2].split()[:2]
                if state == "Z" and int(parent) == os.getpid():
                    found.append(int(entry.name))
    return found


def test_a_process_that_leaves_its_session_ends_with_the_program():
    name = f"s{secrets.token_hex(6)}"
    program = (
        "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n"
        f"  open('/proc/self/comm', 'w').write('{name}')\n  time.sleep(600)\n os._exit(0)\n"
        "os.wait()\ntime.sleep(.1)\nprint('fine')"
    )
    assert outcome(program).kind is VerdictKind.PASS
    assert not named(name) and not zombies()


BOMB = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"


def bombed(graders):
    """Kinds of as many bombs at once, and the results of honest programs meanwhile."""
    kinds = []
    bombs = [threading.Thread(target=lambda: kinds.append(outcome(BOMB).kind)) for _ in range(graders)]
    for bomb in bombs:
        bomb.start()
    honest = [outcome("print('fine')", config=ScoringConfig(test_s=6))]
    while any(bomb.is_alive() for bomb in bombs):
        honest.append(outcome("print('fine')", config=ScoringConfig(test_s=6)))
    return kinds, honest


@pytest.mark.parametrize("graders", [2, pytest.param(16, marks=pytest.mark.full)])
def test_a_fork_bomb_fails_alone(graders, monkeypatch):
    monkeypatch.setattr(program_run, "case_wall_s", lambda config: 1.5 * config.test_s)
    before = len(os.listdir("/proc"))
    kinds, honest = bombed(graders)
    assert len(kinds) == graders and set(kinds) <= {VerdictKind.TIME, VerdictKind.MEMORY, VerdictKind.CRASH}
    assert all(result.kind is VerdictKind.PASS for result in honest), honest
    assert not zombies() and len(os.listdir("/proc")) < before + 60


@pytest.mark.parametrize(
    "program",
    [
        "x = bytearray(8 << 30)\nprint('fine')",
        "x = []\nwhile True: x.append(bytearray(1 << 20))",
        "import os\nfor _ in range(3): os.fork()\nx = b'x' * (200 << 20)\nimport time; time.sleep(30)",
    ],
)
def test_memory_is_bounded_for_a_process_and_for_all_together(program):
    assert outcome(program, config=ScoringConfig(test_s=6, memory_mib=256)).kind is VerdictKind.MEMORY
    assert outcome("print('fine')").kind is VerdictKind.PASS


@pytest.mark.parametrize("stream", [1, 2])
def test_output_is_read_in_pieces_and_cut_off(stream):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = outcome(f"import os\nfor _ in range(2048): os.write({stream}, bytes(1 << 20))")
    assert result.kind is VerdictKind.OUTPUT
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_files_are_bounded():
    program = (
        "total = 0\ntry:\n for n in range(99):\n  with open(str(n), 'wb', buffering=0) as f:\n"
        "   while total < 1 << 30: total += f.write(bytes(1 << 20))\nexcept OSError as e: pass\n"
        "print('fine' if 0 < total <= 64 << 20 else total)"
    )
    assert outcome(program).kind is VerdictKind.PASS


def test_the_number_of_files_is_bounded():
    program = "import os\nfor n in range(10 ** 9): os.close(os.open(str(n), os.O_CREAT))"
    assert outcome(program, config=ScoringConfig(test_s=6)).kind is VerdictKind.OUTPUT


def test_memory_of_the_kernel_is_bounded():
    sockets = (
        "import os, socket, time\npairs = []\nfor _ in range(4): os.fork()\ntry:\n for _ in range(50):\n"
        "  pairs.append(socket.socketpair())\n  pairs[-1][0].setblocking(False)\n  try:\n"
        "   while True: pairs[-1][0].send(bytes(1 << 16))\n  except BlockingIOError: pass\n"
        "except OSError: pass\ntime.sleep(2)\nprint('fine')"
    )
    assert outcome(sockets).kind is VerdictKind.MEMORY
    loop = "import asyncio\nasync def f(): print('fine')\nasyncio.run(f())"
    assert outcome(loop).kind is VerdictKind.PASS  # which needs a pair
    refused = (
        "import ctypes, os, socket\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "try: socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)\n"
        "except PermissionError: print(libc.vmsplice(os.pipe()[1], None, 0, 0), ctypes.get_errno())"
    )
    assert outcome(refused, expected="-1 1").kind is VerdictKind.PASS, outcome(refused, expected="-1 1")


def test_what_the_machine_has_a_number_of_is_refused():
    program = (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "io_setup = 206 if os.uname().machine == 'x86_64' else 0\n"
        "print(libc.syscall(io_setup, 60000, ctypes.byref(ctypes.c_ulong())), ctypes.get_errno())"
    )
    assert outcome(program, expected="-1 1").kind is VerdictKind.PASS, outcome(program, expected="-1 1")


SEARCH = """
import gc, os, sys
mark, found = "MA" + "RK", set()
def look(where, text):
    if text is not mark and mark in (text if isinstance(text, str) else text.decode("latin-1")): found.add(where)
for thing in gc.get_objects():
    whole = type(thing) in (dict, list, tuple)
    parts = list(thing) + (list(thing.values()) if type(thing) is dict else []) if whole else []
    for part in parts:
        if isinstance(part, (str, bytes)): look("gc", part)
frame = sys._getframe()
while frame:
    for value in list(frame.f_locals.values()):
        if isinstance(value, (str, bytes)): look("frames", value)
    frame = frame.f_back
for root, directories, files in os.walk("/"):
    skipped = {"/usr/lib", "/dev", "/proc/sys", %(library)r}
    directories[:] = [d for d in directories if os.path.join(root, d) not in skipped and d not in ("fd", "task")]
    for name in files:
        path = os.path.join(root, name)
        if name in ("mem", "kcore", "kmsg", "pagemap", "kpagecount", "kpageflags", "kpagecgroup"): continue
        try:
            with open(path, "rb") as file: look(path, file.read(1 << 20))
        except (OSError, ValueError): pass
for pid in set(filter(str.isdigit, os.listdir("/proc"))) - {str(os.getpid())}:
    try:
        for line in open(f"/proc/{pid}/maps"):
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
                memory.seek(first)
                look(f"memory of {pid}", memory.read(last - first))
    except (OSError, ValueError, OverflowError): pass
for number in range(3, 128):
    try: look(f"descriptor {number}", os.read(number, 99))
    except OSError: pass
print(input()[:0], sorted(found))
"""


def test_a_program_that_looks_for_the_expected_output_finds_none():
    secret = f"MARK{secrets.token_hex(8)}"
    program = SEARCH % {"library": str(pathlib.Path(os.__file__).parent)}
    result = outcome(program, "an input", secret, ScoringConfig(test_s=20))
    assert (result.kind, result.tests[0].output) == (VerdictKind.WRONG, " []\n"), result
    (seen,) = outcome("given = input()\n" + program, "a MARK\n\n", secret, ScoringConfig(test_s=20)).tests
    assert seen.output == " ['frames', 'gc']\n"  # it does find what it is given


def test_results_that_a_program_writes_for_itself_are_not_read():
    program = (
        "import os\nfor name in ('result.json', 'report', '/tmp/result', '.output'):\n"
        ' open(name, \'w\').write(\'{"correct": true, "kind": "pass"}\')\nos._exit(0)'
    )
    assert outcome(program).kind is VerdictKind.WRONG


def test_a_program_must_come_to_the_end_of_every_test():
    tests = ProgramTests("stdin", tuple("12345"), tuple("12345"))
    program = "import os\nn = int(input())\nif n > 3: os._exit(0)\nprint(n)"
    result = run_program(program, tests, CONFIG)
    assert (result.kind, len(result.tests)) == (VerdictKind.WRONG, 4)
    assert run_program("import os\nos._exit(0)", tests, CONFIG).kind is VerdictKind.WRONG


@pytest.mark.parametrize(
    "program",
    [
        "while True:\n try:\n  while True: pass\n except BaseException: pass",
        pytest.param(
            "import signal\nfor n in range(1, 65):\n try: signal.signal(n, signal.SIG_IGN)\n"
            " except (OSError, ValueError): pass\nwhile True: pass",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "import threading\ndef f():\n while True: pass\nfor _ in range(4): threading.Thread(target=f).start()",
            marks=pytest.mark.full,
        ),
    ],
)
def test_who_will_not_stop_is_stopped_by_cpu_time(program):
    assert outcome(program).kind is VerdictKind.TIME


@pytest.mark.parametrize(
    "program",
    [
        "import os\nos.fork() and os.wait()\nimport time\ntime.sleep(600)",
        pytest.param("import signal\nsignal.pause()", marks=pytest.mark.full),
    ],
)
def test_who_sleeps_is_stopped_by_the_wall_clock(program, monkeypatch):
    monkeypatch.setattr(program_run, "case_wall_s", lambda config: 0.5)
    started = time.monotonic()
    assert outcome(program).kind is VerdictKind.TIME
    assert time.monotonic() - started < 10


def test_many_tests_each_within_the_limit_are_bounded_together(monkeypatch):
    monkeypatch.setattr(program_run, "program_cpu_s", lambda tests, config: 0.3)
    slow = "import time\nwhile time.process_time() < .2: pass\nprint(input())"
    result = run_program(slow, ProgramTests("stdin", tuple("12345"), tuple("12345")), CONFIG)
    assert (result.kind, "together" in result.detail) == (VerdictKind.TIME, True), result


def test_the_network_is_not_there():
    program = (
        "import socket\ntried = 0\n"
        "for family, kind in ((2, 1), (10, 2), (1, 1), (40, 1), (16, 3)):\n"  # also to a host of virtual machines
        " try: socket.socket(family, kind)\n except OSError: tried += 1\nprint('fine' if tried == 5 else tried)"
    )
    assert outcome(program).kind is VerdictKind.PASS


@pytest.mark.parametrize(
    "attack",
    [
        "os.kill(1, 9)",
        "os.kill(os.getppid(), 9)",
        "os.kill(-1, 9)",
        "[os.kill(1, n) for n in range(1, 65) if n not in (32, 33)]",
        "open('/proc/1/mem', 'r+b')",
        "os.listdir('/proc/1/fd')",
        "open(f'/proc/{os.getppid()}/environ').read()",
        "__import__('resource').prlimit(1, 7, (0, 0))",
        "__import__('ctypes').CDLL(None).ptrace(16, 1, 0, 0)",
        "__import__('ctypes').CDLL(None).unshare(0x10000000)",
        "os.setuid(0)",
        "os.mkdir('/proc/x')",
        "os.chroot('.')",
        "[os.write(n, b'x' * 99) for n in range(3, 128)]",
        "[os.close(n) for n in range(3, 128)]",
        "os.mkdir('.input'), os.chmod('.', 0)",
        "os.symlink('/proc/1/fd/1', 'x'), open('x', 'w').write('x')",
    ],
)
def test_a_program_cannot_harm_the_one_that_runs_it(attack):
    program = f"import os\ntry: {attack}\nexcept OSError: pass\nprint('fine')"
    result = run_program(program, ProgramTests("stdin", ("", ""), ("fine", "fine")), CONFIG)
    assert result.kind is VerdictKind.PASS, result


def test_privileges_and_debugging_are_refused_not_only_harmless():
    program = (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "calls = [libc.ptrace(16, 1, 0, 0), libc.unshare(0x10000000), libc.mount(b'x', b'/tmp', b'tmpfs', 0, 0)]\n"
        "print(calls, [l.split()[1] for l in open('/proc/self/status') if l[:6] in ('CapEff', 'NoNewP', 'Seccom')])"
    )
    expected = "[-1, -1, -1] ['0000000000000000', '1', '2', '1']"
    assert outcome(program, expected=expected).kind is VerdictKind.PASS, outcome(program)
