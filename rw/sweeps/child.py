"""One training run of a sweep: `rw train` in a process that ends in order when the sweep that started it is killed.

python -m rw.sweeps.child PARENT_PID --config FILE ...
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

from rw.cli import main as rw_main

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(argv: Sequence[str]) -> int:
    """Arguments: the id of the process that started this one, then those of `rw train`; returns its exit code."""
    parent, *arguments = argv
    end_with_parent(int(parent))
    # What tells the submitter's process that a job's time is nearly up reaches this one too, where it would kill.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    return rw_main(["train", *arguments])


def end_with_parent(parent: int) -> None:
    """From now on a SIGTERM comes when the parent dies, however it dies. Elsewhere than on Linux nothing happens."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before this was asked for
            os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
