"""Recorded outcomes of real models as response matrices, without a call."""

from __future__ import annotations

from collections.abc import Sequence

from rw.data.llmrouter9 import MODELS, ScoredQuestion, modelled_cost_usd
from rw.data.replay import NQ6_MODELS, Answers, RecordedAnswer
from rw.evaluation.response_matrix import Cell, MatrixQuestion, MatrixWorker, ResponseMatrix
from rw.scoring.short_answer import trivia_qa
from rw.simulation.plans import copied_answer
from rw.types import Query


def scores_matrix(questions: Sequence[ScoredQuestion]) -> ResponseMatrix:
    """LLMRouter's nine models on these questions: scores as recorded, costs modelled, no answers, no times."""
    return ResponseMatrix(
        workers=tuple(MatrixWorker(model.name, model.price, model.price) for model in MODELS),
        questions=tuple(
            MatrixQuestion(question.id, question.text, question.task, question.domain, question.domain)
            for question in questions
        ),
        cells=tuple(
            tuple(
                Cell(score, score == 1.0, modelled_cost_usd(question, model))
                for score, model in zip(question.scores, MODELS, strict=True)
            )
            for question in questions
        ),
        about={"source": "llmrouter9", "modelled_cost": True},
    )


def nq6_matrix(queries: Sequence[Query], answers: Answers) -> ResponseMatrix:
    """The six recorded models on these questions: what episodes that copy an answer of a few words would earn.

    That holds as long as the router is shown the answer: a reply that is cut in its middle could hide it. Costs are
    those recorded, of outputs alone.
    """

    def cell(query: Query, said: RecordedAnswer) -> Cell:
        answer = copied_answer(said.text)
        is_right = trivia_qa(answer, query).correct
        return Cell(float(is_right), is_right, said.cost_usd, answer)

    return ResponseMatrix(
        workers=tuple(MatrixWorker(model.id, 0.0, model.output_price) for model in NQ6_MODELS),
        questions=tuple(
            MatrixQuestion(
                query.id,
                query.metadata["question"],
                query.dataset,
                query.domain,
                str(query.metadata.get("type", query.domain)),
            )
            for query in queries
        ),
        cells=tuple(
            tuple(cell(query, answers[query.metadata["question"]][model.model]) for model in NQ6_MODELS)
            for query in queries
        ),
        about={"source": "nq6"},
    )
