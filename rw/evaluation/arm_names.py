"""Arms for people: what one is called, which kind it is of, and the order in which kinds are told."""

from __future__ import annotations

from collections.abc import Iterable

from rw.evaluation.aggregate import WORDS

KINDS = ("trained router", "mode forced", "untrained router", "fixed Worker", "rule", "learned router", "oracle")
TITLES = {
    "trained": "trained router",
    "warm_start": "initial router",
    "oracle": "oracle",
    "random": "random",
    "knn": "k nearest neighbours",
    "baseline_random": "random Worker",
    "baseline_round_robin": "round-robin",
    "baseline_largest": "largest by price",
    "baseline_smallest": "smallest by price",
    "baseline_oracle": "oracle, any Worker",
    "baseline_oracle_cheapest": "oracle, cheapest right",
    "baseline_vote": "majority vote",
    "baseline_cascade": "cheap-first cascade",
    "baseline_knn": "Router-KNN",
    "baseline_mlp": "Router-MLP",
    "baseline_logistic": "logistic regression",
    "baseline_svm": "SVM",
    "baseline_mf": "matrix factorisation",
    "baseline_router_dc": "RouterDC",
    "baseline_knn_multi": "Router-KNN, multi-round",
    "baseline_prompt_llm": "Prompt LLM",
}
_LEARNED = ("knn", "mlp", "logistic", "svm", "mf", "router_dc", "knn_multi")


def title(arm: str) -> str:
    """What people call an arm."""
    if arm in TITLES:
        return TITLES[arm]
    if arm.startswith("forced_"):
        return f"forced to {arm.removeprefix('forced_')}"
    if arm.startswith("baseline_always_"):
        return f"always {arm.removeprefix('baseline_always_')}"
    if arm.startswith("scripted_worker_"):
        return f"always {arm.removeprefix('scripted_')}"
    if arm.startswith("baseline_prompt_"):
        return f"Prompt LLM, forced to {arm.removeprefix('baseline_prompt_')}"
    return arm.removeprefix("baseline_").replace("_", " ")


def kind(arm: str) -> str:
    """Which of KINDS an arm is; an unknown one is a rule."""
    name = arm.removeprefix("baseline_")
    if arm == "trained":
        return "trained router"
    if arm.startswith("forced_"):
        return "mode forced"
    if arm == "warm_start" or name.startswith("prompt_"):
        return "untrained router"
    if name.startswith("always_") or arm.startswith("scripted_worker_"):
        return "fixed Worker"
    if name.startswith("oracle"):
        return "oracle"
    return "learned router" if name in _LEARNED else "rule"


def ordered(arms: Iterable[str]) -> list[str]:
    """Arms by kind, modes in their order, then by name."""
    return sorted(arms, key=lambda arm: (KINDS.index(kind(arm)), _mode_place(arm), worker_order(arm)))


def worker_order(worker_id: str) -> tuple[str, int, str]:
    """By the words of an id and then its number, so that worker_10 follows worker_9."""
    words, _, number = worker_id.rpartition("_")
    return (words, int(number), worker_id) if number.isdecimal() else (worker_id, -1, worker_id)


def _mode_place(arm: str) -> int:
    word = arm.rpartition("_")[2]
    return WORDS.index(word) if word in WORDS else -1
