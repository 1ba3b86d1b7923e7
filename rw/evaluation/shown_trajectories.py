"""Which trajectories of an arm the page shows, and what it shows of them: texts cut to a length, calls as a graph.

A spread over sets, modes and outcomes that depends on the questions alone, so that arms show the same ones where they
can. Reads the trajectories' files; makes no page.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rw.errors import DataError
from rw.evaluation.domains import stratum_of
from rw.evaluation.outcomes import ArmResult, Outcome, trajectories_path

MOST_PER_ARM = 60
MOST_IN_ALL = 400
LEAST_PER_ARM = 12
HEAD, TAIL = 2000, 500  # characters kept of a longer text
QUESTION, ANSWER = "question", "answer"
STOPPED = "stopped"  # in place of the answer where there is none


def shown(workdir: str | os.PathLike[str], arms: Mapping[str, ArmResult]) -> dict[str, dict[str, Any]]:
    """{"of", "trajectories"} of each arm that has any: how many there are, and those that are shown.

    Raises:
        DataError: a file of trajectories that holds something else; names its line.
    """
    paths = {name: path for name in arms if (path := trajectories_path(workdir, name)).is_file()}
    most = min(MOST_PER_ARM, max(LEAST_PER_ARM, MOST_IN_ALL // max(len(paths), 1)))
    found = {}
    for name, path in paths.items():
        chosen = {outcome.query_id: outcome for outcome in spread(arms[name].outcomes, most)}
        records = read_chosen(path, chosen)
        if records:
            found[name] = {"of": len(arms[name].outcomes), "trajectories": records}
    return found


def spread(outcomes: Sequence[Outcome], most: int) -> list[Outcome]:
    """At most so many outcomes, taken in turn from every set, mode and kind of ending that occurs."""
    cells: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda o: hashlib.sha256(o.query_id.encode("utf-8", "replace")).digest()):
        stratum = stratum_of(outcome)
        key = (stratum.domain, stratum.dataset, outcome.mode or "", outcome.status, str(outcome.correct))
        cells.setdefault(key, []).append(outcome)
    turns = itertools.zip_longest(*(cells[key] for key in sorted(cells)))
    return list(itertools.islice((outcome for turn in turns for outcome in turn if outcome is not None), most))


def read_chosen(path: pathlib.Path, chosen: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """What is shown of the file's trajectories of the chosen questions, in their order there."""
    return [
        described
        for described in _read(path, lambda record: _if_chosen(record, chosen.get(record["query_id"])))
        if described is not None
    ]


def read_questions(path: pathlib.Path) -> dict[str, str]:
    """The text of every question of a file of trajectories, by its id."""
    return dict(_read(path, lambda record: (record["query_id"], record["question"])))


def _if_chosen(record: Mapping[str, Any], outcome: Outcome | None) -> dict[str, Any] | None:
    return None if outcome is None else describe_shown(record, outcome)


def _read(path: pathlib.Path, use: Callable[[Mapping[str, Any]], Any]) -> list[Any]:
    """What is made of each line's record."""
    found = []
    number = 0
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, start=1):  # noqa: B007, the error below names it
                found.append(use(json.loads(line)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} line {number}: no trajectory ({type(error).__name__}: {error}); restore the file, or remove it to "
            "have a report without what was said"
        ) from error
    return found


def describe_shown(record: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    """One trajectory as the page needs it, with its texts cut."""
    stratum = stratum_of(outcome)
    verdict = record.get("verdict") or {}
    nodes, edges = graph(record["calls"], record["mode"], record["status"])
    return {
        "id": record["query_id"],
        "set": stratum.dataset,
        "domain": stratum.domain,
        "mode": record["mode"] or "none",
        "forced": bool(record.get("forced")),
        "status": record["status"],
        "reason": record.get("violation") or record.get("cause"),
        "correct": outcome.correct,
        "score": outcome.score,
        "question": cut(record["question"]),
        "answer": cut(record["answer"]),
        "reference": cut(_as_text(record.get("reference"))),
        "verdict": cut(" · ".join(filter(None, (verdict.get("kind"), verdict.get("scorer"), verdict.get("detail"))))),
        "cost_usd": outcome.cost_usd,
        "latency_s": outcome.latency_s,
        "router_tokens": [outcome.router_input_tokens, outcome.router_output_tokens],
        "turns": [[turn["segment"], cut(turn["text"])] for turn in record["turns"]],
        "calls": [_call(call) for call in record["calls"]],
        "nodes": nodes,
        "edges": edges,
    }


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("role", "status", "failure", "input_tokens", "output_tokens", "cost_usd", "latency_s", "attempts")
    return {
        "node": call["node_id"],
        "worker": call["worker_id"],
        "subquery": cut(call["subquery"]),
        "output": cut(call["output"]),
        "references": list(call["references"]),
        **{name: call.get(name) for name in kept},
    }


def graph(calls: Sequence[Mapping[str, Any]], mode: str | None, status: str) -> tuple[list[list[Any]], list[list[str]]]:
    """The calls as a directed graph from the question to the answer.

    Returns:
        nodes as [id, column, row] and edges as [from, to]. A column is a turn of the router; where calls do not know
        theirs, it is how deep their references reach, and in multi each call has its own. Edges follow references;
        a call without any hangs on the question, or in multi on the call before it, whose reply the router had read.
        What no call builds on leads to the answer.
    """
    columns = _columns(calls, mode)
    rows: dict[int, int] = {}
    nodes: list[list[Any]] = [[QUESTION, 0, 0]]
    edges: list[list[str]] = []
    before = QUESTION
    for call in calls:
        column = columns[call["node_id"]]
        nodes.append([call["node_id"], column, rows.get(column, 0)])
        rows[column] = rows.get(column, 0) + 1
        known = [reference for reference in call["references"] if reference in columns]
        sources = known or [before if mode == "multi" else QUESTION]
        edges.extend([source, call["node_id"]] for source in sources)
        before = call["node_id"]
    used = {source for source, _ in edges}
    ends = [call["node_id"] for call in calls if call["node_id"] not in used] or [QUESTION]
    last = ANSWER if status == "answered" else STOPPED
    nodes.append([last, 1 + max(columns.values(), default=0), 0])
    return nodes, edges + [[end, last] for end in ends]


def _columns(calls: Sequence[Mapping[str, Any]], mode: str | None) -> dict[str, int]:
    turns = [call.get("turn") for call in calls]
    if None not in turns:
        places = {turn: place for place, turn in enumerate(sorted(set(turns)), start=1)}
        return {call["node_id"]: places[turn] for call, turn in zip(calls, turns, strict=True)}
    columns: dict[str, int] = {}
    for place, call in enumerate(calls, start=1):
        depth = 1 + max((columns.get(reference, 0) for reference in call["references"]), default=0)
        columns[call["node_id"]] = place if mode == "multi" else depth
    return columns


def cut(text: str | None) -> str | None:
    """A text of at most HEAD + TAIL characters: of a longer one its two ends, with what is left out said between."""
    if text is None or len(text) <= HEAD + TAIL:
        return text
    left_out = len(text) - HEAD - TAIL
    return f"{text[:HEAD]}\n[… {left_out:,} of {len(text):,} characters are left out here …]\n{text[-TAIL:]}"


def _as_text(reference: Any) -> str | None:
    if reference is None or isinstance(reference, str):
        return reference
    return json.dumps(reference, ensure_ascii=False)
