"""What the authors of RouteWeaver report, to print beside our own: percentages of their project page and paper.

They are of the authors' Workers and of their draw of the questions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

NOTE, OURS = "authors' figures", "ours"
COLUMNS = ("math", "code", "knowledge", "reason", "recall")


@dataclasses.dataclass(frozen=True)
class PaperRow:
    """A method of the paper; accuracies in percent, in the order of COLUMNS, None where none is given."""

    method: str
    average: float
    domains: tuple[float | None, ...] = (None,) * 5
    mode_shares: tuple[float, float, float] | None = None  # single, multi, agentic; they sum to 1
    cost_change: float | None = None  # of the mean cost, against efficiency_weight 0, in percent
    held_out: tuple[float, float, float] | None = None  # AIME, GPQA-Diamond, BBH
    arm: str | None = None  # the arm of ours that is the same kind of router


ROWS = (
    PaperRow(
        "RouteWeaver (efficiency weight 0)", 61.4, (74.6, 58.2, 55.0, 76.7, 42.5), (0.35, 0.41, 0.24), 0.0,
        (57.0, 69.2, 35.0), "trained",
    ),
    PaperRow("RouteWeaver, efficiency weight 0.1", 60.4, cost_change=-23.0),
    PaperRow("RouteWeaver, efficiency weight 0.3", 58.3, cost_change=-61.0),
    PaperRow("RouteWeaver, efficiency weight 0.5", 50.2, cost_change=-86.0),
    PaperRow("without COMET-GRPO", 58.8, mode_shares=(0.13, 0.82, 0.05)),
    PaperRow("without progressive exploration", 55.6, mode_shares=(1.0, 0.0, 0.0)),
    PaperRow("Router-R1", 55.3, (66.3, 52.8, 48.9, 68.7, 39.8), held_out=(45.6, 62.1, 28.6)),
    PaperRow("Router-KNN", 48.7, (61.7, 34.8, 38.3, 68.3, 40.4), arm="baseline_knn"),
    PaperRow("GraphRouter", 48.7, (64.6, 36.1, 34.2, 69.2, 39.6), held_out=(23.5, 49.5, 24.7)),
    PaperRow("MasRouter", 46.8, (54.2, 37.6, 41.7, 62.5, 38.3), held_out=(28.1, 43.8, 28.2)),
    PaperRow("Router-MLP", 45.1, (58.7, 33.2, 40.0, 59.2, 34.2), arm="baseline_mlp"),
    PaperRow("GraphPlanner", 43.8, (47.5, 48.3, 30.0, 54.2, 39.2)),
    PaperRow("RouterDC", 43.5, (61.3, 29.4, 34.2, 57.5, 35.0), arm="baseline_router_dc"),
    PaperRow("Prompt LLM", 38.6, (45.8, 33.7, 29.2, 54.2, 30.0), arm="baseline_prompt_llm"),
    PaperRow("Router-KNN-MR", 36.6, (40.8, 33.2, 30.8, 48.3, 29.6), arm="baseline_knn_multi"),
    PaperRow("R2-Reasoner", 35.6, (45.8, 30.7, 28.3, 50.0, 23.3)),
)  # fmt: skip
# Shares in percent by domain that the paper tells of RouteWeaver; others it does not.
MODE_SHARES: Mapping[str, str] = {
    "math": "19/50/31",
    "code": "multi 84",
    "knowledge": "72/17/11",
    "reason": "agentic 99",
    "recall": "single 96",
}
