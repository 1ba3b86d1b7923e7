"""Memory that a process computing on CPU keeps for its next program, instead of giving it back and getting it anew.

Knows no programs. A new page is zeroed by the kernel when it is first touched; a step on CPU touched 1.5 GiB of them.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import sys

# Of malloc.h: names of mallopt. Freed space above a threshold goes back to the system at once, by default.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
KEPT_BYTES = 2**31 - 1  # free space at the end of the heap that is kept; the largest number that mallopt takes
LARGEST_BYTES = 2**30  # arrays above it are mapped and given back as before
# Whoever sets one of these has chosen for himself.
VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_memory() -> bool:
    """Has the C library keep freed memory, where programs run on the CPU and it is glibc; whether it does now.

    Call it before programs run: a thread that has allocated from an arena of its own keeps that one, which maps every
    large array anew.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in VARIABLES) or not on_cpu():
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    # The threshold first: where so large a one is refused, the others would have every large array mapped anew.
    options = ((_MMAP_THRESHOLD, LARGEST_BYTES), (_ARENA_MAX, 1), (_TRIM_THRESHOLD, KEPT_BYTES))
    return all(mallopt(name, value) for name, value in options)


def on_cpu() -> bool:
    """Whether jax will compute on the CPU, without asking it: it is told so, or has nothing else installed."""
    told = os.environ.get("JAX_PLATFORMS", "")
    if told:
        return told == "cpu"
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return not plugins and not any(map(importlib.util.find_spec, ("jax_plugins", "libtpu")))
