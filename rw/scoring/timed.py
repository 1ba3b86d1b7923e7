"""A long-lived child interpreter for what cannot be bounded from inside: algebra on texts that strangers wrote.

The child is a fresh interpreter, never a fork: a fork of a process that holds a device's threads may deadlock. It gets
none of the parent's environment, and what runs in it is watched from outside by wall clock. Knows nothing of scoring.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import resource
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

_START_S = 120.0  # a cold import of a large library on a loaded machine
_REPLY_BYTES = 1 << 20


class TookTooLong(Exception):
    """The child was still at work when its time was up, and was killed."""


class ChildDied(Exception):
    """The child ended while it was at work, twice in a row on one request."""


class ChildNotStarted(Exception):
    """No child could be had, so nothing is known of the request."""


class TimedProcess:
    """One child that answers JSON requests one by one, each within a time limit; started when first needed.

    Threads may share it (they wait for each other, and waiting is not counted). A forked copy of this process starts a
    child of its own. Whoever is killed with a request at work leaves a child that ends by its own limit of CPU time.
    """

    def __init__(self, module: str, start_s: float = _START_S):
        """`module` is run as a script: it must call `serve` with the function that answers a request."""
        self.module = module
        self.start_s = start_s
        self._process: subprocess.Popen | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()
        reference = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget(reference))
        atexit.register(_close, reference)

    def ask(self, request: dict[str, Any], timeout_s: float) -> Any:
        """The child's answer to `request`, a JSON value both ways.

        Raises:
            TookTooLong: more than `timeout_s` seconds of wall clock; the child is killed and reaped.
            ChildDied: it ended by itself (out of memory, a fault of its interpreter) and did so again.
            ChildNotStarted: it could not be started, or was not ready after `start_s` seconds.
        """
        line = json.dumps({"request": request, "timeout_s": timeout_s}).encode("ascii") + b"\n"
        with self._lock:
            for _ in range(2):  # whatever ended the first child may have had nothing to do with this request
                if self._process is None:
                    self._start()
                try:
                    self._process.stdin.write(line)
                    return json.loads(self._read(timeout_s))
                except TimeoutError:
                    self._stop()
                    raise TookTooLong(f"more than {timeout_s:g} s") from None
                except (OSError, EOFError, ValueError):
                    self._stop()
                except BaseException:  # an interrupt: a late reply must not be taken for the next one's
                    self._stop()
                    raise
        raise ChildDied(f"{self.module} died twice")

    def close(self) -> None:
        """Ends the child; a later request starts another."""
        with self._lock:
            self._stop()

    @property
    def pid(self) -> int | None:
        """Process id of the child, if there is one."""
        return None if self._process is None else self._process.pid

    def _start(self) -> None:
        search_path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        # A fixed hash seed: the order in which sets are walked decides how far some simplifications get.
        environment = {"PYTHONPATH": search_path, "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env=environment,
                start_new_session=True,  # an interrupt at the keyboard is the parent's to handle
            )
        except OSError as error:
            raise ChildNotStarted(f"{self.module}: {error}") from error
        try:
            self._read(self.start_s)
        except (OSError, EOFError, ValueError) as error:  # TimeoutError is an OSError
            status = self._stop()
            raise ChildNotStarted(f"{self.module}: not ready ({error or type(error).__name__}, {status})") from error
        except BaseException:
            self._stop()
            raise

    def _read(self, timeout_s: float) -> bytes:
        """One line of the child's; TimeoutError when it does not come in time, EOFError when the child has ended."""
        descriptor, deadline, received = self._process.stdout.fileno(), time.monotonic() + timeout_s, b""
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while not received.endswith(b"\n"):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000):
                raise TimeoutError(f"{timeout_s:g} s are over")
            chunk = os.read(descriptor, 1 << 16)
            if not chunk or len(received) > _REPLY_BYTES:
                raise EOFError("it ended")
            received += chunk
        return received

    def _stop(self) -> str:
        process, self._process = self._process, None
        if process is None:
            return "no process"
        process.kill()
        process.stdin.close()
        process.stdout.close()
        return f"exit status {process.wait()}"


def _forget(reference: weakref.ref[TimedProcess]) -> None:
    """In a forked copy: the child and its pipes belong to the original, and a thread it had may hold the lock."""
    if (timed := reference()) is not None:
        process, timed._process = timed._process, None
        timed._lock, timed._owner = threading.Lock(), os.getpid()
        if process is not None:
            process.returncode = 0  # it is not this process's to wait for
            process.stdin.close()
            process.stdout.close()


def _close(reference: weakref.ref[TimedProcess]) -> None:
    if (timed := reference()) is not None and timed._owner == os.getpid():
        timed.close()


def serve(answer: Callable[[dict[str, Any]], Any], memory_bytes: int) -> None:
    """The child's side: answers requests until its input ends. Replies None where `answer` raises.

    What it prints is lost. It may use `memory_bytes` of address space, and per request a little more CPU time than the
    request's time limit, so that it ends by itself when its parent was killed and cannot stop it.
    """
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    replies.write(b"ready\n")
    for line in sys.stdin.buffer:
        message = json.loads(line)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        limit_s = math.ceil(usage.ru_utime + usage.ru_stime + message["timeout_s"]) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, resource.RLIM_INFINITY))
        try:
            reply = answer(message["request"])
        except Exception:  # RecursionError and MemoryError too: the text was too much for the algebra
            reply = None
        replies.write(json.dumps(reply).encode("ascii") + b"\n")
