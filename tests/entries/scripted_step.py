"""A process that takes two steps of the tiny config: a scripted router's, then one of the model that learnt from it.

    python tests/entries/scripted_step.py WORKDIR OVERRIDES

OVERRIDES is JSON: a list of (dotted key, text).
"""

import asyncio
import json
import pathlib
import re
import sys

from rw.config import load_config
from rw.core.advantages import comet
from rw.initial import initial_router
from rw.parts import open_parts
from rw.rollout.credit import answer_of
from rw.sampler.scripted import ScriptedSampler
from rw.train import Trainer
from rw.workdir import Workdir

TINY = pathlib.Path(__file__).parent.parent / "data" / "configs" / "tiny.py"


def write(request, view):
    """A router that asks one Worker as often as its mode wants and copies the answer; odd rollouts ask worker_2."""
    worker = f"worker_{1 + request.episode.rollout % 2}"
    replies = re.findall(r"<observation[^>]*>(.*?)</observation>", view.response, re.DOTALL)
    mode = re.search(r"<mode>(\w+)</mode>", view.response)[1]
    if len(replies) == {"single": 1, "multi": 2, "agentic": 1}[mode]:
        return f"<answer>{answer_of(replies[-1])}</answer>"
    role = ' role="executor"' if mode == "agentic" else ""
    return f'<route model="{worker}"{role}>Solve it.</route>' + ("<|im_end|>" if role else "")


class WithScript:
    """A run's sampler but for what is written."""

    def __init__(self, engine, sampler):
        self._engine, self.generate, self.release = engine, sampler.generate, sampler.release

    def __getattr__(self, name):
        return getattr(self._engine, name)


async def two_steps(config, path):
    """A step of a scripted router, and one of the tiny model that has learnt from it."""
    with Workdir(str(path), 0) as workdir:
        async with open_parts(config, workdir) as parts:
            initial = await initial_router(parts)
            async with await parts.device.run(Trainer, parts, initial, comet) as trainer:
                await trainer.resume()
                engine, sampler = trainer.engine, ScriptedSampler(parts.codec, write)
                trainer.engine = WithScript(engine, sampler)
                await trainer.step()
                trainer.engine = engine
                await trainer.step()


if __name__ == "__main__":
    asyncio.run(two_steps(load_config(str(TINY), json.loads(sys.argv[2])), sys.argv[1]))
