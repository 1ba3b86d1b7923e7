"""What a sweep is to run: one training run a point, its config checked before any of them starts."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rw.config import as_dict, load_config, load_python
from rw.config_path import split_name
from rw.core.advantage_contract import recorded_name
from rw.errors import ConfigError, RwError
from rw.run_config import RunConfig
from rw.sweeps.points import VARIANT
from rw.typed_values import one_line

LONGEST_NAME = 120  # bytes; file systems end at 255


@dataclasses.dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep."""

    name: str  # of its directory, made of its values
    values: Mapping[str, Any]  # dotted key -> value, as the sweep has it
    config_path: str  # FILE or FILE:NAME
    overrides: tuple[tuple[str, str], ...]  # (dotted key, text): those of all points, then its own
    workdir: pathlib.Path
    config: RunConfig

    @property
    def arguments(self) -> list[str]:
        """What `rw train` is given."""
        keys = [f"--config.{key}={text}" for key, text in self.overrides]
        return ["--config", self.config_path, "--workdir", str(self.workdir), *keys]


def read_sweep(path: str) -> list[dict[str, Any]]:
    """The points of a sweep file; ConfigError where it has none or they are none."""
    module = load_python(path, "sweep file", "the ones that ship with rw are in configs/sweeps/")
    if not callable(getattr(module, "get_sweep", None)):
        raise ConfigError(f"sweep file {path} has no function get_sweep()")
    try:
        points = module.get_sweep()
    except Exception as error:  # a user's code: whatever it raises, the file and the reason are what helps
        raise ConfigError(f"sweep file {path}: {type(error).__name__}: {one_line(error)}") from error
    if not isinstance(points, Sequence) or not points or not all(isinstance(point, Mapping) for point in points):
        raise ConfigError(
            f"sweep file {path}: get_sweep() must return a list of mappings from dotted keys to values, one at least; "
            "rw/sweeps/points.py has functions that make one"
        )
    if odd := sorted({str(key) for point in points for key in point if not isinstance(key, str) or not key}):
        raise ConfigError(f"sweep file {path}: keys must be text like 'reward.efficiency_weight', not {odd[0]!r}")
    return [dict(point) for point in points]


def plan(
    config_path: str,
    points: Sequence[Mapping[str, Any]],
    workdir: str | pathlib.Path,
    overrides: Iterable[tuple[str, str]] = (),
) -> list[SweepPoint]:
    """The runs of all points, each with its checked config.

    Args:
        config_path: FILE, or FILE:NAME where no point names a variant.
        overrides: (dotted key, text) of all points.

    Raises:
        ConfigError: a key that is not there, a value that no run can have, two points alike. Names the point.
    """
    overrides = tuple(overrides)
    points = [{key: plain(value) for key, value in point.items()} for point in points]
    _check_keys(config_path, points, overrides)
    names = point_names(points)
    return [
        _planned(config_path, name, point, pathlib.Path(workdir) / name, overrides)
        for name, point in zip(names, points, strict=True)
    ]


def _check_keys(config_path: str, points: Sequence[Mapping[str, Any]], overrides: Sequence[tuple[str, str]]) -> None:
    swept = {key for point in points for key in point}
    if twice := sorted(swept & {key for key, _ in overrides}):
        raise ConfigError(f"--config.{twice[0]} is what the sweep sets for each point; leave it out")
    if VARIANT in swept and split_name(config_path)[1]:
        raise ConfigError(f"--config {config_path} names a variant, and so does the sweep; leave its name out")


def _planned(
    config_path: str,
    name: str,
    point: Mapping[str, Any],
    workdir: pathlib.Path,
    overrides: tuple[tuple[str, str], ...],
) -> SweepPoint:
    path = f"{config_path}:{point[VARIANT]}" if VARIANT in point else config_path
    own = tuple((key, as_text(value)) for key, value in point.items() if key != VARIANT)
    try:
        config = load_config(path, (*overrides, *own))
        recorded_name(config.advantage.function)  # raises where there is no such function
    except RwError as error:
        raise ConfigError(f"point {name}: {error}") from error
    return SweepPoint(name, dict(point), path, (*overrides, *own), workdir, config)


def plain(value: Any) -> Any:
    """A value as config.json would hold it: of numpy's numbers and arrays, Python's; of a path, its text."""
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return tuple(plain(item) for item in value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def as_text(value: Any) -> str:
    """A value as `--config.key=` takes it.

    Raises:
        ConfigError: an object that has no text which says it.
    """
    value = plain(value)
    if isinstance(value, str):
        return value
    try:
        ast.literal_eval(repr(value))
    except (ValueError, SyntaxError) as error:
        raise ConfigError(
            f"{value!r} in a sweep: a value must be text, a finite number, True, False, None, or a list of these"
        ) from error
    return repr(value)


def point_names(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """One name a point, made of the last part of each key and its value: `efficiency_weight_0.1_seed_2`.

    Raises:
        ConfigError: two points set the same keys to the same values.
    """
    keys = {key for point in points for key in point}
    ends = [key.rpartition(".")[2] for key in keys]
    words = {key: key if ends.count(end := key.rpartition(".")[2]) > 1 else end for key in keys}
    seen: dict[str, int] = {}
    for place, point in enumerate(points):
        before = seen.setdefault(_identity(point), place)
        if before != place:
            raise ConfigError(f"points {before} and {place} of the sweep are alike ({dict(point)}); leave one out")
    names = [_name(point, words) for point in points]
    return [
        f"{name}_{_digest(point)}" if names.count(name) > 1 else name for name, point in zip(names, points, strict=True)
    ]


def _name(point: Mapping[str, Any], words: Mapping[str, str]) -> str:
    parts = [as_text(value) if key == VARIANT else f"{words[key]}_{as_text(value)}" for key, value in point.items()]
    name = re.sub(r"[^\w.+-]+", "-", "_".join(parts)).strip("-.") or "point"
    coded = name.encode()
    return name if len(coded) <= LONGEST_NAME else f"{coded[:LONGEST_NAME].decode(errors='ignore')}_{_digest(point)}"


def _identity(point: Mapping[str, Any]) -> str:
    return json.dumps({key: as_text(value) for key, value in point.items()}, sort_keys=True)


def _digest(point: Mapping[str, Any]) -> str:
    return hashlib.sha256(_identity(point).encode()).hexdigest()[:8]


def recorded(point: SweepPoint) -> dict[str, Any]:
    """The point's config as its run's config.json holds it."""
    whole = as_dict(point.config)
    whole["advantage"]["function"] = recorded_name(point.config.advantage.function)
    return json.loads(json.dumps(whole))
