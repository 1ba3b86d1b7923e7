"""`FILE` and `FILE:NAME`, the two ways to point at a config. Opens no file and knows nothing of what is in one."""

from __future__ import annotations

import pathlib


def split_name(path: str) -> tuple[str, str]:
    """(file, name) of `file:name`; the name is empty where there is none."""
    file, colon, name = path.rpartition(":")
    return (file, name) if colon and file and not pathlib.Path(path).is_file() else (path, "")


def config_name(path: str) -> str:
    """What a config is called in names of directories: its file's name, `_` and its own."""
    file, name = split_name(path)
    return "_".join(filter(None, (pathlib.Path(file).stem, name)))
