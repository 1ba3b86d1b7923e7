"""What of this machine an interpreter needs in order to run: the only files that a sandbox shows to a program."""

from __future__ import annotations

import dataclasses
import functools
import glob
import os
import subprocess
import sys

_SYSTEM = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64")
_LOADER = ("/etc/ld.so.cache", "/nix/store")
_ASK = (  # where its library is, and which files the loader took for it
    "import os, re, sysconfig\n"
    "print(os.path.realpath(sysconfig.get_path('stdlib')))\n"
    "for path in {line.split()[-1] for line in open('/proc/self/maps') if re.search(r'/.*[.]so', line)}: print(path)\n"
)


@dataclasses.dataclass(frozen=True)
class Runtime:
    """Paths as they are outside; inside they are the same.

    Args:
        executable: the interpreter, no link.
        links: link -> target, for directories that are links here.
        shown: files and directories, read-only.
        hidden: directories below them whose content is no part of the standard library, such as installed packages:
            they may hold data sets with their answers.
        libraries: directories that the loader searches beside the system's.
    """

    executable: str
    links: dict[str, str]
    shown: tuple[str, ...]
    hidden: tuple[str, ...]
    libraries: tuple[str, ...]


def runtime() -> Runtime:
    """That of the interpreter that runs this, below any virtual environment."""
    return runtime_of(getattr(sys, "_base_executable", None) or sys.executable)


@functools.cache
def runtime_of(python: str) -> Runtime:
    """That of an interpreter; raises OSError where it does not run."""
    executable = os.path.realpath(python)
    asked = subprocess.run([executable, "-I", "-S", "-c", _ASK], capture_output=True, text=True)
    if asked.returncode != 0:
        raise OSError(f"{executable} does not run: {asked.stderr.strip()[-200:]}")
    standard, *loaded = asked.stdout.splitlines()
    links = {path: os.readlink(path) for path in _SYSTEM if os.path.islink(path)}
    trees = [path for path in (*_SYSTEM, *_LOADER, standard) if os.path.exists(path) and path not in links]
    trees = [path for path in trees if not any(_within(path, other) for other in trees if other != path)]
    files = sorted({os.path.realpath(path) for path in (executable, *loaded)})
    apart = [path for path in files if path != executable and not any(_within(path, tree) for tree in trees)]
    aliases = {
        entry.path: os.readlink(entry.path)
        for directory in {os.path.dirname(path) for path in apart}
        for entry in os.scandir(directory)
        if entry.is_symlink() and os.path.realpath(entry.path) in apart
    }
    shown = (*trees, *(path for path in files if not any(_within(path, tree) for tree in trees)))
    packages = [os.path.join(standard, name) for name in ("site-packages", "dist-packages")]
    packages += [path for tree in trees for path in glob.glob(f"{tree}/python*/*-packages")]
    hidden = tuple(sorted({path for path in packages if os.path.isdir(path)}))
    libraries = tuple(sorted({os.path.dirname(path) for path in apart}))
    return Runtime(executable, links | aliases, shown, hidden, libraries)


def _within(path: str, tree: str) -> bool:
    return path == tree or path.startswith(tree.rstrip("/") + "/")
