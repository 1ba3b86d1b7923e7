"""Progressive exploration (Eq. 11): who is forced into which mode, as a pure function of the data order.

Everything runs on the host in float64 and integers: the same query gets the same draw on every host, after a restart,
and whatever order rollouts finish in. `data_batch_index` is the paper's b, counted from 0.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from rw.errors import ConfigError
from rw.types import Mode

PAPER_BATCH = 32  # queries per batch in the paper


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    """Progressive exploration by data-batch index b; `progressive=False` is the paper's ablation (ρ = 0 throughout)."""

    cold_batches: int = 25
    autonomous_from: int = 75
    progressive: bool = True
    only_mode: str = ""  # single | multi | agentic: nothing else is ever run, in training or evaluation; "": all three

    def __post_init__(self):
        if not 0 <= self.cold_batches <= self.autonomous_from:
            raise ConfigError(
                f"schedule.cold_batches={self.cold_batches} and schedule.autonomous_from={self.autonomous_from}: "
                "need 0 <= cold_batches <= autonomous_from"
            )
        if self.only_mode and self.only_mode not in (words := [mode.word for mode in Mode]):
            raise ConfigError(f"schedule.only_mode={self.only_mode!r} is not empty and not one of {', '.join(words)}")

    @property
    def bounds(self) -> tuple[int, int]:
        """(end of cold start, end of the transition), as the functions below take them."""
        return (self.cold_batches, self.autonomous_from) if self.progressive else (0, 0)

    @property
    def mode(self) -> Mode | None:
        """The mode of `only_mode`; None where there are all three."""
        return Mode[self.only_mode.upper()] if self.only_mode else None


def forced_ratio(data_batch_index: int, cold_batches: int = 25, autonomous_from: int = 75) -> float:
    """ρ_b: 1 in cold start, then linearly to 0 at `autonomous_from`. RouteWeaver, Eq. 11.

    With both bounds 0 it is 0 throughout: the ablation without progressive exploration.

    Raises:
        ConfigError: a negative index, or bounds out of order.
    """
    if data_batch_index < 0 or not 0 <= cold_batches <= autonomous_from:
        raise ConfigError(
            f"data_batch_index {data_batch_index} must be at least 0, and 0 <= cold_batches {cold_batches} "
            f"<= autonomous_from {autonomous_from}"
        )
    if data_batch_index < cold_batches:
        return 1.0
    if data_batch_index < autonomous_from:
        return (autonomous_from - data_batch_index) / (autonomous_from - cold_batches)
    return 0.0


def is_cold_start(data_batch_index: int, cold_batches: int = 25) -> bool:
    """Whether the batch belongs to cold start: forced modes, task reward only, global token mean, no support term."""
    return data_batch_index < cold_batches


def support_coefficient(
    data_batch_index: int, initial: float = 0.002, cold_batches: int = 25, autonomous_from: int = 75
) -> float:
    """λ_b = λ_0 ρ_b after cold start, 0 within it. RouteWeaver, section 4.3 and Appendix C.3."""
    if is_cold_start(data_batch_index, cold_batches):
        return 0.0
    return initial * forced_ratio(data_batch_index, cold_batches, autonomous_from)


def query_uniform(query_id: str) -> float:
    """u in [0, 1]: the first 8 bytes of sha256 of the id, read as a big-endian fraction. Not random at run time."""
    return int.from_bytes(hashlib.sha256(query_id.encode("utf-8")).digest()[:8], "big") / 2**64


def is_forced(query_id: str, forced_ratio: float) -> bool:
    """Whether the query's mode is assigned at this ρ_b: always at 1, else iff u < ρ_b. A query once free stays free."""
    return forced_ratio >= 1 or query_uniform(query_id) < forced_ratio


def mode_quotas(data_batch_index: int, batch_size: int) -> tuple[int, int, int]:
    """How many queries of a batch each mode gets, as even as can be; who gets less or more rotates with the batch.

    In the paper's batch of 32 (11/11/10) mode b mod 3 gets the 10. At another size the rest of the division goes to
    modes b mod 3 and (b+1) mod 3. The paper does not say which; we rotate, so that no mode is favoured over a run.
    """
    share, rest = divmod(batch_size, len(Mode))
    first = data_batch_index + 1 if batch_size == PAPER_BATCH else data_batch_index
    larger = {(first + offset) % len(Mode) for offset in range(rest)}
    return tuple(share + (mode in larger) for mode in Mode)


def forced_modes(seed: int, data_batch_index: int, batch_size: int) -> tuple[Mode, ...]:
    """The mode that each query of a batch would be forced into, balanced over the batch, in shuffled positions.

    Assigned to the whole batch before anyone asks who is forced, so it depends on (seed, b, batch size) alone.
    """
    modes = np.repeat(np.array(list(Mode)), mode_quotas(data_batch_index, batch_size))
    np.random.default_rng((seed, data_batch_index)).shuffle(modes)
    return tuple(Mode(int(mode)) for mode in modes)


def assign_modes(
    query_ids: Sequence[str], seed: int, data_batch_index: int, cold_batches: int = 25, autonomous_from: int = 75
) -> tuple[Mode | None, ...]:
    """The forced mode of each query of a batch, None where the router chooses freely."""
    ratio = forced_ratio(data_batch_index, cold_batches, autonomous_from)
    modes = forced_modes(seed, data_batch_index, len(query_ids))
    return tuple(mode if is_forced(query_id, ratio) else None for query_id, mode in zip(query_ids, modes, strict=True))
