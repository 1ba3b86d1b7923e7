"""How a sandbox is started, for each way of isolating: command lines, and nothing of what runs inside.

From the strongest down: `bubblewrap`, `namespaces` (util-linux's unshare, and a root of our own making), `limits`
(resource limits, a filter of system calls and an empty environment, no wall).
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil

from rw.scoring.sandbox_runtime import Runtime, runtime
from rw.scoring.sandbox_source import LOADER

TIERS = ("bubblewrap", "namespaces", "limits")
PROCESSES = 32  # and threads, of one program at a time
DISK_BYTES = 64 << 20  # of the sandbox's own directory, which is memory
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "HOME": "/tmp",
    "MALLOC_ARENA_MAX": "2",  # else every thread reserves address space that the limit of memory counts
}
_FIRST_USER = 0x70000000  # far from those that any system gives out
_NOBODY = 65534
_counter = itertools.count()


@dataclasses.dataclass(frozen=True)
class Start:
    """What to start: the command line, its environment, and the user that the first process inside must become."""

    command: tuple[str, ...]
    environment: dict[str, str]
    user: int | None


def start_of(tier: str) -> Start:
    """How a sandbox of that tier is started.

    Raises FileNotFoundError where a program is missing that the tier is made with.
    """
    needed = runtime()
    user = _own_user() if os.geteuid() == 0 else None
    python = (needed.executable, "-s", "-S", "-P", "-c", LOADER)
    if tier == "bubblewrap":
        return Start((_found("bwrap"), *_bubblewrap(needed, user), "--", *python), {}, user)
    raise FileNotFoundError(f"no tier {tier!r}")


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise FileNotFoundError(f"{program} is not installed")
    return path


def _own_user() -> int:
    """A user that nothing else on the machine is, so that the limit of processes counts this sandbox alone."""
    with open("/proc/self/uid_map") as file:
        spans = [tuple(map(int, line.split())) for line in file]
    number = _FIRST_USER + (os.getpid() << 5) + next(_counter) % 32
    return number if any(first <= number < first + count for first, _, count in spans) else _NOBODY


def _bubblewrap(needed: Runtime, user: int | None) -> list[str]:
    """Arguments of bwrap. Started by root it makes no user namespace: the first process becomes `user` instead."""
    apart = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if user is None:
        apart += ["--unshare-user", "--uid", str(_NOBODY), "--gid", str(_NOBODY), "--cap-drop", "ALL"]
    else:
        apart += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    arguments = [*apart, "--die-with-parent", "--new-session", "--as-pid-1", "--hostname", "sandbox", "--clearenv"]
    for name, value in _ENVIRONMENT.items():
        arguments += ["--setenv", name, value]
    for path in needed.shown:
        arguments += ["--ro-bind", path, path]
    for path in needed.hidden:
        arguments += ["--size", "4096", "--tmpfs", path, "--remount-ro", path]
    for link, target in needed.links.items():
        arguments += ["--symlink", target, link]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    arguments += ["--perms", "1777", "--size", str(DISK_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    return [*arguments, "--remount-ro", "/"]
