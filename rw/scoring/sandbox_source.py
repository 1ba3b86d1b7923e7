"""The code that runs inside a sandbox, as one text: the modules that import nothing but the standard library.

They are ordinary modules of this room, so they are read, checked and tested like any other; inside there is no package
rw, and their imports of one another are dropped as they are joined.
"""

from __future__ import annotations

import functools
import marshal
import pathlib

_MODULES = (
    "sandbox_frames", "program_values", "sandbox_confinement", "sandbox_acts", "program_inside", "sandbox_inside",
)  # fmt: skip
# What the interpreter is started with: it reads the rest from standard input, compiled, since compiling takes longer
# than starting.
LOADER = (
    "import os,marshal\n"
    "need=int.from_bytes(os.read(0,4),'big');parts=[]\n"
    "while need:\n parts.append(os.read(0,need));need-=len(parts[-1]) or exit(1)\n"
    "exec(marshal.loads(b''.join(parts)))\n"
)


@functools.cache
def loaded(call: str) -> bytes:
    """What LOADER reads: the modules, then `call`, a statement in their namespace."""
    directory = pathlib.Path(__file__).parent
    lines = ["from __future__ import annotations"]
    for name in _MODULES:
        lines += [
            line for line in _text(directory / f"{name}.py").splitlines() if not line.startswith("from __future__")
        ]
    code = marshal.dumps(compile("\n".join([*lines, call]), "<sandbox>", "exec", optimize=2))
    return len(code).to_bytes(4, "big") + code


def _text(path: pathlib.Path) -> str:
    return "\n".join(line for line in path.read_text().splitlines() if not line.startswith("from rw."))
