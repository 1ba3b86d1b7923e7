"""Compiled programs kept between runs, in the user's cache directory, so that a second start compiles little.

Knows no programs. JAX_COMPILATION_CACHE_DIR names another place, JAX_ENABLE_COMPILATION_CACHE=false keeps nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pathlib
import platform
import time

import jax
from jax.experimental.compilation_cache import compilation_cache

LEAST_COMPILE_S = 0.2  # what compiles faster is not worth a file
MOST_BYTES = 4 * 2**30  # beyond it, what was not used for longest goes

WRITTEN_S = 60.0  # in which a program is written, at most
_PROGRAM = "-cache"  # what its file's name ends with

log = logging.getLogger(__name__)


def keep_programs() -> None:
    """Has jax keep what it compiles from now on, unless the user has said where, or that nothing is to be kept.

    A directory that cannot be written costs the run nothing but the time to compile.
    """
    if jax.config.jax_compilation_cache_dir is not None or not jax.config.jax_enable_compilation_cache:
        return
    directory = programs_directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        writable = os.access(directory, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        log.info("compiled programs are not kept: %s cannot be written", directory)
        return
    drop_half_written(directory)
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_COMPILE_S)
    compilation_cache.reset_cache()  # whatever was compiled before has made jax believe that there is none


def drop_half_written(directory: pathlib.Path) -> None:
    """Removes programs without the time of their last use, which is written behind them: a full disk or a kill came
    between. jax would keep nothing any more, as it cannot tell how old they are. Others may be writing just now."""
    for program in directory.glob(f"*{_PROGRAM}"):
        with contextlib.suppress(OSError):  # another process may do the same
            used = program.with_name(program.name.removesuffix(_PROGRAM) + "-atime")
            if not used.exists() and time.time() - program.stat().st_mtime > WRITTEN_S:
                program.unlink()


def programs_directory() -> pathlib.Path:
    """Of this machine's kind: a home that several kinds share must not give one the machine code of another."""
    base = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path("~").expanduser() / ".cache")
    return base / "rw" / "programs" / f"{platform.machine()}-{_processor()}"


def _processor() -> str:
    """A digest of the instruction sets that the processor has; of its name where they are not told."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    told = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return hashlib.sha256(told.encode()).hexdigest()[:8]
