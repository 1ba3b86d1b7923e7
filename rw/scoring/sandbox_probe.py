"""Tries in a sandbox of a tier, in earnest, each act that must be impossible there, and says which were not."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import socket
import tempfile
import time
from collections.abc import Callable
from typing import Any

from rw.scoring.program_values import text_value, value_text
from rw.scoring.sandbox_frames import unframed
from rw.scoring.sandbox_process import Sandbox, SandboxEnded, SandboxFault, SandboxGarbled, SandboxLate
from rw.scoring.sandbox_tiers import DISK_BYTES, ENVIRONMENT, PROCESSES, process_limit

_MEMORY, _OUTPUT_BYTES = 256 << 20, 1 << 20
_ACT_S = 60.0  # each, on a busy machine
_ECHO = {"a": [1, 2.5, None], "b": "é\n"}


def leaks(tier: str) -> tuple[str, ...]:
    """What a program can do in a sandbox of that tier and must not.

    Raises SandboxFault where the tier does not work here at all.
    """
    with tempfile.TemporaryDirectory(prefix="rw-probe-") as directory, socket.create_server(("127.0.0.1", 0)) as server:
        os.chmod(directory, 0o777)
        server.setblocking(False)
        probe = _Probe(tier)
        try:
            if (echoed := probe.act("echo", _ECHO)) != _ECHO:
                raise SandboxFault(f"{tier} does not run a program: {echoed!r}")
            found = [name for name, got_through in _acts(pathlib.Path(directory), server) if got_through(probe)]
            if probe.outlived():
                found.append("processes that outlive it")
        finally:
            probe.end()
    return tuple(found)


class _Probe:
    """A sandbox with no program but the acts."""

    def __init__(self, tier: str):
        self._sandbox = Sandbox(tier)
        self.end = self._sandbox.end
        self._limits = {
            "cpu_s": 5,
            "memory": _MEMORY,
            "file_bytes": DISK_BYTES,
            "processes": process_limit(tier),
            "output_bytes": _OUTPUT_BYTES,
        }
        self._sandbox.await_ready()

    def act(self, name: str, *arguments: Any) -> Any:
        """What the act returned; None where it was refused or stopped."""
        self._begin(name, arguments)
        try:
            header, payload = self._sandbox.receive(self._deadline(), 2 * _OUTPUT_BYTES)
        except (SandboxEnded, SandboxLate, SandboxGarbled):
            raise SandboxFault(f"{self._sandbox.tier} does not survive a program that tries to {name}") from None
        said, value = unframed(payload[sum(header["sizes"][:2]) :])
        return text_value(value) if said.get("acted") else None

    def outlived(self) -> bool:
        """Whether a process that left its session is still there when the sandbox has been ended."""
        name = f"rw{secrets.token_hex(6)}"
        self._begin("outlive", (name, 60.0))
        deadline = self._deadline()
        while not _called(name):
            if time.monotonic() > deadline:
                raise SandboxFault(f"{self._sandbox.tier} starts no processes")
            time.sleep(0.01)
        self.end()
        return _called(name)

    def _begin(self, name: str, arguments: tuple) -> None:
        try:
            self._sandbox.send({"do": "act", "act": name} | self._limits, value_text(arguments), self._deadline())
        except (SandboxEnded, SandboxLate):
            raise SandboxFault(f"{self._sandbox.tier} ended before a program could try to {name}") from None

    @staticmethod
    def _deadline() -> float:
        return time.monotonic() + _ACT_S


def _acts(directory: pathlib.Path, server: socket.socket) -> list[tuple[str, Callable[[_Probe], Any]]]:
    """The name of what must not be had, and a trial that is true where it was."""
    secret = secrets.token_hex(8)
    (directory / "secret").write_text(secret)
    (directory / "secret").chmod(0o666)
    secret_file = str(directory / "secret")
    library = pathlib.Path(os.__file__)
    directories = [str(directory), "/", "/dev", "/proc", "/usr/lib", str(library.parent)]

    def network(probe: _Probe) -> bool:
        probe.act("connect", server.getsockname()[1])
        with contextlib.suppress(BlockingIOError):
            server.accept()[0].close()
            return True
        return False

    def environment(probe: _Probe) -> bool:
        seen = probe.act("environments") or []
        ours = {*ENVIRONMENT, "LD_LIBRARY_PATH"}  # which may be the same as outside
        return any(f"{name}={value}" in seen for name, value in os.environ.items() if name not in ours)

    return [
        ("network", network),
        ("files of this machine", lambda probe: probe.act("read", secret_file) == secret),
        ("writing outside its directory", lambda probe: probe.act("write", directories, [secret_file, str(library)])),
        ("sight of other processes", lambda probe: (probe.act("processes") or 0) > 2),
        ("the environment", environment),
        ("privileges", lambda probe: probe.act("privileges")),
        ("processes without limit", lambda probe: (probe.act("fork", 4 * PROCESSES) or 0) > PROCESSES),
        ("memory without limit", lambda probe: probe.act("allocate", 4 * _MEMORY)),
        ("disk without limit", lambda probe: (probe.act("fill", 2 * DISK_BYTES) or 0) > DISK_BYTES),
        ("output without limit", lambda probe: probe.act("flood", 8 * _OUTPUT_BYTES)),
    ]


def _called(name: str) -> bool:
    """Whether a process of that name runs on this machine."""
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and pathlib.Path(entry.path, "comm").read_text().strip() == name:
                return True
    return False
