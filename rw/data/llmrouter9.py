"""Recorded scores of nine real models on 721 questions of 13 tasks: what each earns, and nothing of what it said.

The records are those of LLMRouter (MIT; the notice lies beside the file). They hold no answers and no token counts:
costs can only be modelled, from the prices and an assumed number of tokens, and are good for comparing routers with one
another, not for a bill. A score lies between 0 and 1; those of F1 and coverage are graded.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import lzma
import math
import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from rw.errors import DataError

LLMROUTER9_PATH = pathlib.Path(__file__).parent / "files" / "llmrouter9_outcomes.jsonl.xz"
TEST_SHARE = 1 / 3  # of the questions of each task
CHARACTERS_A_TOKEN = 4  # assumed
REPLY_TOKENS = 256  # assumed, of every model and task

DOMAINS = {
    "gsm8k": "math", "math": "math", "agentverse-mgsm": "math",
    "human_eval": "code", "mbpp": "code",
    "mmlu": "knowledge", "arc_challenge": "knowledge", "openbook_qa": "knowledge", "commonsense_qa": "knowledge",
    "agentverse-logicgrid": "reason",
    "natural_qa": "recall", "trivia_qa": "recall",
    "commongen": "writing",
}  # fmt: skip


class ScoredModel(NamedTuple):
    """One of the models with the prices of its fields, which differ from those its description states for some."""

    name: str
    price: float  # USD per million tokens, of input and of output alike


MODELS = (
    ScoredModel("gemma-2-9b-it", 0.10),
    ScoredModel("qwen2.5-7b-instruct", 0.20),
    ScoredModel("codegemma-7b", 0.20),
    ScoredModel("llama-3.1-8b-instruct", 0.20),
    ScoredModel("llama3-chatqa-1.5-8b", 0.20),
    ScoredModel("mistral-7b-instruct-v0.3", 0.20),
    ScoredModel("llama-3.3-nemotron-super-49b-v1", 0.90),
    ScoredModel("llama-3.1-nemotron-51b-instruct", 0.90),
    ScoredModel("llama3-chatqa-1.5-70b", 0.90),
)


@dataclasses.dataclass(frozen=True)
class ScoredQuestion:
    """A question and what each of MODELS earned, in their order."""

    id: str
    task: str
    text: str
    scores: tuple[float, ...]

    @property
    def domain(self) -> str:
        return DOMAINS[self.task]

    @property
    def tokens(self) -> tuple[int, int]:
        """Assumed of a call: (input, output)."""
        return math.ceil(len(self.text) / CHARACTERS_A_TOKEN), REPLY_TOKENS


def modelled_cost_usd(question: ScoredQuestion, model: ScoredModel) -> float:
    """What a call would cost with the assumed tokens."""
    return sum(question.tokens) * model.price / 1e6


def load_llmrouter9(path: str | os.PathLike[str] | None = None) -> list[ScoredQuestion]:
    """The questions in recorded order.

    Args:
        path: JSONL, or JSONL under xz where the name ends so; None takes the file that ships with the package.

    Raises:
        DataError: a record that cannot be used, with its line.
    """
    source = LLMROUTER9_PATH if path is None else pathlib.Path(path)
    data = source.read_bytes()
    text = (lzma.decompress(data) if source.suffix == ".xz" else data).decode("utf-8")
    found: dict[str, ScoredQuestion] = {}
    # Not splitlines(): a text holds a raw separator that it would also take for the end of a line.
    for number, line in enumerate(text.split("\n"), start=1):
        if line:
            question = _read_record(line, f"{source.name} line {number}")
            if question.id in found:
                raise DataError(f"{source.name} line {number}: its question was recorded before")
            found[question.id] = question
    return list(found.values())


def split(questions: Sequence[ScoredQuestion], seed: int = 0) -> tuple[list[ScoredQuestion], list[ScoredQuestion]]:
    """(train, test), each in the given order: a third of each task is tested, drawn by seed and question alone."""
    tested: set[str] = set()
    for task in sorted({question.task for question in questions}):
        ranked = sorted((_rank(seed, question), question.id) for question in questions if question.task == task)
        tested |= {id_ for _, id_ in ranked[: round(len(ranked) * TEST_SHARE)]}
    return (
        [question for question in questions if question.id not in tested],
        [question for question in questions if question.id in tested],
    )


def _rank(seed: int, question: ScoredQuestion) -> bytes:
    return hashlib.sha256(f"{seed}/{question.text}".encode()).digest()


def _read_record(line: str, where: str) -> ScoredQuestion:
    try:
        record = json.loads(line)
        task, text, scores = record["task_name"], record["query"], record["scores"]
        if task not in DOMAINS:
            raise DataError(f"{where}: unknown task {task!r}; one of {', '.join(DOMAINS)}")
        earned = tuple(float(scores[model.name]) for model in MODELS)
        id_ = f"{task}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{where}: not a record of scores ({type(error).__name__}: {error})") from error
    if not text.strip() or not all(0 <= score <= 1 for score in earned):
        raise DataError(f"{where}: the question is empty or a score is not between 0 and 1")
    return ScoredQuestion(id_, task, text, earned)
