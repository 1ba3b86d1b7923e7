"""A root directory of its own for the tier `namespaces`: what bubblewrap does, by the interpreter that then runs there.

Runs inside (see `sandbox_source`), as process 1 of namespaces that `unshare` made: the standard library alone. Any step
that fails raises, and the sandbox does not start.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Any

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC = 2, 4, 8, 0x1000, 0x4000
_MNT_DETACH, _AT_FDCWD, _AT_RECURSIVE = 2, -100, 0x8000
_MOUNT_SETATTR, _PIVOT_ROOT = 442, {"x86_64": 155, "aarch64": 41}
_READ_ONLY = struct.pack("QQQQ", 1 | 2 | 4, 0, 0, 0)  # struct mount_attr: read-only, nosuid, nodev
_DEVICES = ("null", "zero", "full", "random", "urandom")


def enter_root(shown: list[str], hidden: list[str], links: dict[str, str], disk_bytes: int) -> None:
    """Leaves the machine's files for a root that has these alone, read-only, and an empty /tmp.

    Raises OSError where the kernel refuses a step.
    """
    base = "/tmp"  # in this mount namespace alone; what lies below it is opened before it is covered
    sources = [(path, os.open(path, os.O_PATH)) for path in (*shown, *(f"/dev/{name}" for name in _DEVICES))]
    _mount("tmpfs", base, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755")
    for path, source in sources:
        _bind(source, base + path)
    for link, target in links.items():
        os.makedirs(os.path.dirname(base + link), exist_ok=True)
        os.symlink(target, base + link)
    for path in hidden:
        _mount("tmpfs", base + path, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=4k,mode=755")
        _read_only(base + path)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{base}/dev/{name}")
    os.mkdir(f"{base}/proc")
    _mount("proc", f"{base}/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    os.mkdir(f"{base}/tmp")
    _mount("tmpfs", f"{base}/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={disk_bytes},mode=1777")
    os.chdir(base)
    _called("pivot_root", _LIBC.syscall(_PIVOT_ROOT[platform.machine()], b".", b"."))  # the old one lies on the new
    _called("umount", _LIBC.umount2(b".", _MNT_DETACH))
    _read_only("/")
    _LIBC.sethostname(b"sandbox", 7)
    os.chdir("/tmp")


_LIBC: Any = ctypes.CDLL(None, use_errno=True)


def _bind(source: int, target: str) -> None:
    """Shows an open file or directory at `target`, read-only."""
    path = f"/proc/self/fd/{source}"
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(path, target, None, _MS_BIND | _MS_REC)
    if not target.startswith("/tmp/dev/"):  # devices are written to
        _read_only(target, _AT_RECURSIVE)
    os.close(source)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    given = (source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags), options.encode())
    _called(f"mount {target}", _LIBC.mount(*given))


def _read_only(path: str, how: int = 0) -> None:
    _called(f"read-only {path}", _LIBC.syscall(_MOUNT_SETATTR, _AT_FDCWD, path.encode(), how, _READ_ONLY, 32))


def _called(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
