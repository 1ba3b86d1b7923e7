"""Acts that a sandbox must forbid, done in earnest: `sandbox_probe` asks for them and looks at what came of it.

Runs inside (see `sandbox_source`): the standard library alone. Every act returns plain data; an act that is refused may
also raise OSError, which counts as refused.
"""

from __future__ import annotations

import os
import time
from typing import Any


def act(name: str, *arguments: Any) -> Any:
    """Does the act of that name; plain data that says what came of it."""
    return _ACTS[name](*arguments)


def _connect(port: int) -> str:
    import socket

    with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        return connection.recv(64).decode()


def _read(path: str) -> str:
    with open(path) as file:
        return file.read(64)


def _write(directories: list[str], files: list[str]) -> list[str]:
    """Directories in which something can be made, and files that can be written; nothing is left behind."""
    changed = []
    for directory in directories:
        try:
            os.mkdir(f"{directory}/written")
            os.rmdir(f"{directory}/written")
            changed.append(directory)
        except OSError:
            continue
    for path in files:
        try:
            open(path, "r+b").close()
            changed.append(path)
        except OSError:
            continue
    return changed


def _processes() -> int:
    """How many processes are in sight."""
    return sum(name.isdigit() for name in os.listdir("/proc"))


def _environments() -> list[str]:
    """The variables of all processes in sight."""
    found = set()
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                found |= set(file.read(1 << 20).decode(errors="replace").split("\0"))
        except OSError:
            continue
    return sorted(found)


def _privileges() -> list[str]:
    """Capabilities, or ways to gain some."""
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    gained = [f"{name}={fields[name].strip()}" for name in ("CapPrm", "CapEff") if int(fields[name], 16)]
    if fields["NoNewPrivs"].strip() != "1":
        gained.append("NoNewPrivs=0")
    for user in (0, 1):
        try:
            os.setuid(user)
        except OSError:
            continue
        if user != os.getuid():
            gained.append(f"setuid({user})")
    return gained


def _fork(many: int) -> int:
    """How many children could be had at once, of so many."""
    count = 0
    for _ in range(many):
        try:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        except OSError:
            break
        count += 1
    return count


def _allocate(size: int) -> int:
    """Bytes of memory that could be had."""
    try:
        return len(bytearray(size))
    except MemoryError:
        return 0


def _fill(size: int) -> int:
    """Bytes that could be written to files in the working directory."""
    written, block = 0, bytes(1 << 20)
    for number in range(1 << 20):
        try:
            with open(f"fill-{number}", "wb", buffering=0) as file:
                while written < size and (count := file.write(block)):
                    written += count
        except OSError:
            if not os.path.getsize(f"fill-{number}"):
                break
        if written >= size:
            break
    return written


def _flood(size: int) -> int:
    """Bytes that could be written to standard output."""
    block, written = b"x" * (1 << 16), 0
    while written < size:
        written += os.write(1, block)
    return written


def _outlive(name: str, seconds: float) -> None:
    """Sleeps, with a process of a session of its own beside it, called `name`, that holds nothing of ours."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 256)
            with open("/proc/self/comm", "w") as file:
                file.write(name)
            time.sleep(seconds)
        os._exit(0)
    os.wait()
    time.sleep(seconds)


def _echo(value: Any) -> Any:
    return value


_ACTS = {
    "connect": _connect, "read": _read, "write": _write, "processes": _processes, "environments": _environments,
    "privileges": _privileges, "fork": _fork, "allocate": _allocate, "fill": _fill, "flood": _flood,
    "outlive": _outlive, "echo": _echo,
}  # fmt: skip
