"""A directory that is written aside and appears under its name in one rename, whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator

from rw.errors import CheckpointError

PARTIAL, REPLACED = ".partial", ".replaced"


@contextlib.contextmanager
def written_aside(
    target: str | os.PathLike, overwrite: bool, may_replace: Callable[[pathlib.Path], bool]
) -> Iterator[pathlib.Path]:
    """Gives a path beside `target`, where nothing is yet, to write to; what is there at the end becomes `target`.

    What was there under that name is kept until then, and comes back where the last rename fails. What a killed process
    left aside is removed, and what it had moved away is moved back first.

    Args:
        may_replace: whether a directory is one that `overwrite` may replace: a slip in a path must not cost a home.

    Raises:
        CheckpointError: the target is there, and `overwrite` is False or it may not be replaced.
    """
    target = pathlib.Path(os.path.abspath(target))
    partial, replaced = (target.with_name(target.name + suffix) for suffix in (PARTIAL, REPLACED))
    if replaced.exists() and not target.exists():
        replaced.rename(target)
    if target.exists() and not overwrite:
        raise CheckpointError(f"{target} exists; name another path, or give --overwrite to replace it")
    if target.exists() and not may_replace(target):
        raise CheckpointError(f"{target} exists and is not what would be written there; name another path")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Orbax, writing to the path aside, has temporary names of its own beside it; other neighbours are not ours.
    for leftover in (replaced, partial, *target.parent.glob(glob.escape(partial.name) + ".orbax-checkpoint-tmp*")):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        yield partial
        _swap(partial, target, replaced)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _swap(partial: pathlib.Path, target: pathlib.Path, replaced: pathlib.Path) -> None:
    if target.exists():
        target.rename(replaced)
    try:
        partial.rename(target)
    except OSError:
        if replaced.exists():
            replaced.rename(target)
        raise
    shutil.rmtree(replaced, ignore_errors=True)
