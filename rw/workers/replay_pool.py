"""Workers that say what real models were recorded to say, served over the same HTTP path as any other.

A call is matched by the original question in its `Question:` section, whatever the sub-query asks: Worker k answers
with what model k really said to that question, so further calls of a multi or agentic rollout only add opinions.
Recorded costs hold output only. Usage is therefore the recorded output tokens and 0 input tokens, priced at 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rw.workers.config import WorkerEndpoint
from rw.workers.loopback import (
    Completion,
    CompletionCall,
    CompletionError,
    Faults,
    Handler,
    Latency,
    LoopbackServer,
    serve,
)

QUESTION_HEADING = "Question:"


class Recorded(Protocol):
    """What the pool needs of a recorded answer."""

    text: str
    output_tokens: int
    finish_reason: str


class RecordedWorker(Protocol):
    """What an endpoint needs of a recorded model."""

    id: str
    model: str
    description: str
    output_price: float


def recorded_handler(answers: Mapping[str, Mapping[str, Recorded]]) -> Handler:
    """A handler over question -> model -> answer; unknown questions and models are answered with 404."""

    def handle(call: CompletionCall) -> Completion:
        question = find_question(call.content, answers)
        if question is None:
            raise CompletionError(404, f"no recorded question under {QUESTION_HEADING!r} in: {call.content[:120]!r}")
        said = answers[question].get(call.model)
        if said is None:
            raise CompletionError(
                404, f"no model {call.model!r} was recorded; there are {', '.join(answers[question])}"
            )
        return Completion(said.text, 0, said.output_tokens, said.finish_reason)

    return handle


def find_question(content: str, known: Mapping[str, object]) -> str | None:
    """The longest known question that the section starts with, by whole lines; the section's first heading counts."""
    _, heading, section = f"\n{content}".partition(f"\n{QUESTION_HEADING}\n")
    if not heading:
        return None
    lines = section.split("\n")
    longest = max((question.count("\n") for question in known), default=0) + 1
    for count in range(min(longest, len(lines)), 0, -1):
        candidate = "\n".join(lines[:count]).strip()
        if candidate in known:
            return candidate
    return None


def recorded_endpoints(base_url: str, workers: Sequence[RecordedWorker]) -> tuple[WorkerEndpoint, ...]:
    """Endpoints of a served pool, priced so that a call costs what was recorded.

    Calls are named, since rollouts of one query send equal requests: a call's latency and faults must be its own.
    """
    return tuple(
        WorkerEndpoint(
            id=worker.id,
            description=worker.description,
            base_url=base_url,
            model=worker.model,
            input_price=0.0,
            output_price=worker.output_price,
            send_call_header=True,
            stream="never",  # a recorded answer is there at once
        )
        for worker in workers
    )


async def serve_recorded(
    answers: Mapping[str, Mapping[str, Recorded]],
    host: str = "127.0.0.1",
    port: int = 0,
    latency: Latency | None = None,
    faults: Faults | None = None,
) -> LoopbackServer:
    """Serves the recorded models on loopback."""
    models = sorted({model for said in answers.values() for model in said})
    return await serve(recorded_handler(answers), host, port, latency, faults, models)
