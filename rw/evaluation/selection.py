"""Single-call baselines on a response matrix: rules that choose a Worker, or combine what several said.

Every rule is a function of the matrix (and a seed), so that its outcomes are known without a call. A rule sees answers
and costs as a router would; only the oracles see what was right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rw.errors import DataError
from rw.evaluation.answer_keys import answer_key
from rw.evaluation.outcomes import Outcome
from rw.evaluation.response_matrix import Cell, MatrixQuestion, MatrixWorker, ResponseMatrix
from rw.simulation.world import chance
from rw.types import Mode, Status

TIE = 1e-9  # utilities that differ by less are equal
Rule = Callable[[ResponseMatrix, int], Sequence[Outcome]]  # (matrix, seed) -> one outcome a question


def always(matrix: ResponseMatrix, worker: int) -> tuple[Outcome, ...]:
    """One Worker for every question, by its place."""
    return chosen(matrix, [worker] * len(matrix.questions))


def random(matrix: ResponseMatrix, seed: int) -> tuple[Outcome, ...]:
    """A Worker drawn evenly by seed and question, so that the order of the questions means nothing."""
    count = len(matrix.workers)
    return chosen(matrix, [int(chance("worker", seed, question.id) * count) for question in matrix.questions])


def round_robin(matrix: ResponseMatrix, seed: int = 0) -> tuple[Outcome, ...]:
    """The Workers in turn, in the order of the questions."""
    return chosen(matrix, [row % len(matrix.workers) for row in range(len(matrix.questions))])


def largest(matrix: ResponseMatrix, seed: int = 0) -> tuple[Outcome, ...]:
    """The Worker of the highest price; of equals the last."""
    return always(matrix, matrix.by_price[-1])


def smallest(matrix: ResponseMatrix, seed: int = 0) -> tuple[Outcome, ...]:
    """The Worker of the lowest price; of equals the first."""
    return always(matrix, matrix.by_price[0])


def oracle(matrix: ResponseMatrix, seed: int = 0) -> tuple[Outcome, ...]:
    """The best score that any Worker earns, whatever it costs: the first of those that earn it."""
    return chosen(matrix, matrix.scores.argmax(1))


def oracle_cheapest(matrix: ResponseMatrix, seed: int = 0) -> tuple[Outcome, ...]:
    """The cheapest Worker of those with the best score; where none earns anything, the cheapest of all."""
    costs = _known_costs(matrix)
    best = matrix.scores >= matrix.scores.max(1, keepdims=True)
    return chosen(matrix, np.where(best, costs, np.inf).argmin(1))


def vote(matrix: ResponseMatrix, seed: int = 0) -> tuple[Outcome, ...]:
    """All Workers are asked at once, and the answer that most of them give counts; of equals the one with the cheapest
    Worker among those that gave it."""
    _require_answers(matrix, "majority vote")
    return tuple(
        _combined(matrix, row, _winner(matrix, row, matrix.by_price), matrix.by_price, parallel=True)
        for row in range(len(matrix.questions))
    )


def cascade(matrix: ResponseMatrix, seed: int = 0) -> tuple[Outcome, ...]:
    """Workers are asked one after the other, the cheapest first, until two agree, whose answer counts; where no two do,
    the dearest one's."""
    _require_answers(matrix, "cascade")
    found = []
    for row in range(len(matrix.questions)):
        asked: list[int] = []
        first_with: dict[str, int] = {}  # answer -> the Worker that gave it first
        winner = None
        for place in matrix.by_price:
            asked.append(place)
            key = _key(matrix, row, place)
            if key is not None and key in first_with:
                winner = first_with[key]
                break
            if key is not None:
                first_with[key] = place
        if winner is None:
            replied = [place for place in asked if not matrix.cells[row][place].is_lost]
            winner = (replied or asked)[-1]
        found.append(_combined(matrix, row, winner, asked, parallel=False))
    return tuple(found)


RULES: dict[str, Rule] = {
    "random": random,
    "round_robin": round_robin,
    "largest": largest,
    "smallest": smallest,
    "oracle": oracle,
    "oracle_cheapest": oracle_cheapest,
    "vote": vote,
    "cascade": cascade,
}
NEED_ANSWERS = ("vote", "cascade")


def chosen(matrix: ResponseMatrix, workers: Sequence[int]) -> tuple[Outcome, ...]:
    """The outcomes of asking one Worker a question, by its place for each question."""
    return tuple(
        single_outcome(question, matrix.workers[worker], row[worker])
        for question, row, worker in zip(matrix.questions, matrix.cells, workers, strict=True)
    )


def best_workers(utilities: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """The place of the Worker with the highest utility, i64[Q]; of equals the cheaper, then the earlier.

    Args:
        utilities: f64[Q, W].
        costs: USD, f64[W].
    """
    best = utilities >= utilities.max(1, keepdims=True) - TIE
    return np.where(best, costs, np.inf).argmin(1)


def single_outcome(question: MatrixQuestion, worker: MatrixWorker, cell: Cell) -> Outcome:
    """The outcome of one call in single mode. No model chose the Worker, so the router cost no token."""
    return Outcome(
        query_id=question.id,
        kind=question.kind,
        mode=Mode.SINGLE.word,
        status=cell.status,
        violation=cell.violation,
        cause=cell.cause,
        correct=cell.correct,
        cost_usd=cell.cost_usd,
        workers=(worker.id,),
        dataset=question.dataset,
        domain=question.domain,
        score=None if cell.score == float(cell.correct) else cell.score,
        answer=cell.answer,
        verdict=cell.verdict,
        worker_input_tokens=cell.input_tokens,
        worker_output_tokens=cell.output_tokens,
        router_input_tokens=0,
        router_output_tokens=0,
        latency_s=cell.latency_s,
    )


def _combined(matrix: ResponseMatrix, row: int, winner: int, asked: Sequence[int], parallel: bool) -> Outcome:
    """The winner's outcome at the cost of all that were asked. No mode of the router's does this, so it has none."""
    cells = [matrix.cells[row][place] for place in asked]
    said = matrix.cells[row][winner]
    latencies = [cell.latency_s for cell in cells]
    join = max if parallel else sum
    return Outcome(
        **{
            **vars(single_outcome(matrix.questions[row], matrix.workers[winner], said)),
            "mode": None,
            "workers": tuple(matrix.workers[place].id for place in asked),
            "cost_usd": _total([cell.cost_usd for cell in cells]),
            "worker_input_tokens": _total([cell.input_tokens for cell in cells]),
            "worker_output_tokens": _total([cell.output_tokens for cell in cells]),
            "latency_s": None if None in latencies else join(latencies),
        }
    )


def _winner(matrix: ResponseMatrix, row: int, by_price: Sequence[int]) -> int:
    votes: dict[str, list[int]] = {}
    for place in by_price:
        if (key := _key(matrix, row, place)) is not None:
            votes.setdefault(key, []).append(place)
    if votes:
        return max(votes.values(), key=len)[0]  # of equals the first, which holds the cheapest
    replied = [place for place in by_price if not matrix.cells[row][place].is_lost]
    return (replied or list(by_price))[0]


def _key(matrix: ResponseMatrix, row: int, place: int) -> str | None:
    cell = matrix.cells[row][place]
    return answer_key(cell.answer, matrix.questions[row].dataset) if cell.status == Status.ANSWERED.value else None


def _known_costs(matrix: ResponseMatrix) -> np.ndarray:
    """USD, f64[Q, W]; a Worker's mean where a call's own cost is not known."""
    return np.where(np.isnan(matrix.costs), matrix.mean_costs, matrix.costs)


def _total(counts: Sequence):
    return None if None in counts else sum(counts)


def _require_answers(matrix: ResponseMatrix, name: str) -> None:
    if not matrix.has_answers:
        raise DataError(f"the {name} compares answers, and this response matrix holds scores only; leave it out")
