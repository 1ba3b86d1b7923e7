"""How the answers of a run are judged: the processes of its scorers and, where it has programs, their sandbox."""

from __future__ import annotations

import os

from rw.rollout.scorer import Scorer
from rw.run_config import RunConfig


def open_scorer(config: RunConfig) -> Scorer:
    """The run's scorer; its processes start when they are needed."""
    return Scorer(config=config.scoring, processes=scorer_processes(config), timeout_s=config.rollout.scorer_timeout_s)


def scorer_processes(config: RunConfig) -> int:
    """How many answers are judged side by side."""
    return config.rollout.scorer_processes or max(2, (os.cpu_count() or 2) // 2)
