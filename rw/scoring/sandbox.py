"""Where programs of others may run: the strongest way of isolating that this machine has, found by trying.

The one rule: a program never shares a process, files, an environment or a process namespace with expected outputs,
keys, or the event loop. Inputs go in, one at a time; what it wrote comes out, and is compared outside.
"""

from __future__ import annotations

import dataclasses
import functools

from rw.errors import SandboxError
from rw.scoring.sandbox_process import Sandbox, SandboxFault


@dataclasses.dataclass(frozen=True)
class Tier:
    """A way of isolating programs.

    Args:
        name: `bubblewrap`, `namespaces` or `limits`.
        leaks: what a program can do there that it must not; empty but where a weak sandbox was allowed.
    """

    name: str
    leaks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name + (f" (weak: {', '.join(self.leaks)})" if self.leaks else "")


@functools.cache
def strongest_tier(allow_weak: bool = False) -> Tier:
    """The strongest tier that works here; found once a process, by trying in it what must be impossible.

    Raises SandboxError where none is tight, and `allow_weak` is False.
    """
    try:
        sandbox = Sandbox("bubblewrap")
        try:
            sandbox.await_ready()
        finally:
            sandbox.end()
    except SandboxFault as fault:
        raise SandboxError(
            f"programs cannot be run apart from this machine: {fault}; install bubblewrap, allow user namespaces, or "
            "set scoring.allow_weak_sandbox=true"
        ) from None
    return Tier("bubblewrap")
