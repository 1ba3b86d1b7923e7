"""A sandbox from outside: starts it, talks with it, ends it, and believes nothing that comes out of it.

Synchronous, and every wait has an end. Knows nothing of programs and tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
import weakref
from typing import Any

from rw.scoring.sandbox_frames import HEADER_BYTES, LENGTHS, frame
from rw.scoring.sandbox_source import loaded
from rw.scoring.sandbox_tiers import start_of

START_S = 30.0  # until a sandbox must be ready, on a machine that is busy with others
_END_S = 5.0  # until a killed sandbox is gone


class SandboxFault(Exception):
    """The sandbox did not do its part: nothing was learnt of the program."""


class SandboxEnded(Exception):
    """The sandbox ended while the program ran."""


class SandboxGarbled(Exception):
    """What came out is no message."""


class SandboxLate(Exception):
    """Nothing came out in time."""


_started: weakref.WeakSet[Sandbox] = weakref.WeakSet()


class Sandbox:
    """One sandbox, for one program: start it, `await_ready`, `send` and `receive`, and `end` it in any case."""

    def __init__(self, tier: str):
        """Starts it, and does not wait until it is ready.

        To be called from a thread that outlives the sandbox: some kinds end with the thread that started them. All end
        when this process does, however it ends: they see that nobody holds their standard input any more.

        Raises SandboxFault where it cannot be started.
        """
        self.tier = tier
        self._first: int | None = None  # the first process inside, from the time that it is ready
        self._directory: str | None = None
        try:
            start = start_of(tier)
            self._directory = start.directory
            self._process = subprocess.Popen(
                start.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=start.environment,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            self._remove_directory()
            raise SandboxFault(f"{tier} does not start: {error}") from None
        self._code = loaded(start.call)
        _started.add(self)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            os.set_blocking(stream.fileno(), False)
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # the rest, or the fault, is for await_ready
            self._code = self._code[os.write(self._process.stdin.fileno(), self._code) :]

    def await_ready(self, timeout_s: float = START_S) -> None:
        """Waits until the sandbox takes a program; raises SandboxFault where it never does."""
        deadline = time.monotonic() + timeout_s
        try:
            self._write(self._code, deadline)
            header, _ = self.receive(deadline, 0)
            if "ready" not in header:
                raise SandboxGarbled
        except (SandboxEnded, SandboxGarbled, SandboxLate) as trouble:
            what = "is not ready in time" if isinstance(trouble, SandboxLate) else "ended before it was ready"
            raise SandboxFault(f"{self.tier} {what}: {self._last_words()}") from None
        if self._process.poll() is not None:
            raise SandboxFault(f"{self.tier} ended before it was given a program: {self._last_words()}")
        if self.tier != "limits":
            self._first = self._first_inside()

    def send(self, header: dict[str, Any], payload: bytes, deadline: float) -> None:
        """Sends a message; raises SandboxEnded, or SandboxLate where it is not taken by the deadline (monotonic)."""
        self._write(frame(header, payload), deadline)

    def receive(self, deadline: float, most: int) -> tuple[dict[str, Any], bytes]:
        """The next message, its payload of at most so many bytes.

        Raises SandboxEnded, SandboxLate, or SandboxGarbled for anything but a message.
        """
        head_bytes, payload_bytes = LENGTHS.unpack(self._read(LENGTHS.size, deadline))
        if head_bytes > HEADER_BYTES or payload_bytes > most:
            raise SandboxGarbled(f"a message of {head_bytes} + {payload_bytes} bytes")
        head, payload = self._read(head_bytes, deadline), self._read(payload_bytes, deadline)
        try:
            header = json.loads(head)
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict):
            raise SandboxGarbled("a header that is no object")
        return header, payload

    def forget(self) -> None:
        """In a fork of the process that started it: lets go of its pipes, and leaves it alone."""
        self._process.returncode = 0  # so that nothing here waits for what is not this process's child
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            stream.close()

    def end(self) -> None:
        """Ends all processes inside and reaps the one outside; may be called twice."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # the first process inside leaves as soon as it sees this, or gets so far
        if self._first is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)  # and with it all of its namespace
            os.close(self._first)
            self._first = None
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            # Never the one outside alone: while it starts, the one inside waits for its word, then for ever.
            for child in self._children():
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._process.stderr.close()
        self._remove_directory()

    def _remove_directory(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _first_inside(self) -> int:
        """A descriptor of the first process inside: the child of the one outside."""
        try:
            (child,) = self._children()
            return os.pidfd_open(child)
        except (OSError, ValueError) as error:
            raise SandboxFault(f"{self.tier}: its first process is not found: {error}") from None

    def _children(self) -> list[int]:
        outside = self._process.pid
        try:
            with open(f"/proc/{outside}/task/{outside}/children") as file:
                return [int(word) for word in file.read().split()]
        except OSError:
            return []

    def _last_words(self) -> str:
        """What the one outside says of its failure; the program cannot write there."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        with contextlib.suppress(OSError):
            words = (os.read(self._process.stderr.fileno(), 1 << 12) or b"").decode(errors="replace").strip()
            return words.splitlines()[-1] if words else f"exit status {self._process.returncode}"
        return f"exit status {self._process.returncode}"

    def _write(self, content: bytes, deadline: float) -> None:
        view, descriptor = memoryview(content), self._process.stdin.fileno()
        while view:
            self._await(descriptor, select.POLLOUT, deadline)
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                continue
            except OSError:
                raise SandboxEnded from None

    def _read(self, size: int, deadline: float) -> bytes:
        parts, descriptor = [], self._process.stdout.fileno()
        while size:
            self._await(descriptor, select.POLLIN, deadline)
            try:
                part = os.read(descriptor, min(size, 1 << 20))
            except BlockingIOError:
                continue
            if not part:
                raise SandboxEnded
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    @staticmethod
    def _await(descriptor: int, event: int, deadline: float) -> None:
        poller = select.poll()
        poller.register(descriptor, event)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise SandboxLate


def _forget_all() -> None:
    """In a fork: they are the parent's, and end when it does only if nobody else holds their pipes open."""
    for sandbox in list(_started):
        sandbox.forget()
    _started.clear()


os.register_at_fork(after_in_child=_forget_all)
