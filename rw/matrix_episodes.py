"""Response matrices through the episodes of a run: every Worker asked every question once, in single mode.

A scripted router stands in for the model, so budgets, prompts, journals, cassette, caps and scorers are those of
training. Calls are made for what no file holds yet, and a restart pays for none of them twice.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from rw import progress
from rw.config import as_dict
from rw.data.answer_formats import without_line
from rw.errors import ConfigError
from rw.evaluation.outcomes import outcome
from rw.evaluation.response_matrix import (
    Cell,
    MatrixQuestion,
    MatrixWorker,
    ResponseMatrix,
    fitting,
    matrix_path,
    read_matrix,
    write_matrix,
)
from rw.parts import Parts
from rw.protocol.prompts import Prompts
from rw.run_config import MAY_CHANGE, RunConfig
from rw.sampler.interface import TurnRequest
from rw.sampler.scripted import Script, ScriptedSampler, ScriptView
from rw.simulation.plans import NO_ANSWER, PlannedRoute
from rw.simulation.policies import QUESTION_PHRASES
from rw.types import Group, Mode, Query, ScoredTrajectory, Status
from rw.worker_pool import worker_endpoints
from rw.workers.pricing import PriceTable

DECISIVE = ("tokenizer", "protocol", "scoring", "credit")  # sections that decide what a Worker is asked and what counts
ON_LAST_LINE = ("simple_qa_verified", "simulated", "trivia_qa")  # these ask for a short answer there
ON_FIRST_LINE = ("nq",)  # recorded replies begin with what they know
_TAG = re.compile(r"<(?=/?(?:answer|mode|observation|route)\b)")


def matrix_workers(config: RunConfig) -> tuple[MatrixWorker, ...]:
    """The columns of a run's matrices."""
    endpoints = worker_endpoints(config)
    prices = PriceTable.from_endpoints(endpoints)
    world = config.workers.world_seed if config.workers.kind == "simulated" else None
    return tuple(
        MatrixWorker(
            worker.id,
            prices[worker.id].input,
            prices[worker.id].output,
            _digest(
                [
                    config.workers.kind,
                    world,
                    worker.model,
                    dict(worker.extra_body),
                    worker.temperature,
                    worker.seed,
                    worker.max_output_tokens,
                ]
            ),
        )
        for worker in endpoints
    )


def matrix_questions(queries: Sequence[Query]) -> tuple[MatrixQuestion, ...]:
    """The rows; a question is learnt from without the line that says how to answer."""
    return tuple(
        MatrixQuestion(
            query.id,
            without_line(query.prompt) or query.prompt,
            query.dataset,
            query.domain,
            str(query.metadata["type"]) if query.dataset == "simulated" else query.domain,
        )
        for query in queries
    )


def conditions(config: RunConfig) -> dict[str, Any]:
    """Prompts, limits and scorers, as plain JSON values by their key in the config."""
    whole = json.loads(json.dumps(as_dict(config)))
    found = {f"{name}.{key}": value for name in DECISIVE for key, value in whole[name].items()}
    lasting = {
        key: value for key, value in found.items() if not any(fnmatch.fnmatchcase(key, one) for one in MAY_CHANGE)
    }
    return {**lasting, "prompts": Prompts.load(config.protocol.templates).fingerprint}


def saved_matrix(
    config: RunConfig, workdir: str | pathlib.Path, split: str, queries: Sequence[Query], shared: str = ""
) -> ResponseMatrix | None:
    """The matrix of these questions that a file holds; None where there is no file yet.

    Args:
        shared: another workdir whose matrices are used, or nothing.

    Raises:
        ConfigError: the other workdir has none.
        DataError: the file is of other Workers, prices, questions or prompts, or is damaged.
    """
    path = matrix_path(shared or workdir, split)
    if not path.is_file():
        if shared:
            raise ConfigError(
                f"--matrix {shared}: {path} is not there; rw baselines makes it in the workdir it runs in"
            )
        return None
    questions = matrix_questions(queries)
    return fitting(read_matrix(path), matrix_workers(config), questions, conditions(config), str(path))


async def recorded_matrix(parts: Parts, split: str, queries: Sequence[Query], shared: str = "") -> ResponseMatrix:
    """The matrix of these questions: from its file, or by asking every Worker, which makes the file.

    Raises:
        OutageError, StopRequested, BudgetExhaustedError: as `Parts.collect` does; what was answered is in the journal.
    """
    found = saved_matrix(parts.config, parts.workdir.path, split, queries, shared)
    path = matrix_path(shared or parts.workdir.path, split)
    if found is not None:
        progress.say(f"response matrix of {len(queries)} {split} questions: reused from {path}")
        return found
    for query in queries:
        parts.protocol.check_fits(query)
    scope = f"matrix_{split}"
    groups = await _ask_every_worker(parts, queries, scope)
    if _lost(groups):
        progress.say(f"{_lost(groups)} calls were lost to infrastructure and are asked once more")
        groups = await _ask_every_worker(parts, queries, scope)
    matrix = ResponseMatrix(
        matrix_workers(parts.config),
        matrix_questions(queries),
        tuple(tuple(_cell(group, scored) for scored in group.rollouts) for group in groups),
        {"source": parts.config.data.source, "split": split, "conditions": conditions(parts.config)},
    )
    write_matrix(path, matrix)
    progress.say(f"response matrix of {len(queries)} {split} questions × {len(matrix.workers)} Workers: {path}")
    if matrix.lost:
        progress.say(
            f"{matrix.lost} of its cells were lost to infrastructure: they count as wrong. Remove {path} to ask these "
            "again; the others are not paid again"
        )
    else:
        parts.journals.discard(scope)
    return matrix


async def _ask_every_worker(parts: Parts, queries: Sequence[Query], scope: str) -> list[Group]:
    by_id = {query.id: query for query in queries}
    script = copying_script(Mode.SINGLE, lambda request: [parts.worker_ids[request.episode.rollout]], by_id.__getitem__)
    with parts.booked_as(scope), progress.rollouts(scope) as on_progress:
        return await parts.collect(
            ScriptedSampler(parts.codec, script),
            queries,
            None,
            scope=scope,
            rollouts_per_query=len(parts.worker_ids),
            step=0,
            policy_version=0,
            on_progress=on_progress,
        )


def copying_script(
    mode: Mode, workers_of: Callable[[TurnRequest], Sequence[str]], query_of: Callable[[str], Query]
) -> Script:
    """A router that asks Workers for the answer, one after the other, and copies that of the last reply whole.

    Args:
        workers_of: the Workers of an episode, in order.
        query_of: the query of an id.
    """

    def write(request: TurnRequest, view: ScriptView) -> str:
        if request.turn == 0:
            return f"<mode>{mode.word}</mode>"
        routes = [PlannedRoute(worker, QUESTION_PHRASES.solve).text for worker in workers_of(request)]
        if request.turn <= len(routes):
            return routes[request.turn - 1]
        reply = _observed(view.response, routes[-1])
        return f"<answer>{whole_answer(reply, query_of(request.episode.query_id))}</answer>"

    return write


def whole_answer(reply: str, query: Query) -> str:
    """The answer that a reply gives, whole: the body of its last answer tag, to the end where that is not closed.

    Without a tag: the line on which such a question's short answer stands, else all of it, in which the scorer looks
    for letter, label, number or program. Tags of the protocol inside lose their sense, so that no reply can close or
    open one of the router's.
    """
    _, tag, body = reply.rpartition("<answer>")
    if tag:
        body = body.partition("</answer>")[0]
    elif query.dataset in (*ON_FIRST_LINE, *ON_LAST_LINE):
        lines = [line for line in reply.splitlines() if line.strip()]
        body = lines[0 if query.dataset in ON_FIRST_LINE else -1] if lines else ""
    return _TAG.sub("< ", body).strip() or NO_ANSWER


def _observed(response: str, route: str) -> str:
    """The body of the observation that followed a route, the last one in the context."""
    _, _, shown = response.rpartition(route)
    _, _, body = shown.partition("<observation")
    return body.partition(">")[2].rpartition("</observation>")[0]


def _cell(group: Group, scored: ScoredTrajectory) -> Cell:
    found = outcome(group, scored)
    is_lost = found.status == Status.INFRASTRUCTURE_FAILURE.value
    return Cell(
        score=found.value,
        correct=found.correct,
        cost_usd=None if is_lost else found.cost_usd,
        answer=found.answer,
        status=found.status,
        violation=found.violation,
        cause=found.cause,
        verdict=found.verdict,
        input_tokens=found.worker_input_tokens,
        output_tokens=found.worker_output_tokens,
        latency_s=None if is_lost else found.latency_s,
    )


def _lost(groups: Sequence[Group]) -> int:
    rollouts = [scored.trajectory for group in groups for scored in group.rollouts]
    return sum(trajectory.status is Status.INFRASTRUCTURE_FAILURE for trajectory in rollouts)


def _digest(value) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
