"""The code that runs inside a sandbox, as one text: the modules that import nothing but the standard library.

They are ordinary modules of this room, so they are read, checked and tested like any other; inside there is no package
rw, and their imports of one another are dropped as they are joined.
"""

from __future__ import annotations

import functools
import marshal
import pathlib
import types
import zlib

MODULES = (
    "sandbox_frames", "program_values", "sandbox_confinement", "sandbox_root", "sandbox_acts", "program_inside",
    "sandbox_inside",
)  # fmt: skip
# What the interpreter is started with: it reads the rest from standard input, compiled, since compiling takes longer
# than starting.
LOADER = (
    "import os,marshal,zlib\n"
    "need=int.from_bytes(os.read(0,4),'big');parts=[]\n"
    "while need:\n parts.append(os.read(0,need));need-=len(parts[-1]) or os._exit(1)\n"
    "for code in marshal.loads(zlib.decompress(b''.join(parts))): exec(code)\n"
)


def loaded(call: str) -> bytes:
    """What LOADER reads: the modules, then `call`, a statement in their namespace."""
    # compressed, it fits into a pipe that nobody reads yet: who starts a sandbox need not stay to write it
    code = zlib.compress(marshal.dumps([_modules(), compile(call, "<call>", "exec")]), 1)
    return len(code).to_bytes(4, "big") + code


@functools.cache
def _modules() -> types.CodeType:
    directory = pathlib.Path(__file__).parent
    lines = ["from __future__ import annotations"]
    for name in MODULES:
        text = (directory / f"{name}.py").read_text()
        lines += [line for line in text.splitlines() if not line.startswith(("from __future__", "from rw."))]
    return compile("\n".join(lines), "<sandbox>", "exec", optimize=2)
