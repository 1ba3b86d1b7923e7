"""The arms of a working directory: ways to answer the same questions, each kept as soon as it is whole.

What is kept is not answered again. Arms of other questions, of another router or under other conditions go to
`superseded/`: those that lie side by side are compared with one another.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from absl import logging

from rw import progress
from rw.config import as_dict
from rw.errors import DataError
from rw.evaluation.outcomes import (
    ArmResult,
    Outcome,
    arm_path,
    outcomes,
    read_arm,
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
RolledOut = Callable[[str, str], Awaitable[list[Group]]]  # (label, journal's scope) -> a group a question


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
        moved = []
        for path in sorted(arm_path(self.parts.workdir.path, "_").parent.glob("*.jsonl")):
            if self._read(path.stem, {**self.questions, **expected(path.stem)}) is None:
                said = trajectories_path(self.parts.workdir.path, path.stem)
                _move(path, path.parent / "superseded" / path.name)
                _move(said, path.parent / "superseded" / said.parent.name / said.name)
                moved.append(path.stem)
        if moved:
            progress.say(
                "moved to evaluation/superseded/, since they have other questions, conditions or another router: "
                f"{', '.join(moved)}; a --workdir of its own keeps each evaluation"
            )

    async def answer(self, arm: str, about: Mapping[str, Any], rolled_out: RolledOut) -> None:
        """Answers all questions and keeps what became of them, unless that is there already."""
        if await self._is_done(arm, about):
            return
        label, scope = f"test_{arm}", self._scope(arm, about)
        groups = await rolled_out(label, scope)
        if self.parts.processes.is_first:
            path = trajectories_path(self.parts.workdir.path, arm)
            write_trajectories(path, groups, self.parts.codec, step=about["step"] or 0, with_arrays=False)
        self._keep(ArmResult(arm, about, outcomes(groups)))
        self.parts.journals.discard(scope)

    async def record(self, arm: str, about: Mapping[str, Any], found: Sequence[Outcome]) -> None:
        """Keeps outcomes that are known without a rollout, unless they are there already."""
        if not await self._is_done(arm, about):
            self._keep(ArmResult(arm, about, tuple(found)))

    def _scope(self, arm: str, about: Mapping[str, Any]) -> str:
        """The journal of one router's answers under these conditions: those of another one are left alone."""
        whose = [self.conditions, about.get("router", {}).get("fingerprint", "script")]
        return f"test_{arm}_{hashlib.sha256(json.dumps(whose).encode()).hexdigest()[:12]}"

    async def _is_done(self, arm: str, about: Mapping[str, Any]) -> bool:
        return await self.parts.processes.of_first(lambda: self._is_kept(arm, about))

    def _is_kept(self, arm: str, about: Mapping[str, Any]) -> bool:
        found = self._read(arm, about)
        if found is not None and any(found.about.get(name) != about.get(name) for name in PRICES):
            write_arm(self.parts.workdir.path, ArmResult(arm, about, found.outcomes))
        return found is not None

    def _read(self, arm: str, about: Mapping[str, Any]) -> ArmResult | None:
        """The arm's file where it answers these questions with this router; None where that is to be done yet."""
        path = arm_path(self.parts.workdir.path, arm)
        if not path.is_file():
            return None
        try:
            found = read_arm(path)
        except DataError as error:
            logging.warning("%s; it is answered again", error)
            return None
        asks_the_same = [outcome.query_id for outcome in found.outcomes] == [query.id for query in self.queries]
        return found if asks_the_same and _agree(found.about, json.loads(json.dumps(about))) else None

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


def _move(path: pathlib.Path, target: pathlib.Path) -> None:
    if path.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)
