"""Where programs of others may run: the strongest way of isolating that this machine has, found by trying.

The one rule: a program never shares a process, files, an environment or a process namespace with expected outputs,
keys, or the event loop. Inputs go in, one at a time; what it wrote comes out, and is compared outside. So the worst
that it can do is to make up its own output.
"""

from __future__ import annotations

import dataclasses

from rw.errors import SandboxError
from rw.scoring.sandbox_probe import leaks
from rw.scoring.sandbox_process import SandboxFault
from rw.scoring.sandbox_tiers import TIERS


@dataclasses.dataclass(frozen=True)
class Tier:
    """A way of isolating programs.

    Args:
        name: `bubblewrap`, `namespaces` or `limits`.
        leaks: what a program can do there and must not; empty but where a weak sandbox was allowed.
    """

    name: str
    leaks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name + (f" (weak: {', '.join(self.leaks)})" if self.leaks else "")


def strongest_tier(allow_weak: bool = False) -> Tier:
    """The strongest tier that works here, found by trying in it what must be impossible; it holds for the process.

    Args:
        allow_weak: where none is tight, take the one that lets the least through.

    Raises SandboxError where none is tight and `allow_weak` is False, or none works at all.
    """
    tiers, whys = [], []
    for name in TIERS:
        tier, why = tried_tier(name)
        if tier is not None and not tier.leaks:
            return tier
        tiers += [tier] if tier is not None else []
        whys.append(why)
    if allow_weak and tiers:
        return min(tiers, key=lambda tier: len(tier.leaks))
    for name in [name for name, (tier, _) in _tried.items() if tier is None]:
        del _tried[name]  # what failed for lack of memory or processes may work for the next program
    raise SandboxError(
        f"programs cannot be run apart from this machine: {'; '.join(whys)}. Install bubblewrap (0.7 or later) and "
        "allow user namespaces (Linux 5.14 or later), or set scoring.allow_weak_sandbox=true, which runs them all the "
        "same"
    )


_tried: dict[str, tuple[Tier | None, str]] = {}


def tried_tier(name: str) -> tuple[Tier | None, str]:
    """The tier as it is here, or None where it does not work; and what is to be said against it."""
    if name not in _tried:
        try:
            found = leaks(name)
            _tried[name] = Tier(name, found), f"{name} lets through: {', '.join(found)}" if found else ""
        except SandboxFault as fault:
            _tried[name] = None, str(fault)
    return _tried[name]
