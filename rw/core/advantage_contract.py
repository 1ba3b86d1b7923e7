"""What an advantage function of one's own must do, tried before a run starts; and its name in what a run records.

A function of one's own is recorded with a hash of its source, so that a run is not continued with another function
than the one that began it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from rw.core.advantages import ADVANTAGES, AdvantageConfig, resolve
from rw.errors import ConfigError
from rw.imported import name_with_source
from rw.types import NO_MODE, Advantages, GroupBatch, Mode

EXPECTED = "(GroupBatch, AdvantageConfig) -> Advantages(grpo, mode, inner), each [G, K], one number a rollout"


def recorded_name(advantage: str | Callable) -> str:
    """What a run records of its advantage function: a key of ADVANTAGES as it is, `module:function@hash` of any other.

    Args:
        advantage: as `resolve` takes it.

    Raises:
        ConfigError: there is no such function, or its source cannot be read.
    """
    known = isinstance(advantage, str) and advantage in ADVANTAGES
    return advantage if known else name_with_source(resolve(advantage), "advantage")


def check_advantage(function: Callable, name: str, config: AdvantageConfig) -> None:
    """Tries a function on the groups that real batches have, also the awkward ones, in cold start and after it.

    Raises:
        ConfigError: it cannot be called, or what it returns cannot be learnt from; names the function.
    """
    for cold_start in (True, False):
        batch = trial_batch()
        config = dataclasses.replace(config, cold_start=cold_start)
        try:
            with np.errstate(all="ignore"):  # of a division by zero, what matters is whether its result is used
                advantages = function(trial_batch(), config)  # it may write into that
        except Exception as error:  # a user's code: whatever it raises, it would raise in the first step too
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigError(f"advantage {name!r} raised {reason}; it must be {EXPECTED}") from error
        check_advantages(advantages, name, batch)
        for field in ("grpo", "mode", "inner"):
            finite = np.isfinite(np.asarray(getattr(advantages, field)))
            bad = np.flatnonzero((batch.retained & ~finite).any(axis=1))
            if bad.size:
                raise ConfigError(
                    f"advantage {name!r} returned {field} that is not finite for {TRIAL_GROUPS[bad[0]]}; every "
                    "retained rollout needs a number"
                )


def check_advantages(advantages: Any, name: str, batch: GroupBatch) -> None:
    """Raises ConfigError unless `advantages` are Advantages with one number for every rollout of `batch`."""
    if not isinstance(advantages, Advantages):
        raise ConfigError(f"advantage {name!r} returned {type(advantages).__name__}; it must be {EXPECTED}")
    for field in ("grpo", "mode", "inner"):
        try:
            values = np.asarray(getattr(advantages, field))
        except ValueError as error:  # such as lists of different lengths
            raise ConfigError(f"advantage {name!r} returned {field} that is no array: {error}") from error
        if values.shape != batch.mode.shape:
            raise ConfigError(
                f"advantage {name!r} returned {field} of shape {values.shape}; it must be [G, K] = {batch.mode.shape}"
            )
        if values.dtype.kind not in "fiub" and values.dtype.name != "bfloat16":
            raise ConfigError(f"advantage {name!r} returned {field} of dtype {values.dtype}; it must be real numbers")


def check_groupwise(function: Callable, name: str, config: AdvantageConfig) -> None:
    """Raises ConfigError unless groups have the same advantages one at a time as together, on `trial_batch`."""
    for cold_start in (True, False):
        config = dataclasses.replace(config, cold_start=cold_start)
        with np.errstate(all="ignore"):
            whole = function(trial_batch(), config)
        retained = trial_batch().retained
        for g, group in enumerate(TRIAL_GROUPS):
            with np.errstate(all="ignore"):
                alone = function(GroupBatch(*(array[g : g + 1] for array in trial_batch())), config)
            for field in ("grpo", "mode", "inner"):
                together, by_itself = (np.asarray(getattr(a, field))[i] for a, i in ((whole, g), (alone, 0)))
                if not np.allclose(together[retained[g]], by_itself[retained[g]], rtol=1e-4, atol=1e-5):
                    raise ConfigError(
                        f"advantage {name!r} gives {group} another {field} alone than among others, so it looks "
                        "beyond a group: regime='stream' learns from each group as it comes; set regime='collect'"
                    )


TRIAL_GROUPS = (
    "a free group with all modes",
    "a forced group",
    "a group whose rewards are all equal",
    "a free group in one mode",
    "a group with one retained rollout",
    "a group without a retained rollout",
)


def trial_batch() -> GroupBatch:
    """One small group of each kind of TRIAL_GROUPS, as the learner would pass them.

    Returns:
        numpy: rewards f64[6, 5, 2], NaN outside V, mode i32[6, 5], retained bool[6, 5], forced bool[6].
    """
    single, multi, agentic = (int(mode) for mode in Mode)
    task = np.array([[1, 0, 1, 0, -1], [1, 0, 0, 0, -1], [0] * 5, [1, 0, 0, 1, 0], [1, 0, 0, 0, 0], [0] * 5], float)
    efficiency = np.where(task == 1, [0.9, 0.5, 0.7, 0.8, 0.6], task)
    mode = np.array(
        [
            [single, single, multi, agentic, NO_MODE],
            [multi] * 5,
            [single, multi, multi, agentic, single],
            [agentic] * 5,
            [single, multi, agentic, single, NO_MODE],
            [single, multi, agentic, single, NO_MODE],
        ],
        np.int32,
    )
    retained = np.ones(mode.shape, bool)
    retained[4, 1:] = retained[5] = retained[3, 4] = False
    rewards = np.where(retained[..., None], np.stack([task, efficiency], axis=-1), np.nan)
    return GroupBatch(rewards, mode, retained, np.array([False, True, False, False, False, False]))
