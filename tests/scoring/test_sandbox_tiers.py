"""Every way of isolating, the search for the strongest one, and what happens where a sandbox fails."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from rw.errors import SandboxError
from rw.scoring import sandbox, sandbox_pool, sandbox_process, sandbox_source, sandbox_tiers
from rw.scoring.config import ScoringConfig
from rw.scoring.program import program_scorer, run_program
from rw.scoring.sandbox import Tier, strongest_tier, tried_tier
from rw.types import ProgramTests, Query, VerdictKind

ROOT = pathlib.Path(__file__).parent.parent.parent
CONFIG = ScoringConfig(test_s=1, memory_mib=512)
FINE = ProgramTests("stdin", ("4", "5"), ("5", "6"))
NEXT = "print(int(input()) + 1)"


@pytest.fixture(params=sandbox_tiers.TIERS)
def tier(request):
    found, why = tried_tier(request.param)
    if found is None:
        pytest.skip(why)
    return found


def test_every_tier_that_works_runs_programs_and_stops_them(tier):
    def kind(program, tests=FINE):
        return run_program(program, tests, CONFIG, tier=tier).kind

    assert kind(NEXT) is VerdictKind.PASS
    assert kind("print(1)") is VerdictKind.WRONG
    assert kind("1 / 0") is VerdictKind.CRASH
    assert kind("x = bytearray(8 << 30)") is VerdictKind.MEMORY
    assert kind("while True: print('x' * 9999)") is VerdictKind.OUTPUT
    assert kind("import socket\nsocket.socket()") is VerdictKind.CRASH
    assert kind("def f(x): return x * 2", ProgramTests("function", ((3,),), (6,), function="f")) is VerdictKind.PASS
    assert kind("def f(x): return x * 2", ProgramTests("asserts", ("assert f(3) == 6",))) is VerdictKind.PASS


def test_the_same_program_gives_the_same_output_every_time(tier):
    program = (
        "import os, time, locale\nprint(hash('a'), time.tzname, locale.getpreferredencoding(), os.environ, {*'abc'})"
    )
    outputs = {run_program(program, FINE, CONFIG, tier=tier).tests[0].output for _ in range(2)}
    assert len(outputs) == 1 and "environ({})" in outputs.pop()


@pytest.mark.usefixtures("tight_sandbox")
def test_isolated_tiers_are_tight_and_limits_alone_are_not():
    for name in ("bubblewrap", "namespaces"):
        assert tried_tier(name)[0] is None or tried_tier(name)[0].leaks == (), tried_tier(name)
    if tried_tier("limits")[0] is not None:
        assert {"files of this machine", "sight of other processes"} <= set(tried_tier("limits")[0].leaks)


UNPRIVILEGED = """
import os
from rw.scoring import program, sandbox, sandbox_runtime, sandbox_tiers
import concurrent.futures.thread
from rw.scoring.config import ScoringConfig
from rw.types import ProgramTests
os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)
python = %r
if python: sandbox_tiers.runtime = lambda: sandbox_runtime.runtime_of(python)
for name in sandbox_tiers.TIERS:
    tier, why = sandbox.tried_tier(name)
    if tier is None: print(name, None, why); continue
    kinds = [program.run_program(p, ProgramTests("stdin", ("4",), ("5",)), ScoringConfig(), tier=tier).kind for p in
             ("print(int(input()) + 1)", "import os\\nfor _ in range(99): os.fork()", "x = bytearray(8 << 30)")]
    print(name, sorted(tier.leaks), *kinds)
"""


def readable_python():
    """An interpreter like ours that every user may start: '' for ours itself, None where there is none."""
    from rw.scoring.sandbox_runtime import runtime
    from rw.scoring.sandbox_tiers import open_to_all

    if open_to_all(runtime().shown):
        return ""
    other = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")
    return other


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
@pytest.mark.usefixtures("tight_sandbox")
def test_an_unprivileged_user_has_the_same_tiers():
    python = readable_python()
    if python is None:
        pytest.skip("no interpreter that other users may start")
    if not sandbox_tiers.open_to_all((sandbox_tiers.__file__,)):
        pytest.skip("no other user may read rw here")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SECRET": "x"}
    ran = subprocess.run([sys.executable, "-c", UNPRIVILEGED % python], capture_output=True, text=True, env=environment)
    found = dict(line.split(" ", 1) for line in ran.stdout.splitlines())
    assert set(found) == set(sandbox_tiers.TIERS), ran.stderr
    assert "[] pass crash memory" in (found["bubblewrap"], found["namespaces"]), found
    assert "files of this machine" in found["limits"] and found["limits"].endswith("pass crash memory"), found


def test_nothing_but_limits_is_refused_unless_asked_for(monkeypatch):
    weak = Tier("limits", ("network", "files of this machine"))
    tiers = {"bubblewrap": (None, "bwrap is not installed"), "namespaces": (None, "no"), "limits": (weak, "")}
    monkeypatch.setattr(sandbox, "tried_tier", tiers.get)
    with pytest.raises(SandboxError, match=r"bwrap is not installed; no.*Install bubblewrap.*allow_weak_sandbox=true"):
        strongest_tier()
    assert strongest_tier(allow_weak=True) == weak and "weak: network" in str(weak)
    monkeypatch.setattr(sandbox, "tried_tier", lambda name: (None, "no"))
    with pytest.raises(SandboxError):
        strongest_tier(allow_weak=True)


def test_a_failure_of_all_tiers_is_not_for_ever(monkeypatch):
    def failing(tier):
        raise sandbox.SandboxFault("no more processes")

    monkeypatch.setattr(sandbox, "_tried", {})
    monkeypatch.setattr(sandbox, "leaks", failing)
    with pytest.raises(SandboxError, match="no more processes"):
        strongest_tier()
    monkeypatch.setattr(sandbox, "leaks", lambda tier: ())
    assert strongest_tier() == Tier("bubblewrap")


@pytest.fixture
def fresh_pools():
    sandbox_pool.close_pools()
    yield
    sandbox_pool.close_pools()


def test_a_sandbox_that_does_not_start_is_no_verdict_on_the_program(monkeypatch, fresh_pools):
    def broken(tier):
        return sandbox_tiers.Start(("/bin/sh", "-c", "echo no namespaces here >&2; exit 1"), {}, "")

    monkeypatch.setattr(sandbox_process, "start_of", broken)
    result = run_program(NEXT, FINE, CONFIG, tier=Tier("bubblewrap"))
    assert result.kind is VerdictKind.SANDBOX_FAULT and "no namespaces here" in result.detail
    query = Query("q", "apps", "code", "?", FINE)
    monkeypatch.setattr("rw.scoring.program.strongest_tier", lambda allow_weak: Tier("bubblewrap"))
    verdict = program_scorer(CONFIG)(NEXT, query)
    assert (verdict.correct, verdict.kind) == (False, VerdictKind.SANDBOX_FAULT)


@pytest.mark.usefixtures("tight_sandbox")
def test_a_failed_start_is_tried_once_more(monkeypatch, fresh_pools):
    calls, start = [], sandbox_process.start_of

    def failing_once(tier):
        calls.append(tier)
        return start(tier) if len(calls) > 1 else sandbox_tiers.Start(("/bin/false",), {}, "")

    monkeypatch.setattr(sandbox_process, "start_of", failing_once)
    assert run_program(NEXT, FINE, CONFIG, tier=strongest_tier()).kind is VerdictKind.PASS


@pytest.mark.usefixtures("tight_sandbox")
def test_sandboxes_that_died_while_they_waited_are_replaced(fresh_pools):
    pool = sandbox_pool.pool(strongest_tier().name)
    pool.take().end()
    time.sleep(0.3)
    for future in list(pool._starting):
        future.result()._process.kill()
        future.result()._process.wait()
    assert run_program(NEXT, FINE, CONFIG).kind is VerdictKind.PASS


@pytest.mark.usefixtures("tight_sandbox")
def test_a_sandbox_lost_with_its_program_is_tried_once_more_then_a_crash(monkeypatch, fresh_pools):
    lost, begin = [], sandbox_process.Sandbox.send

    def losing(self, header, payload, deadline):
        begin(self, header, payload, deadline)
        if header["do"] == "stdin" and len(lost) < most:
            lost.append(self)
            signal.pidfd_send_signal(self._first, signal.SIGKILL)

    monkeypatch.setattr(sandbox_process.Sandbox, "send", losing)
    sleepy = "import time\ntime.sleep(.2)\n" + NEXT
    most = 1
    assert run_program(sleepy, FINE, CONFIG).kind is VerdictKind.PASS
    most = 3
    assert run_program(sleepy, FINE, CONFIG).kind is VerdictKind.CRASH


def descendants_of(pid):
    found = []
    for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(word) for word in children.read_text().split()]
    return found + [below for child in found for below in descendants_of(child)]


def gone_within(pids, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        alive = [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]
        if not alive:
            return True
        time.sleep(0.02)
    return False


OWNER = """
import threading, time
from rw.scoring.config import ScoringConfig
from rw.scoring.program import run_program
from rw.scoring.sandbox import Tier
from rw.types import ProgramTests
def run(program): return run_program(program, ProgramTests("stdin", ("4",), ("5",)), ScoringConfig(), tier=Tier(%r))
assert run("print(5)").kind == "pass"
threading.Thread(target=run, args=("import os, time\\nos.fork()\\nos.setsid()\\ntime.sleep(60)",), daemon=True).start()
time.sleep(.5)
print("busy", flush=True)
%s
"""


@pytest.mark.parametrize("end", ["killed", pytest.param("ends", marks=pytest.mark.full)])
def test_no_sandbox_outlives_its_owner(end, tier):
    then = "time.sleep(60)" if end == "killed" else ""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", OWNER % (tier.name, then)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout.readline() == "busy\n"
        pids = descendants_of(owner.pid)
        if end == "killed":
            owner.send_signal(signal.SIGKILL)
        owner.wait(20)
    assert (len(pids) >= 3 or end == "ends") and gone_within(pids, 5), pids


@pytest.mark.usefixtures("tight_sandbox")
@pytest.mark.parametrize("after_s", [0, 0.002, 0.004, 0.008, 0.015])
def test_a_sandbox_that_is_ended_while_it_starts_leaves_nothing(after_s):
    for name in ("bubblewrap", "namespaces"):
        if tried_tier(name)[0] is not None:
            one = sandbox_process.Sandbox(name)
            time.sleep(after_s)
            pids = [one._process.pid, *descendants_of(one._process.pid)]
            one.end()
            assert gone_within(pids, 0.1)


STARTING = """
import os, signal, time
from rw.scoring.sandbox_process import Sandbox
kept = [Sandbox(%r) for _ in range(3)]
time.sleep(%r)
os.kill(os.getpid(), signal.SIGKILL)
"""


def orphans():
    """Sandboxes of this machine, and what starts them, whose parent is gone."""
    found = set()
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError, IndexError):
            if (
                entry.name.isdigit()
                and sandbox_source.LOADER.encode() in pathlib.Path(entry.path, "cmdline").read_bytes()
            ):
                parent = pathlib.Path(entry.path, "stat").read_text().rpartition(")")[2].split()[1]
                found |= {int(entry.name)} if parent == "1" else set()
    return found


@pytest.mark.full
@pytest.mark.parametrize("after_s", [0, 0.003, 0.006, 0.01])
def test_an_owner_killed_while_sandboxes_start_leaves_none(after_s, tier):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    before = orphans()
    command = [sys.executable, "-c", STARTING % (tier.name, after_s)]
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    time.sleep(0.5)
    assert gone_within(orphans() - before, 5)


FORKED = """
import os
from rw.scoring.config import ScoringConfig
from rw.scoring.program import run_program
from rw.types import ProgramTests
def fine(): return run_program("print(5)", ProgramTests("stdin", ("4",), ("5",)), ScoringConfig()).kind == "pass"
first = fine()
child = os.fork()
if child == 0: os._exit(0 if fine() else 1)
print(first, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), fine())
"""


@pytest.mark.usefixtures("tight_sandbox")
def test_a_forked_process_has_sandboxes_of_its_own():
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, env=environment, timeout=60)
    assert ran.stdout == "True 0 True\n", ran.stderr


def test_the_code_inside_needs_nothing_but_the_standard_library():
    texts = [(ROOT / "rw" / "scoring" / f"{name}.py").read_text() for name in sandbox_source.MODULES]
    defined = [
        line.split("(")[0].split(":")[0].split("=")[0].strip()
        for text in texts
        for line in text.splitlines()
        if line.startswith(("def ", "class ", "_")) or (line[:1].isupper() and "=" in line)
    ]
    assert len(defined) == len(set(defined)), "two modules define the same name, and inside they are one"
    for line in "\n".join(texts).splitlines():
        if line.startswith(("import ", "from ")) and not line.startswith("from rw."):
            assert line.split()[1].strip(",").split(".")[0] in sys.stdlib_module_names
        assert not (line.startswith("from rw.") and line.endswith("(")), f"an import of several lines: {line}"


def test_the_code_inside_fits_into_a_pipe_that_nobody_reads_yet():
    assert len(sandbox_source.loaded("x" * 9999)) < 1 << 16
