"""Recorded outcomes of real models as response matrices, without a call."""

from __future__ import annotations

from collections.abc import Sequence

from rw.data.llmrouter9 import MODELS, ScoredQuestion, modelled_cost_usd
from rw.evaluation.response_matrix import Cell, MatrixQuestion, MatrixWorker, ResponseMatrix


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
