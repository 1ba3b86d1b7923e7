"""The arms of a working directory: ways to answer the same questions, each kept as soon as it is whole.

What is kept is not answered again. Arms of other questions, of another router or under other conditions go to
`superseded/`: those that lie side by side are compared with one another.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from rw import progress
from rw.config import as_dict
from rw.errors import DataError
from rw.evaluation.outcomes import (
    ArmResult,
    Outcome,
    arm_path,
    outcomes,
    read_arm,
    readable_part,
    trajectories_path,
    write_arm,
)
from rw.learner.checkpoint import config_fingerprint, lasting_fingerprint
from rw.parts import Parts
from rw.protocol.prompts import Prompts
from rw.questions import check_asked, draw_of_generalisation, draw_of_test
from rw.rollout.record import write_trajectories
from rw.run_config import MAY_CHANGE, RunConfig
from rw.types import Group, Query

# Sections that decide what a router answers, and what that earns and costs.
DECISIVE = ("tokenizer", "model", "protocol", "workers", "scoring", "credit", "schedule.only_mode")
# What may differ from an arm that is kept: keys that a continued run may change, and prices that only reports need.
PRICES = ("router_input_price", "router_output_price")
NOT_COMPARED = ("config_fingerprint", *PRICES)
# Why an arm is not kept where it was.
OTHERS, DAMAGED = "they have other questions, conditions or another router", "their first line cannot be read"
# (label, journal's scope, questions) -> a group a question
RolledOut = Callable[[str, str, Sequence[Query]], Awaitable[list[Group]]]


class Arms:
    """Answers `queries` in one way after another. Every process of a job makes the same calls."""

    def __init__(self, parts: Parts, queries: Sequence[Query], draw: Mapping[str, Any]):
        """`draw`: what tells these questions from others, for the headers."""
        self.parts, self.queries = parts, queries
        config = parts.config
        self.conditions = conditions(config)
        self.questions = {
            "split": "test",
            **draw,
            "queries": len(queries),
            "source": config.data.source,
            "greedy": True,
            "seed": config.seed,
            "config_fingerprint": config_fingerprint(as_dict(config)),
            "conditions": self.conditions,
        }

    def about(self, step: int | None, router: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The header of an arm.

        Args:
            step: updates that made the router; None for a script, or where that is not known.
            router: `path` and `what` of a router, and the `fingerprint` of its parameters; None for a script.
        """
        evaluation = self.parts.config.evaluation
        prices = {name: getattr(evaluation, name) for name in PRICES if router is not None}
        return {**self.questions, "step": step, **({"router": dict(router)} if router else {}), **prices}

    def set_aside(self, expected: Callable[[str], Mapping[str, Any]]) -> None:
        """Moves arms of other questions, conditions or routers to `superseded/`, before anything is answered: not all
        of them may be asked for again.

        Args:
            expected: what the header of the arm of that name must hold, beside the questions.
        """
        if not self.parts.processes.is_first:
            return
        moved: dict[str, list[str]] = {}
        for path in sorted(arm_path(self.parts.workdir.path, "_").parent.glob("*.jsonl")):
            found = _stored(path)
            if found is None or not self._fits(found, {**self.questions, **expected(path.stem)}):
                said = trajectories_path(self.parts.workdir.path, path.stem)
                _move(path, path.parent / "superseded" / path.name)
                _move(said, path.parent / "superseded" / said.parent.name / said.name)
                moved.setdefault(DAMAGED if found is None else OTHERS, []).append(path.stem)
        for why, arms in moved.items():
            hint = "; a --workdir of its own keeps each evaluation" if why == OTHERS else ""
            progress.say(f"moved to evaluation/superseded/, since {why}: {', '.join(arms)}{hint}")

    async def answer(self, arm: str, about: Mapping[str, Any], rolled_out: RolledOut) -> None:
        """Answers all questions and keeps what became of them, but for those of which that is there already."""
        kept = await self._kept(arm, about)
        asked = [query for query in self.queries if query.id not in kept]
        if not asked:
            return
        if kept:
            progress.say(f"{arm}: {len(kept)} of {len(self.queries)} questions can be read, the others are asked again")
        label, scope = f"test_{arm}", self._scope(arm, about)
        groups = await rolled_out(label, scope, asked)
        if self.parts.processes.is_first:
            self._write_trajectories(arm, groups, about["step"] or 0)
        found = {**kept, **{outcome.query_id: outcome for outcome in outcomes(groups)}}
        self._keep(ArmResult(arm, about, tuple(found[query.id] for query in self.queries)))
        self.parts.journals.discard(scope)

    async def record(self, arm: str, about: Mapping[str, Any], found: Sequence[Outcome]) -> None:
        """Keeps outcomes that are known without a rollout, unless they are there already."""
        if len(await self._kept(arm, about)) < len(self.queries):
            self._keep(ArmResult(arm, about, tuple(found)))

    def _scope(self, arm: str, about: Mapping[str, Any]) -> str:
        """The journal of one router's answers under these conditions: those of another one are left alone."""
        whose = [self.conditions, about.get("router", {}).get("fingerprint", "script")]
        return f"test_{arm}_{hashlib.sha256(json.dumps(whose).encode()).hexdigest()[:12]}"

    async def _kept(self, arm: str, about: Mapping[str, Any]) -> dict[str, Outcome]:
        """By question, what is there of the arm: all of it, or nothing, or what of a damaged file is whole."""
        return await self.parts.processes.of_first(lambda: self._read(arm, about))

    def _read(self, arm: str, about: Mapping[str, Any]) -> dict[str, Outcome]:
        path = arm_path(self.parts.workdir.path, arm)
        found = _stored(path) if path.is_file() else None
        if found is None or not self._fits(found, about):
            return {}
        is_whole = len(found.outcomes) == len(self.queries)
        if is_whole and any(found.about.get(name) != about.get(name) for name in PRICES):
            write_arm(self.parts.workdir.path, ArmResult(arm, about, found.outcomes))
        return {outcome.query_id: outcome for outcome in found.outcomes}

    def _fits(self, found: ArmResult, about: Mapping[str, Any]) -> bool:
        """Whether a file answers these questions, or a part of them, with this router."""
        ids = [outcome.query_id for outcome in found.outcomes]
        asks_the_same = ids == [query.id for query in self.queries if query.id in set(ids)]
        return asks_the_same and _agree(found.about, json.loads(json.dumps(about)))

    def _write_trajectories(self, arm: str, groups: Sequence[Group], step: int) -> None:
        """Writes what was said beside what was kept of the other questions, in the order of the questions."""
        path = trajectories_path(self.parts.workdir.path, arm)
        before = _lines_by_question(path)
        write_trajectories(path, groups, self.parts.codec, step=step, with_arrays=False)
        if len(groups) < len(self.queries):
            lines = {**before, **_lines_by_question(path)}
            aside = path.with_suffix(".jsonl.part")
            aside.write_bytes(b"".join(lines[query.id] + b"\n" for query in self.queries if query.id in lines))
            os.replace(aside, path)

    def _keep(self, result: ArmResult) -> None:
        if self.parts.processes.is_first:
            write_arm(self.parts.workdir.path, result)
        progress.say(progress.arm_line(result))


def evaluated_arms(parts: Parts) -> Arms:
    """Those of an evaluation: on the test questions and on the sets that are held out altogether.

    Raises:
        ConfigError: the config has neither.
    """
    queries = [*parts.test, *parts.held_out]
    check_asked(parts.config, queries)
    return Arms(parts, queries, {**draw_of_test(parts.config), **draw_of_generalisation(parts.config)})


def conditions(config: RunConfig) -> str:
    """Fingerprint (hex) of all in a config that decides what a router answers and what that costs."""
    decisive = {name: _section(as_dict(config), name) for name in DECISIVE}
    return lasting_fingerprint(decisive | {"prompts": Prompts.load(config.protocol.templates).fingerprint}, MAY_CHANGE)


def _section(config: Mapping[str, Any], name: str) -> Any:
    for key in name.split("."):
        config = config[key]
    return config


def _agree(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether two headers mean the same. What older files do not say is not held against them; where a router lay, and
    of which step it was called, does not matter, only what it is."""
    names = (stored.keys() & wanted.keys()).difference(NOT_COMPARED)
    if "router" in names:
        names -= {"router", "step"}
        if stored["router"].get("fingerprint") != wanted["router"].get("fingerprint"):
            return False
    return all(stored[name] == wanted[name] for name in names)


def _stored(path: pathlib.Path) -> ArmResult | None:
    """The arm that a file holds, or what of it is whole; None where not even its header is."""
    try:
        return read_arm(path)
    except DataError:
        return readable_part(path)


def _lines_by_question(path: pathlib.Path) -> dict[str, bytes]:
    """The lines of a file of trajectories that can be read, by the question's id; nothing where there is no file."""
    found: dict[str, bytes] = {}
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            found[json.loads(line)["query_id"]] = line
    return found


def _move(path: pathlib.Path, target: pathlib.Path) -> None:
    if path.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)
