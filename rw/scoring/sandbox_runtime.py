"""What of this machine an interpreter needs in order to run: the only files that a sandbox shows to a program."""

from __future__ import annotations

import dataclasses
import functools
import glob
import os
import subprocess
import sys
import sysconfig

_SYSTEM = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64")
_LOADER = ("/etc/ld.so.cache", "/nix/store")
_LOADED = (
    "import re; print(*{m.group() for m in re.finditer(r'/\\S+\\.so[\\S]*$', open('/proc/self/maps').read(), re.M)})"
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
    """

    executable: str
    links: dict[str, str]
    shown: tuple[str, ...]
    hidden: tuple[str, ...]


@functools.cache
def runtime() -> Runtime:
    """That of the interpreter that runs this, below any virtual environment."""
    executable = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    standard = os.path.realpath(sysconfig.get_path("stdlib"))
    loaded = subprocess.run([executable, "-I", "-S", "-c", _LOADED], capture_output=True, text=True).stdout.split()
    links = {path: os.readlink(path) for path in _SYSTEM if os.path.islink(path)}
    trees = [path for path in (*_SYSTEM, *_LOADER, standard) if os.path.exists(path) and path not in links]
    trees = [path for path in trees if not any(_within(path, other) for other in trees if other != path)]
    files = sorted({os.path.realpath(path) for path in (executable, *loaded)})
    aliases = {path: os.readlink(path) for path in loaded if os.path.islink(path)}
    shown = (*trees, *(path for path in files if not any(_within(path, tree) for tree in trees)))
    packages = [os.path.join(standard, name) for name in ("site-packages", "dist-packages")]
    packages += [path for tree in trees for path in glob.glob(f"{tree}/python*/*-packages")]
    hidden = tuple(sorted({path for path in packages if os.path.isdir(path)}))
    return Runtime(executable, links | aliases, shown, hidden)


def _within(path: str, tree: str) -> bool:
    return path == tree or path.startswith(tree.rstrip("/") + "/")
