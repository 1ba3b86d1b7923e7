"""The first process inside a sandbox: it takes one program and runs it on one test after another, each in a fork.

Runs inside (see `sandbox_source`): the standard library alone, no expected output, nothing of the machine outside.
Where it has a process namespace it is process 1 there, so that its children can neither kill nor debug it. It ends as
soon as who grades is gone.

Messages in: `program` (source, setup, …), which is kept and answered by `held`, and tests of any kind of
`program_inside` with their limits (the payload is the input). Out: `ready` once, then an `ended` for each test. A test
with `session` talks over the same pipes itself while it lives.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import sys
import time
from typing import Any

from rw.scoring.program_inside import run_test
from rw.scoring.sandbox_confinement import confine, debuggable, limit
from rw.scoring.sandbox_frames import read_frame, write_frame

_TICK_S = 0.05  # between looks at the memory of all processes together
_FILES = 4096  # of all tests; each, however empty, is a piece of the kernel's memory that no other limit counts
_SOCKETS = 64  # what lies in a pair of them is the kernel's memory, too
_ERROR_BYTES = 4096  # kept of what a program writes to standard error
_PAGE = os.sysconf("SC_PAGE_SIZE")


def serve(user: int | None) -> None:
    """Serves messages on standard input until there are no more."""
    channel = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)  # with a handler, process 1 would take signals from its children
    os.environ.clear()
    sys.set_int_max_str_digits(0)
    gc.freeze()  # or the children's collections copy every page that they share with this process
    write_frame(channel[1], {"ready": confine(user)})
    program: dict[str, Any] = {}
    while (message := read_frame(channel[0])) is not None:
        header, payload = message
        if header["do"] == "program":
            program = header | {"source": payload.decode("utf-8", "surrogatepass")}
            write_frame(channel[1], {"held": True})
            continue
        _clear_directory()
        run = _Run(header, payload)
        if (child := os.fork()) == 0:
            run_test(header, program, payload, run.become_child(channel), channel)
        write_frame(channel[1], *run.watch(child, channel[0]))


class _Run:
    """One fork: its pipes, and what becomes of it."""

    def __init__(self, header: dict[str, Any], payload: bytes):
        self.header = header
        name = f".input-{os.urandom(8).hex()}"  # that no test before can have taken
        self.input = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        os.unlink(name)
        _write_all(self.input, payload)
        os.lseek(self.input, 0, os.SEEK_SET)
        self.pipes = [os.pipe() for _ in range(3)]  # output, error, report

    def become_child(self, channel: tuple[int, int]) -> int:
        """In the fork: the program's standard streams and limits; the descriptor of its report."""
        os.setsid()
        debuggable()
        (_, output), (_, error), (_, report) = self.pipes
        for number, descriptor in enumerate((self.input, output, error)):
            os.dup2(descriptor, number)
        kept = {report, *channel} if self.header.get("session") else {report}
        for descriptor in range(3, max(report, self.input, *channel) + 1):
            if descriptor not in kept:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
            stream = open(number, mode, encoding="utf-8", errors="surrogateescape", closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        limit(*(self.header[name] for name in ("cpu_s", "memory", "file_bytes", "processes")))
        return report

    def watch(self, child: int, commands: int) -> tuple[dict[str, Any], bytes]:
        """In the parent: reads what the child writes and ends it at its limits; the `ended` message."""
        os.close(self.input)
        for _, writing in self.pipes:
            os.close(writing)
        readers = [reading for reading, _ in self.pipes]
        texts = {descriptor: bytearray() for descriptor in readers}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        stopped = self._wait(child, commands, texts)
        status = _end_all(child)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        for descriptor in readers:  # nobody writes any more, so each has an end
            while not stopped and (part := os.read(descriptor, 1 << 16)):
                texts[descriptor] += part
                if sum(map(len, texts.values())) > self.header["output_bytes"]:
                    stopped = "output"
            os.close(descriptor)
        output, error, report = (bytes(texts[descriptor]) for descriptor in readers)
        error = error[-_ERROR_BYTES:]
        header = {
            "ended": True,
            "stopped": stopped,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
            "status": os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0,
            "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "sizes": [len(output), len(error), len(report)],
        }
        return header, output + error + report

    def _wait(self, child: int, commands: int, texts: dict[int, bytearray]) -> str:
        """Returns when the child has ended, or why it must."""
        ended = os.pidfd_open(child)
        poller = select.poll()
        for descriptor in (*texts, ended):
            poller.register(descriptor, select.POLLIN)
        poller.register(commands, 0)  # only whether who grades is still there
        looked, room = time.monotonic(), self.header["output_bytes"]
        try:
            while True:
                events = dict(poller.poll(_TICK_S * 1000))
                if events.get(commands, 0) & (select.POLLHUP | select.POLLERR):
                    _end_all(child)
                    os._exit(0)
                for descriptor in texts.keys() & events.keys():
                    part = os.read(descriptor, 1 << 16)
                    texts[descriptor] += part
                    room -= len(part)
                    if not part:
                        poller.unregister(descriptor)
                if room < 0:
                    return "output"
                if ended in events:
                    return ""
                if time.monotonic() - looked > _TICK_S:
                    if _more_resident_than(self.header["memory"]) or (os.getpid() == 1 and _sockets() > _SOCKETS):
                        return "memory"
                    if os.getpid() == 1 and _files() > _FILES:
                        return "output"
                    looked = time.monotonic()
        finally:
            os.close(ended)


def _more_resident_than(most: int) -> bool:
    """Whether all processes here but this one hold more than `most` bytes of memory; what several share counts once.

    The cheap sum counts what forks share for each of them; only where that is too much are the shares asked for.
    """
    total = exact = 0
    for process in _others():
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{process}/statm") as file:
                total += int(file.read().split()[1]) * _PAGE
    if total <= most:
        return False
    for process in _others():
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{process}/smaps_rollup") as file:
            exact += sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
    return exact > most


def _files() -> int:
    """Files and directories in the file system of the working directory, which is the sandbox's own."""
    system = os.statvfs(".")
    return system.f_files - system.f_ffree


def _sockets() -> int:
    """Sockets in this network namespace, which is the sandbox's own."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/net/sockstat") as file:
        return int(file.readline().split()[2])  # sockets: used 4
    return 0


def _others() -> list[int]:
    """Processes started from this one: all of its namespace, or where it has none, its descendants."""
    if os.getpid() == 1:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    found, last = [], [os.getpid()]
    while last:
        below = []
        for process in last:
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{process}/task"):
                    with open(f"/proc/{process}/task/{thread}/children") as file:
                        below += [int(word) for word in file.read().split()]
        found += below
        last = below
    return found


def _end_all(child: int) -> int:
    """Kills all that was started and reaps it; the wait status of the child."""
    status = 0
    while True:
        if os.getpid() == 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # all but process 1 at one stroke: none can fork its way out
        else:
            for process in _others():
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)
        try:
            process, ended = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if process == child:
            status = ended


def _clear_directory() -> None:
    """Removes what a test before left in the working directory, also in directories that it closed."""
    if os.listdir("."):
        for root, directories, _ in os.walk("."):
            for path in (os.path.join(root, name) for name in directories):
                if not os.path.islink(path):
                    with contextlib.suppress(OSError):
                        os.chmod(path, 0o700)
        for root, directories, files in os.walk(".", topdown=False):
            for path in (os.path.join(root, name) for name in (*files, *directories)):
                with contextlib.suppress(OSError):
                    remove = os.rmdir if os.path.isdir(path) and not os.path.islink(path) else os.unlink
                    remove(path)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
