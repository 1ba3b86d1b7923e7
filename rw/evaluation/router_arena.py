"""RouterArena's score of a router: one number for accuracy and cost, as its authors define it."""

from __future__ import annotations

import dataclasses
import math

BETA = 0.1  # how much cost weighs beside accuracy
DEAREST, CHEAPEST = 200.0, 0.0044  # USD per 1,000 queries that count 0 and 1


@dataclasses.dataclass(frozen=True)
class ArenaScore:
    """The score and what it is made of."""

    score: float  # in [0, 1]
    accuracy: float  # A
    cost: float  # C, in [0, 1], 1 for the cheapest
    usd_per_1000: float
    is_clamped: bool  # whether the cost lies outside the scale


def arena_score(accuracy: float, usd_per_1000: float) -> ArenaScore:
    """S = (1 + β) A C / (β A + C), with C the cost on a log2 scale from DEAREST (0) to CHEAPEST (1).

    RouterArena (RouteWorks) with its leaderboard's β = 0.1. Costs beyond the ends of the scale count as its ends.

    Args:
        accuracy: share of right answers.
        usd_per_1000: mean cost of 1,000 queries in USD; 0 lies beyond the cheap end.
    """
    inside = min(max(usd_per_1000, CHEAPEST), DEAREST)
    cost = math.log2(DEAREST / inside) / math.log2(DEAREST / CHEAPEST)
    below = BETA * accuracy + cost
    score = 0.0 if below == 0 else (1 + BETA) * accuracy * cost / below
    return ArenaScore(score, accuracy, cost, usd_per_1000, inside != usd_per_1000)
