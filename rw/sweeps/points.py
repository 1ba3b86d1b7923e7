"""The points of a sweep, made from small functions: what a sweep file's `get_sweep()` returns.

    from rw.sweeps.points import product, seeds, values

    def get_sweep():
        return product(values("reward.efficiency_weight", (0.0, 0.1, 0.3, 0.5)), seeds(3))

A point maps dotted keys of the config to values; the key `variant` takes the NAME of a config FILE:NAME. Whether there
are such keys is found out when the configs are made. Knows no config and no run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rw.errors import ConfigError

VARIANT = "variant"
Point = dict[str, Any]
Draw = Callable[[np.random.Generator], Any]


def values(key: str, given: Iterable[Any]) -> list[Point]:
    """One point a value of one key."""
    return [{key: value} for value in given]


def seeds(count: int, first: int = 0) -> list[Point]:
    """Runs that differ in nothing but their seed."""
    return values("seed", range(first, first + count))


def product(*parts: Sequence[Mapping[str, Any]]) -> list[Point]:
    """Every point of the first with every one of the second and so on; the last changes fastest.

    Raises:
        ConfigError: two parts set the same key.
    """
    return [_joined(combination) for combination in itertools.product(*parts)]


def zipped(*parts: Sequence[Mapping[str, Any]]) -> list[Point]:
    """The first point of each part together, then the second of each and so on.

    Raises:
        ConfigError: parts of different lengths, or two that set the same key.
    """
    if len({len(part) for part in parts}) > 1:
        raise ConfigError(f"zipped() takes parts of one length; these have {[len(part) for part in parts]} points")
    return [_joined(combination) for combination in zip(*parts, strict=True)]


def chain(*parts: Sequence[Mapping[str, Any]]) -> list[Point]:
    """All points of the first, then all of the second and so on."""
    return [dict(point) for part in parts for point in part]


def random(count: int, seed: int, draws: Mapping[str, Draw]) -> list[Point]:
    """`count` points, each key drawn by itself: the same for the same seed, and the first ones whatever the count.

    Raises:
        ConfigError: a number of points below 1.
    """
    if count < 1:
        raise ConfigError(f"random() makes at least 1 point, not {count}")
    return [
        {key: draw(np.random.default_rng((seed, index, place))) for place, (key, draw) in enumerate(draws.items())}
        for index in range(count)
    ]


def uniform(low: float, high: float) -> Draw:
    """A number between the two, any as likely as any other."""
    return lambda generator: _short(generator.uniform(low, high))


def log_uniform(low: float, high: float) -> Draw:
    """A number between the two, whose logarithm is drawn: for rates and weights. Both are above 0."""
    if not 0 < low <= high:
        raise ConfigError(f"log_uniform({low}, {high}) needs 0 < low <= high")
    return lambda generator: _short(math.exp(generator.uniform(math.log(low), math.log(high))))


def choice(*options: Any) -> Draw:
    """One of these values."""
    return lambda generator: options[int(generator.integers(len(options)))]


def _short(value: float) -> float:
    """Four digits: they name the run's directory, and nothing depends on the fifth."""
    return float(f"{value:.4g}")


def _joined(points: Sequence[Mapping[str, Any]]) -> Point:
    joined: Point = {}
    for point in points:
        if twice := sorted(joined.keys() & point.keys()):
            raise ConfigError(f"two parts of a sweep set {', '.join(twice)}; set a key in one part only")
        joined.update(point)
    return joined
