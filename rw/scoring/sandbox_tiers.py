"""How a sandbox is started, for each way of isolating: command lines, and nothing of what runs inside.

From the strongest down: `bubblewrap`, `namespaces` (util-linux's unshare, and a root of our own making), `limits`
(resource limits, a filter of system calls and an empty environment, no wall).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pathlib
import shutil
import stat
import tempfile

from rw.scoring.sandbox_runtime import Runtime, runtime
from rw.scoring.sandbox_source import LOADER

TIERS = ("bubblewrap", "namespaces", "limits")
PROCESSES = 32  # and threads, of one program at a time
DISK_BYTES = 64 << 20  # of the sandbox's own directory, which is memory
ENVIRONMENT = {
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
    """What to start.

    Args:
        command: the command line.
        environment: its environment.
        call: the statement that its interpreter runs once it has the code of `sandbox_source`.
        directory: one of its own on this machine, to be removed after it; None where it makes one inside.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    call: str
    directory: str | None = None


def start_of(tier: str) -> Start:
    """How a sandbox of that tier is started.

    Raises OSError where something is missing that the tier is made with.
    """
    needed = runtime()
    user = _own_user() if os.geteuid() == 0 else None
    python = (needed.executable, "-s", "-S", "-P", "-c", LOADER)
    serve = f"serve({user!r})"
    if tier == "bubblewrap":
        return Start((_found("bwrap"), *_bubblewrap(needed, user), "--", *python), {}, serve)
    if tier == "namespaces":
        apart = ["--user", "--map-root-user"] if user is None else []
        apart += ["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]
        root = f"enter_root({list(needed.shown)}, {list(needed.hidden)}, {needed.links}, {DISK_BYTES})"
        return Start((_found("unshare"), *apart, "--", *python), _environment(needed), f"{root}; {serve}")
    if tier == "limits":
        if user is not None and not open_to_all(needed.shown):
            raise PermissionError(f"{needed.executable} and its library cannot be read by other users than root")
        directory = tempfile.mkdtemp(prefix="rw-sandbox-")
        if user is not None:
            os.chown(directory, user, user)
        environment = _environment(needed) | {"HOME": directory}
        return Start(python, environment, f"os.chdir({directory!r}); {serve}", directory)
    raise ValueError(f"no tier {tier!r}; there are {', '.join(TIERS)}")


def process_limit(tier: str) -> int:
    """Processes and threads that the user of a program may have.

    Where the kernel counts for the sandbox alone, that is what the program may have; else what there is comes on top.
    """
    counted_alone = tier != "limits" and tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (5, 14)
    if os.geteuid() == 0 or counted_alone:
        return PROCESSES
    mine = 0
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == os.geteuid():
                mine += len(os.listdir(f"{entry.path}/task"))
    return mine + PROCESSES


def open_to_all(paths: tuple[str, ...]) -> bool:
    """Whether every user may read these."""
    for path in paths:
        while path != "/":
            if not os.stat(path).st_mode & (stat.S_IXOTH if os.path.isdir(path) else stat.S_IROTH):
                return False
            path = os.path.dirname(path)
    return True


def _environment(needed: Runtime) -> dict[str, str]:
    return ENVIRONMENT | ({"LD_LIBRARY_PATH": ":".join(needed.libraries)} if needed.libraries else {})


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
    """Arguments of bwrap. Started by root it makes no user namespace: the first process becomes `user` instead.

    It is not told to die with its parent: killed while it starts, it would leave a process that waits for it for ever.
    A sandbox ends when its standard input does.
    """
    apart = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if user is None:
        apart += ["--unshare-user", "--uid", str(_NOBODY), "--gid", str(_NOBODY), "--cap-drop", "ALL"]
    else:
        apart += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    arguments = [*apart, "--new-session", "--as-pid-1", "--hostname", "sandbox", "--clearenv"]
    for name, value in _environment(needed).items():
        arguments += ["--setenv", name, value]
    parents = {str(parent) for path in needed.shown for parent in pathlib.PurePath(path).parents}
    for path in sorted(parents - {"/"}):  # else root's bubblewrap makes them for root alone
        arguments += ["--perms", "755", "--dir", path]
    for path in needed.shown:
        arguments += ["--ro-bind", path, path]
    for path in needed.hidden:
        arguments += ["--size", "4096", "--tmpfs", path, "--remount-ro", path]
    for link, target in needed.links.items():
        arguments += ["--symlink", target, link]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    arguments += ["--perms", "1777", "--size", str(DISK_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    return [*arguments, "--remount-ro", "/"]
