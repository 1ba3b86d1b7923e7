"""Where data sets lie on the Hugging Face hub, and their rows from there, through the library `datasets`.

The ids, configs, splits and file names given beside each loader are from general knowledge and were not checked against
the hub. Where one is out of date, fetch the files by hand and prepare those.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from rw.data.rows import INSTALL, Row
from rw.errors import DataError


@dataclasses.dataclass(frozen=True)
class Hub:
    """A data set on the hub.

    Args:
        path: owner and name.
        splits: rw's name of a split -> the hub's. A set with one split alone names it under both: then the questions
            held out are drawn first, and left out when the others are prepared.
        configs: all are read, one after another.
        files: pattern of the files, with {split} in it, where the set would need a loader script of its own.
        builder: what reads these files.
    """

    path: str
    splits: Mapping[str, str]
    configs: tuple[str, ...] = ("",)
    files: str = ""
    builder: str = "json"

    def split_of(self, split: str) -> str:
        """The hub's name; DataError where there is no such split, or where one must be chosen."""
        if not split and len(set(self.splits.values())) == 1:
            return next(iter(self.splits.values()))
        if split not in self.splits:
            raise DataError(f"{self.path} has the splits {', '.join(self.splits)}, not {split!r}; choose with --split")
        return self.splits[split]


def hub_rows(hub: Hub, split: str) -> Iterator[Row]:
    """Rows of a split as they come; nothing is kept on disk beyond what the library caches.

    Raises:
        DataError: the library is missing, or it cannot deliver; says what to do instead.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"--input hub needs the library datasets, which is not installed: {INSTALL}") from error
    name = hub.split_of(split)
    for config in hub.configs:
        label = f"{hub.path}{'/' + config if config else ''} {name}"
        if hub.files:
            source = f"hf://datasets/{hub.path}/{hub.files.format(split=name)}"
            arguments = {"path": hub.builder, "data_files": source, "split": "train"}  # so the library calls any file
        else:
            arguments = {"path": hub.path, "name": config or None, "split": name}
        for number, values in enumerate(_delivered(datasets, arguments, label), start=1):
            yield Row(values, f"{label} row {number}", config)


def _delivered(library: Any, arguments: Mapping[str, Any], label: str) -> Iterator[Mapping[str, Any]]:
    rows = iter(())
    while True:
        try:
            rows = rows if arguments is None else iter(library.load_dataset(**arguments, streaming=True))
            arguments = None
            values = next(rows)
        except StopIteration:
            return
        except Exception as error:  # the library lets through what its file formats and its network raise
            raise DataError(
                f"{label} could not be read from the hub ({type(error).__name__}: {error}); fetch its files by hand "
                "and give their directory as --input"
            ) from error
        yield values
