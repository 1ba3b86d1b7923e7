"""The reference cost C_ref: a percentile of what rollouts cost their Workers, and the file that says how it was found.

RouteWeaver, Appendix C.1: the 95th percentile of the Worker cost of a trajectory, of any outcome, over 128 training
queries of 8 rollouts each, excluding only infrastructure failures and incomplete usage records. Nothing here samples.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rw.errors import ConfigError, DataError
from rw.types import Group, Mode, Status

FORMAT = "rw reference cost 1"
PERCENTILE = 95.0
DRAWS, DRAW_SEED = 2000, 0


@dataclasses.dataclass(frozen=True)
class ReferenceCost:
    """C_ref in USD with its 95 % bootstrap limits."""

    usd: float
    low_usd: float
    high_usd: float


def reference_cost(costs_by_query: Sequence[Sequence[float]]) -> ReferenceCost:
    """The 95th percentile of all costs, linearly interpolated, with the limits of a percentile bootstrap.

    Whole queries are drawn anew, since the rollouts of one query cost alike.

    Raises:
        DataError: there is no cost, or the percentile is 0, by which nothing can be divided.
    """
    groups = [np.asarray(costs, np.float64) for costs in costs_by_query if len(costs)]
    if not groups:
        raise DataError("no rollout has a cost that is known; look for what the Workers report, and at failures")
    usd = float(np.percentile(np.concatenate(groups), PERCENTILE))
    if not usd > 0:
        raise DataError(
            f"the {PERCENTILE:g}th percentile of the costs is {usd:g} USD: a reference cost must be above 0; check the "
            "prices of the Workers, and that this router calls them at all"
        )
    generator = np.random.default_rng(DRAW_SEED)
    drawn = (generator.integers(len(groups), size=len(groups)) for _ in range(DRAWS))
    found = [np.percentile(np.concatenate([groups[index] for index in indices]), PERCENTILE) for indices in drawn]
    low, high = np.percentile(found, [2.5, 97.5])
    return ReferenceCost(usd, float(low), float(high))


def describe(groups: Sequence[Group], retry_cost: str) -> dict[str, Any]:
    """The reference cost of scored rollouts and what it rests on, as plain values; raises as `reference_cost` does.

    Args:
        retry_cost: which attempts count, as `Trajectory.counted_cost_usd` has it.
    """
    trajectories = [[scored.trajectory for scored in group.rollouts] for group in groups]
    everyone = [trajectory for of_query in trajectories for trajectory in of_query]
    measured = [[t for t in of_query if t.status is not Status.INFRASTRUCTURE_FAILURE] for of_query in trajectories]
    known = [[(t.mode, t.counted_cost_usd(retry_cost)) for t in of_query] for of_query in measured]
    costs = [[cost for _, cost in of_query if cost is not None] for of_query in known]
    found = reference_cost(costs)
    counted, asked = sum(map(len, costs)), sum(map(len, measured))
    return {
        "format": FORMAT,
        "reference_cost_usd": found.usd,
        "interval_95_usd": [found.low_usd, found.high_usd],
        "percentile": PERCENTILE,
        "interpolation": "linear",
        "bootstrap": {"draws": DRAWS, "seed": DRAW_SEED, "drawn": "queries"},
        "retry_cost": retry_cost,
        "queries": len(groups),
        "rollouts": len(everyone),
        "counted": counted,
        "infrastructure_failures": len(everyone) - asked,
        "incomplete_cost_records": asked - counted,
        "statuses": dict(sorted(Counter(str(trajectory.status) for trajectory in everyone).items())),
        "by_mode": {mode.word: _summary([c for some in known for m, c in some if m is mode]) for mode in Mode},
    }


def _summary(costs: Sequence[float | None]) -> dict[str, float | int | None]:
    known = [cost for cost in costs if cost is not None]
    mean, p95 = (float(np.mean(known)), float(np.percentile(known, PERCENTILE))) if known else (None, None)
    return {"counted": len(known), "mean_usd": mean, "p95_usd": p95}


def write_reference_cost(path: str | os.PathLike, found: Mapping[str, Any]) -> None:
    """Writes the file aside and renames it, so that a reader never sees half of it."""
    target = pathlib.Path(path)
    aside = target.with_suffix(".tmp")
    aside.write_text(json.dumps(found, indent=2) + "\n")
    aside.replace(target)


def read_reference_cost(path: str | os.PathLike) -> dict[str, Any]:
    """What `rw calibrate` wrote; ConfigError where the file is none of its own or holds no cost."""
    try:
        found = json.loads(pathlib.Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; rw calibrate writes such a file") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}); rw calibrate writes such a file") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ConfigError(f"{path} is not a file of rw calibrate of this release: it must say format {FORMAT!r}")
    usd = found.get("reference_cost_usd")
    if isinstance(usd, bool) or not isinstance(usd, (int, float)) or not 0 < usd < float("inf"):
        raise ConfigError(f"{path}: reference_cost_usd={usd!r} must be a number of USD above 0")
    return found
