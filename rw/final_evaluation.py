"""The final evaluation of a training run: the arms of `evaluation.arms` on its test questions."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rw.arms import Arms
from rw.evaluation.arms import scripted_routers
from rw.evaluation.recorded import recorded_arms
from rw.greedy import GreedyRouter, roll_out
from rw.learner.publish import publish
from rw.learner.state import fingerprint
from rw.parts import Parts
from rw.questions import draw_of_test, recorded_questions
from rw.sampler.scripted import ScriptedSampler
from rw.simulation.policies import script
from rw.types import Mode, PublishedWeights


class FinalEvaluation:
    """The trained router, the one that it began as, and their baselines."""

    def __init__(self, parts: Parts, router: GreedyRouter):
        self.parts, self.router = parts, router
        self.arms = Arms(parts, parts.test, draw_of_test(parts.config))

    async def run(self, trained: Any, trained_step: int) -> None:
        """All arms, in their order.

        Args:
            trained: the trained router's parameters, or the directory where they are saved.
            trained_step: updates that made them.
        """
        names = self.parts.config.evaluation.arms if self.parts.test else ()
        if self.parts.test:
            self.arms.set_aside(lambda arm: {"step": step_of(arm, trained_step)})
        modes = routed_arms(names)
        if modes:
            await router_arms(self.arms, self.router, modes, *await self._weights(trained, trained_step))
        if "warm_start" in names:
            initial = await self._weights(self.parts.workdir.file("reference"), 0)
            await router_arms(self.arms, self.router, {"warm_start": None}, *initial)
        if self.parts.config.workers.kind == "simulated":
            await self._scripted_arms(names)
        elif self.parts.config.workers.kind == "replay":
            await self._recorded_arms(names)

    async def _weights(self, params: Any, step: int) -> tuple[PublishedWeights, dict[str, Any]]:
        """The weights, and the header of their arms."""
        path = ""
        if isinstance(params, pathlib.Path):
            path = params.relative_to(self.parts.workdir.path).as_posix()
            params, _ = await self.parts.device.run(self.parts.load_params, params)
        return await published_router(self.arms, params, step, path, "the router of this run")

    async def _scripted_arms(self, names: Sequence[str]) -> None:
        parts, by_id = self.parts, {query.id: query for query in self.parts.test}
        for arm, policy in scripted_routers(names).items():
            sampler = ScriptedSampler(parts.codec, script(policy, by_id.__getitem__))

            async def rolled_out(label, scope, queries, sampler=sampler):
                return await roll_out(parts, sampler, queries, label, scope)

            await self.arms.answer(arm, self.arms.about(None), rolled_out)

    async def _recorded_arms(self, names: Sequence[str]) -> None:
        """Arms that are known from the records, so that nobody need answer for them."""
        config = self.parts.config
        train, answers = recorded_questions(config)
        for arm, found in recorded_arms(train, self.parts.test, answers, config.seed, names).items():
            await self.arms.record(arm, self.arms.about(None), found)


def routed_arms(names: Sequence[str]) -> dict[str, Mode | None]:
    """The arms of the trained router that these names ask for, each with the mode that is forced on it."""
    found: dict[str, Mode | None] = {"trained": None} if "trained" in names else {}
    forced = {f"forced_{mode.word}": mode for mode in Mode}
    return found | {arm: mode for arm, mode in forced.items() if arm in names or "forced" in names}


def step_of(arm: str, trained_step: int | None) -> int | None:
    """Updates that made the router of an arm; None for a script."""
    if arm == "trained" or arm.startswith("forced_"):
        return trained_step
    return 0 if arm == "warm_start" else None


async def published_router(
    arms: Arms, params: Any, step: int | None, path: str, what: str
) -> tuple[PublishedWeights, dict[str, Any]]:
    """A router's weights as the sampler takes them, and the header of its arms, which names it by its parameters."""
    parts = arms.parts
    router = {"path": path, "what": what, "fingerprint": await parts.device.run(fingerprint, params)}
    weights = await parts.device.run(publish, params, parts.config.model, step or 0)
    return weights, arms.about(step, router)


async def router_arms(
    arms: Arms,
    router: GreedyRouter,
    modes: Mapping[str, Mode | None],
    weights: PublishedWeights,
    about: Mapping[str, Any],
) -> None:
    """Answers for one router, once for each arm, with the mode that is forced in it."""
    for arm, mode in modes.items():

        async def rolled_out(label, scope, queries, mode=mode):
            return await router.roll_out(weights, queries, label, scope, mode=mode)

        await arms.answer(arm, about, rolled_out)
