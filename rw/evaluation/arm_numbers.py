"""What an arm cost, how long it took, which modes and Workers it used and what went wrong, as plain JSON values.

What is not known is None and never 0; beside every mean stands of how many questions it is. Pure functions of an arm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rw.evaluation.accuracies import accuracies, plain
from rw.evaluation.aggregate import NO_MODE_WORD, WORDS, is_lost, mean_cost, mode_shares
from rw.evaluation.arm_names import worker_order
from rw.evaluation.domains import is_held_out, stratum_of
from rw.evaluation.outcomes import ArmResult, Outcome
from rw.evaluation.router_arena import arena_score
from rw.types import Status

PERCENTILES = (50, 90, 99)
UNKNOWN = "unknown"


def numbers(arm: ArmResult) -> dict[str, Any]:
    """Everything about one arm. Shares, costs and latencies are of all its questions but the held-out ones, or of these
    where there are no others."""
    counted = [outcome for outcome in arm.outcomes if not is_held_out(stratum_of(outcome))] or list(arm.outcomes)
    router = router_cost(counted, arm.about.get("router_input_price"), arm.about.get("router_output_price"))
    return {
        "about": dict(arm.about),
        "questions": len(counted),
        "held_out_questions": len(arm.outcomes) - len(counted),
        "accuracies": accuracies(arm.outcomes),
        "lost": sum(map(is_lost, counted)),
        "lost_held_out": sum(map(is_lost, arm.outcomes)) - sum(map(is_lost, counted)),
        "cost_usd": worker_cost(counted) | {"modelled": arm.about.get("modelled_cost")},
        "router": router,
        "worker_input_tokens": _mean_of(o.worker_input_tokens for o in counted),
        "worker_output_tokens": _mean_of(o.worker_output_tokens for o in counted),
        "calls_mean": _mean_of(len(o.workers) for o in counted)["mean"],
        "latency_s": latency(counted),
        "mode_share": _mode_shares(counted),
        "accuracy_of_mode": _accuracy_of_modes(counted),
        "status": {
            "invalid": _ended(counted, Status.TERMINAL_INVALID, lambda o: o.violation),
            "exhausted": _ended(counted, Status.EXHAUSTED, lambda o: o.cause),
            "infrastructure": _ended(counted, Status.INFRASTRUCTURE_FAILURE, lambda o: o.cause),
        },
        "worker_share": worker_shares(counted),
        "router_arena": _arena(counted, router["usd_mean"]),
    }


def worker_cost(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """{"mean": interval of a question's cost, "total", "known", "questions"}: USD at the Workers' prices. The mean is
    over questions whose cost is known and that infrastructure did not cut short, the total over all that are known."""
    known = [o.cost_usd for o in outcomes if o.cost_usd is not None]
    return {
        "mean": plain(mean_cost(outcomes)),
        "total": float(sum(known)) if known else None,
        "known": len(known),
        "questions": len(outcomes),
    }


def router_cost(outcomes: Sequence[Outcome], input_price: float | None, output_price: float | None) -> dict[str, Any]:
    """Tokens that the router read (each once) and wrote, and their USD where both prices (USD per million) are known
    and every counted question's tokens are; `known` says of how many questions the tokens are."""
    pairs = [(o.router_input_tokens, o.router_output_tokens) for o in outcomes]
    known = [(read, written) for read, written in pairs if read is not None and written is not None]
    read, written = (sum(column) for column in zip(*known, strict=True)) if known else (None, None)
    found: dict[str, Any] = {
        "input_tokens": read,
        "output_tokens": written,
        "input_tokens_mean": read / len(known) if known else None,
        "output_tokens_mean": written / len(known) if known else None,
        "known": len(known),
        "usd_total": None,
        "usd_mean": None,
    }
    if known and input_price is not None and output_price is not None:
        found["usd_total"] = (read * input_price + written * output_price) / 1e6
        found["usd_mean"] = found["usd_total"] / len(known)
    return found


def latency(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """{"p50", "p90", "p99", "mean", "known"}: seconds that a question waited for its Workers, over the questions that
    asked one and were not lost to infrastructure."""
    known = [o.latency_s for o in outcomes if o.latency_s is not None and o.workers and not is_lost(o)]
    values = np.percentile(known, PERCENTILES) if known else [None] * len(PERCENTILES)
    found = {f"p{p}": None if v is None else float(v) for p, v in zip(PERCENTILES, values, strict=True)}
    return found | {"mean": float(np.mean(known)) if known else None, "known": len(known)}


def worker_shares(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """{"overall", "by_mode"}: each Worker's share of the calls, in all and of the questions answered in one mode."""
    modes = {word: [o for o in outcomes if (o.mode or NO_MODE_WORD) == word] for word in (*WORDS, NO_MODE_WORD)}
    found = {word: _call_shares(members) for word, members in modes.items()}
    return {"overall": _call_shares(outcomes), "by_mode": {word: shares for word, shares in found.items() if shares}}


def _call_shares(outcomes: Iterable[Outcome]) -> dict[str, float]:
    calls = Counter(worker for outcome in outcomes for worker in outcome.workers)
    return {worker: calls[worker] / calls.total() for worker in sorted(calls, key=worker_order)}


def _mode_shares(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    domains: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        domains.setdefault(stratum_of(outcome).domain, []).append(outcome)
    declared = any(outcome.mode for outcome in outcomes)
    by_domain = {domain: mode_shares(members) for domain, members in domains.items()}
    return {"overall": mode_shares(outcomes), "domains": by_domain} if declared else {"overall": None, "domains": {}}


def _accuracy_of_modes(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Accuracy on the questions that were answered in each mode."""
    by_mode = {word: [o for o in outcomes if o.mode == word] for word in WORDS}
    return {word: accuracies(members)["average"] for word, members in by_mode.items() if members}


def _ended(outcomes: Sequence[Outcome], status: Status, reason_of: Any) -> dict[str, Any]:
    """{"share", "count", "by"}: how many ended so, and the share of each reason among all questions."""
    reasons = Counter(reason_of(o) or UNKNOWN for o in outcomes if o.status == status)
    n = len(outcomes)
    return {
        "share": reasons.total() / n if n else None,
        "count": reasons.total(),
        "by": {reason: count / n for reason, count in reasons.most_common()},
    }


def _mean_of(counts: Iterable[int | None]) -> dict[str, Any]:
    known = [count for count in counts if count is not None]
    return {"mean": sum(known) / len(known) if known else None, "known": len(known)}


def _arena(outcomes: Sequence[Outcome], router_usd: float | None) -> dict[str, Any] | None:
    """RouterArena's score of the share that is right and the mean cost of 1,000 questions, the router's own cost in it
    where that is priced. None where no cost is known."""
    cost = mean_cost(outcomes)
    if cost is None or not outcomes:
        return None
    accuracy = sum(o.value for o in outcomes) / len(outcomes)
    found = arena_score(accuracy, 1000 * (cost.mean + (router_usd or 0.0)))
    return {**vars(found), "with_router": router_usd is not None}
