"""What the sampler engine did, as numbers to be read and reset."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class EngineCounters:
    """What the engine did since the counters were last read."""

    decode_steps: int = 0
    decode_rows: int = 0  # rows computed in decode steps, padding and rows that had ended included
    active_rows: int = 0  # rows of them that sampled a token of a running turn
    sampled_tokens: int = 0
    discarded_tokens: int = 0  # sampled beyond a stop tag
    prefilled_tokens: int = 0
    cloned_tokens: int = 0  # of prompts that a sibling had computed
    reprefilled_tokens: int = 0
    evictions: int = 0  # paused episodes that lost their caches
    requeued_turns: int = 0  # running turns that did, for want of memory
    failed_turns: int = 0
    live_kv_bytes: int = 0  # the most that cached tokens took, those that several episodes share counted once
    allocated_kv_bytes: int = 0  # the most that the pool took
    device_s: float = 0.0  # waiting for ticks, the queue before the device thread included
    prefill_s: float = 0.0  # of them, for contexts
    decode_s: float = 0.0  # of them, for sampling
    idle_s: float = 0.0  # nothing was runnable, and nothing else was done
    idle_work_s: float = 0.0  # nothing was runnable, and other work had the device
    idle_work_delay_s: float = 0.0  # a turn had come meanwhile, and waited for that work's end
