"""What every Worker answers to every question, recorded once: all that single-call baselines need to know.

`<workdir>/matrix/<split>.jsonl` holds a header and then one line a question with a cell for each Worker. The header has
digests of Workers, prices, questions and of the conditions under which they were asked, so that a file of others is
refused in words. Knows neither episodes nor endpoints: how cells come about is their maker's business.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rw.errors import DataError
from rw.types import Status

FOLDER = "matrix"
FORMAT_VERSION = 1
SHOWN = 80  # characters of a question in an error


@dataclasses.dataclass(frozen=True)
class MatrixWorker:
    """A column: the Worker's id, its price in USD per million tokens, and a digest of all its answers depend on."""

    id: str
    input_price: float
    output_price: float
    digest: str = ""

    @property
    def price(self) -> float:
        """By which Workers are told large from small: of a million tokens in and a million out."""
        return self.input_price + self.output_price


@dataclasses.dataclass(frozen=True)
class MatrixQuestion:
    """A row: the question as learned routers read it, and by what its outcomes are told apart."""

    id: str
    text: str
    dataset: str
    domain: str
    kind: str  # as in Outcome


@dataclasses.dataclass(frozen=True)
class Cell:
    """What came of asking one Worker one question in single mode."""

    score: float  # in [0, 1]
    correct: bool
    cost_usd: float | None  # None: usage is missing
    answer: str | None = None  # None: not recorded, or lost
    status: str = Status.ANSWERED.value
    violation: str | None = None
    cause: str | None = None
    verdict: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    latency_s: float | None = None

    @property
    def is_lost(self) -> bool:
        """Whether infrastructure prevented it."""
        return self.status == Status.INFRASTRUCTURE_FAILURE.value


@dataclasses.dataclass(frozen=True)
class ResponseMatrix:
    """Q questions × W Workers. `about` says in plain JSON values what it is of: `source`, `conditions` (by name,
    settings under which the Workers were asked), `modelled_cost` where costs are computed and not measured."""

    workers: tuple[MatrixWorker, ...]
    questions: tuple[MatrixQuestion, ...]
    cells: tuple[tuple[Cell, ...], ...]  # [Q][W]
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if not self.workers or len(self.cells) != len(self.questions):
            raise DataError(
                f"{len(self.cells)} rows of {len(self.questions)} questions and {len(self.workers)} Workers"
            )
        for question, row in zip(self.questions, self.cells, strict=True):
            if len(row) != len(self.workers):
                raise DataError(f"{question.id}: {len(row)} cells of {len(self.workers)} Workers")
            if not all(0 <= cell.score <= 1 for cell in row):
                raise DataError(f"{question.id}: scores {[cell.score for cell in row]} must lie in [0, 1]")

    @functools.cached_property
    def scores(self) -> np.ndarray:
        """f64[Q, W]."""
        return np.array([[cell.score for cell in row] for row in self.cells], float).reshape(-1, len(self.workers))

    @functools.cached_property
    def costs(self) -> np.ndarray:
        """USD, f64[Q, W]; NaN where a cost is not known, or the call was lost."""
        found = [
            [np.nan if cell.is_lost or cell.cost_usd is None else cell.cost_usd for cell in row] for row in self.cells
        ]
        return np.array(found, float).reshape(-1, len(self.workers))

    @property
    def by_price(self) -> list[int]:
        """Places of the Workers, the cheapest first; of equals the earlier."""
        return sorted(range(len(self.workers)), key=lambda place: self.workers[place].price)

    @property
    def mean_costs(self) -> np.ndarray:
        """USD of a Worker's mean known call, f64[W]; by price where a Worker has none."""
        by_price = np.array([worker.price for worker in self.workers]) / 1e6
        is_known = ~np.isnan(self.costs)
        sums, counts = np.where(is_known, self.costs, 0.0).sum(0), is_known.sum(0)
        return np.where(counts > 0, sums / np.maximum(counts, 1), by_price)

    @property
    def texts(self) -> list[str]:
        return [question.text for question in self.questions]

    @property
    def has_answers(self) -> bool:
        """Whether it holds what was said, not only what that earned."""
        return any(cell.answer is not None for row in self.cells for cell in row)

    @property
    def lost(self) -> int:
        """Cells that infrastructure prevented."""
        return sum(cell.is_lost for row in self.cells for cell in row)

    def select(self, ids: Sequence[str]) -> ResponseMatrix:
        """The rows of these questions, in this order; KeyError for one that is not there."""
        place = {question.id: row for row, question in enumerate(self.questions)}
        rows = [place[id_] for id_ in ids]
        return dataclasses.replace(
            self,
            questions=tuple(self.questions[row] for row in rows),
            cells=tuple(self.cells[row] for row in rows),
        )


def matrix_path(workdir: str | os.PathLike[str], split: str) -> pathlib.Path:
    """Where the matrix of a split is kept."""
    return pathlib.Path(workdir) / FOLDER / f"{split}.jsonl"


def write_matrix(path: str | os.PathLike[str], matrix: ResponseMatrix) -> pathlib.Path:
    """Writes the file whole or not at all, and returns it."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = _rows(matrix)
    header = {
        "matrix": FORMAT_VERSION,
        "workers": [vars(worker) for worker in matrix.workers],
        "about": dict(matrix.about),
        "digests": digests(matrix),
        "rows": rows_digest(matrix),
    }
    aside = path.with_suffix(".jsonl.part")
    with open(aside, "w", encoding="utf-8") as file:
        file.write(json.dumps(header) + "\n")
        file.writelines(rows)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    return path


def read_matrix(path: str | os.PathLike[str]) -> ResponseMatrix:
    """The matrix that a file holds; DataError where it holds none, or not as it was written."""
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
        head, _, body = text.partition("\n")
        header = json.loads(head)
        if header["matrix"] != FORMAT_VERSION:
            raise DataError(f"{path} is of format {header['matrix']}; this version of rw reads {FORMAT_VERSION}")
        if header["rows"] != _digest(body):
            raise DataError(f"{path} is not as it was written: restore it, or remove it to ask the Workers again")
        records = [json.loads(line) for line in body.split("\n") if line]
        cells = tuple(tuple(Cell(**cell) for cell in record.pop("cells")) for record in records)
        questions = tuple(MatrixQuestion(**record) for record in records)
        return ResponseMatrix(tuple(MatrixWorker(**w) for w in header["workers"]), questions, cells, header["about"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a response matrix ({type(error).__name__}: {error})") from error


def digests(matrix: ResponseMatrix) -> dict[str, str]:
    """sha256 (hex) of what a matrix is of, by name."""
    return {
        "workers": _digest([[worker.id, worker.digest] for worker in matrix.workers]),
        "prices": _digest([[worker.input_price, worker.output_price] for worker in matrix.workers]),
        "questions": _digest([[question.id, question.text] for question in matrix.questions]),
        "conditions": _digest(dict(sorted(matrix.about.get("conditions", {}).items()))),
    }


def rows_digest(matrix: ResponseMatrix) -> str:
    """sha256 (hex) of all that it says of its questions."""
    return _digest("".join(_rows(matrix)))


def _rows(matrix: ResponseMatrix) -> list[str]:
    return [
        json.dumps({**vars(question), "cells": [vars(cell) for cell in row]}) + "\n"
        for question, row in zip(matrix.questions, matrix.cells, strict=True)
    ]


def fitting(
    matrix: ResponseMatrix,
    workers: Sequence[MatrixWorker],
    questions: Sequence[MatrixQuestion],
    conditions: Mapping[str, Any],
    where: str,
) -> ResponseMatrix:
    """The rows of these questions, from a matrix of them and perhaps more.

    Conditions that the file does not know of, or alone knows of, are those of another version of rw, and pass.

    Raises:
        DataError: its Workers, prices, questions or conditions are others; says which, and what to do.
    """
    if reason := _difference(matrix, workers, questions, conditions):
        raise DataError(
            f"the response matrix {where} is of another setting: {reason}. Take that back, or remove the file, or take "
            "another --workdir, to ask the Workers again"
        )
    return matrix.select([question.id for question in questions])


def _difference(
    matrix: ResponseMatrix,
    workers: Sequence[MatrixWorker],
    questions: Sequence[MatrixQuestion],
    conditions: Mapping[str, Any],
) -> str:
    """In words, what is not the same; empty where all is."""
    stored, wanted = [worker.id for worker in matrix.workers], [worker.id for worker in workers]
    if stored != wanted:
        return f"it holds answers of Workers {', '.join(stored)}, and the config has {', '.join(wanted)}"
    for old, new in zip(matrix.workers, workers, strict=True):
        if old.digest != new.digest:
            return f"Worker {new.id} has another model or other settings than when it was asked"
    for old, new in zip(matrix.workers, workers, strict=True):
        if (old.input_price, old.output_price) != (new.input_price, new.output_price):
            return (
                f"the prices of Worker {new.id} were {old.input_price:g} and {old.output_price:g} USD per million "
                f"tokens and are {new.input_price:g} and {new.output_price:g}"
            )
    asked_under, now = matrix.about.get("conditions", {}), json.loads(json.dumps(dict(conditions)))
    for name in sorted(asked_under.keys() & now.keys()):
        if asked_under[name] != now[name]:
            return f"{name} was {asked_under[name]!r} when the Workers were asked and is {now[name]!r}"
    known = {question.id: question for question in matrix.questions}
    missing = [question.id for question in questions if question.id not in known]
    if missing:
        return f"it lacks {len(missing)} of the {len(questions)} questions, first {missing[0]}"
    for question in questions:
        if known[question.id] != question:
            return f"question {question.id} was another one: {known[question.id].text[:SHOWN]!r}"
    return ""


def _digest(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return hashlib.sha256(text.encode()).hexdigest()
