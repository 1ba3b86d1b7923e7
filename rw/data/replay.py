"""Recorded answers of six real models to 320 Natural Questions, as queries, Worker cards and a table of what was said.

The records are those of LLMRouter (MIT; the notice lies beside the file). A record names its models in an order of its
own, so answers are always joined by name. Costs are recorded in millionths of a USD, hold the output only, and are
whole tokens times the model's output price; token counts are not recorded but follow from that.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import lzma
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rw.data.answer_formats import SHORT_ANSWER
from rw.errors import DataError
from rw.types import Query, WorkerCard

NQ6_PATH = pathlib.Path(__file__).parent / "files" / "nq6_outcomes.jsonl.xz"
_OUTPUT_LIMIT = 512  # the longest recorded outputs of three models are exactly this long and break off


@dataclasses.dataclass(frozen=True)
class RecordedModel:
    """One of the recorded models, under the anonymous id that the router knows it by."""

    id: str
    model: str
    output_price: float  # USD per million tokens: the price that makes every recorded cost a whole number of tokens
    description: str

    @property
    def card(self) -> WorkerCard:
        return WorkerCard(self.id, self.description)


@dataclasses.dataclass(frozen=True)
class RecordedAnswer:
    """What one model said to one question; its input tokens were not recorded."""

    model: str
    text: str
    output_tokens: int
    cost_usd: float  # of the output
    token_f1: float  # as recorded, against the best reference
    finish_reason: str


NQ6_MODELS = (
    RecordedModel(
        "worker_1",
        "google/gemma-2-27b-it",
        0.8,
        "Mid-sized instruction model with a broad general education. Answers factual questions tersely, in few words.",
    ),
    RecordedModel(
        "worker_2",
        "meta/llama-3.1-70b-instruct",
        0.88,
        "Large general model with wide factual coverage and multi-step reasoning. Tends to explain at length.",
    ),
    RecordedModel(
        "worker_3",
        "meta/llama-3.1-8b-instruct",
        0.18,
        "Small, quick general model for everyday questions and instructions. Knows common facts, less of the obscure.",
    ),
    RecordedModel(
        "worker_4",
        "mistralai/mistral-7b-instruct-v0.3",
        0.2,
        "Small, efficient model for simple requests and plain language tasks. Answers in one or two sentences.",
    ),
    RecordedModel(
        "worker_5",
        "mistralai/mixtral-8x22b-instruct-v0.1",
        1.2,
        "Large mixture-of-experts model, at home in several languages. Good at knowledge questions and exact wording.",
    ),
    RecordedModel(
        "worker_6",
        "qwen/qwen2.5-7b-instruct",
        0.3,
        "Small model, strong for its size in mathematics, code and structured text. Weaker on trivia.",
    ),
)

Answers = dict[str, dict[str, RecordedAnswer]]  # question -> model name -> answer


def load_nq6(path: str | os.PathLike[str] | None = None) -> tuple[list[Query], tuple[WorkerCard, ...], Answers]:
    """Queries in recorded order, the six cards, and the answers by question and model name.

    Args:
        path: JSONL, or JSONL under xz where the name ends so; None takes the file that ships with the package.

    Raises:
        DataError: a record that cannot be used, with its id.
    """
    source = NQ6_PATH if path is None else pathlib.Path(path)
    data = source.read_bytes()
    text = (lzma.decompress(data) if source.suffix == ".xz" else data).decode("utf-8")
    queries: list[Query] = []
    ids: set[str] = set()
    answers: Answers = {}
    # Not splitlines(): texts may hold raw characters that it also takes for line ends.
    for number, line in enumerate(text.split("\n"), start=1):
        if line:
            query, said = _read_record(line, f"{source.name} line {number}")
            if query.metadata["question"] in answers:
                raise DataError(f"{query.id}: its question was recorded before, and answers are found by question")
            if query.id in ids:
                raise DataError(f"{query.id}: its id was recorded before, and sampling keys and modes are drawn by id")
            ids.add(query.id)
            queries.append(query)
            answers[query.metadata["question"]] = said
    return queries, tuple(model.card for model in NQ6_MODELS), answers


def split(
    queries: Sequence[Query], seed: int, test: int = 120, validation: int = 0
) -> tuple[list[Query], list[Query], list[Query]]:
    """(train, validation, test) queries, each in the given order; the draw depends on seed and questions alone, not on
    the order, and which queries are for testing does not depend on `validation`.

    Raises:
        DataError: fewer than `test` + `validation` + 1 queries.
    """
    if min(test, validation) < 0 or not test + validation < len(queries):
        raise DataError(
            f"cannot hold out {test} test and {validation} validation of {len(queries)} queries and train on the rest"
        )
    ranked = [query.id for query in sorted(queries, key=lambda query: _rank(seed, query))]
    tested, validated = set(ranked[:test]), set(ranked[test : test + validation])
    return (
        [query for query in queries if query.id not in tested | validated],
        [query for query in queries if query.id in validated],
        [query for query in queries if query.id in tested],
    )


def _rank(seed: int, query: Query) -> tuple[bytes, str]:
    question = str(query.metadata.get("question", query.prompt))
    return hashlib.sha256(f"{seed}/{question}".encode()).digest(), query.id


def _read_record(line: str, where: str) -> tuple[Query, dict[str, RecordedAnswer]]:
    try:
        record: Mapping[str, Any] = json.loads(line)
        query_id, question, references = f"nq-{record['q_id']}", record["query"].strip(), tuple(record["gt"])
        columns = [record[key] for key in ("llm_name_list", "response_list", "cost_list", "perf_list")]
        rows = {name: (text, cost, f1) for name, text, cost, f1 in zip(*columns, strict=True)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{where}: not a recorded outcome ({type(error).__name__}: {error})") from error
    if not question or not references:
        raise DataError(f"{query_id}: question or reference answers are empty")
    missing = [model.model for model in NQ6_MODELS if model.model not in rows]
    if missing:
        raise DataError(f"{query_id}: no answer of {', '.join(missing)}")
    query = Query(
        id=query_id,
        dataset="nq",
        domain="recall",
        prompt=f"{question}\n{SHORT_ANSWER}",
        reference=references,
        metadata={"question": question},
    )
    return query, {model.model: _recorded(query_id, model, *rows[model.model]) for model in NQ6_MODELS}


def _recorded(query_id: str, model: RecordedModel, text: str, cost: float, f1: float) -> RecordedAnswer:
    output_tokens = round(cost / model.output_price)
    if abs(output_tokens * model.output_price - cost) > 1e-9 * max(1.0, cost) or output_tokens < 1:
        raise DataError(
            f"{query_id}: cost {cost} of {model.model} is no whole number of tokens at price {model.output_price}"
        )
    finish_reason = "length" if output_tokens >= _OUTPUT_LIMIT else "stop"
    return RecordedAnswer(model.model, text, output_tokens, cost / 1e6, float(f1), finish_reason)
