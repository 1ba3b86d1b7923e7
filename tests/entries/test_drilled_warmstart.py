"""A warm start on drills: the run's protocol and Worker names, and not one question or Worker of the run itself."""

import json
import pathlib

import jax
import numpy as np
import pytest

from rw.config import load_config
from rw.errors import CheckpointError, ConfigError
from rw.greedy import GreedyRouter
from rw.learner.checkpoint import save_params
from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.learner.publish import publish
from rw.model.copying import wire_copying
from rw.model.qwen3 import init_params
from rw.parts import open_parts
from rw.simulation.messages import answer_body
from rw.simulation.plans import copied_answer
from rw.types import Mode
from rw.warmstart import Demonstrations, drilled, identity, make_warm_start, open_learner, warm_start
from rw.workdir import Workdir

ROOT = pathlib.Path(__file__).parent.parent.parent
TINY = str(ROOT / "tests" / "data" / "configs" / "tiny.py")
REPLAY = ROOT / "configs" / "replay_nq.py"
SMALL = [
    ("warmstart.policy", "drills"),
    ("protocol.prompt_limit", "96"),
    ("protocol.response_budget", "416"),
    ("protocol.observation_limit", "60"),
    ("engine.lengths", "(512,)"),
    ("batch.length_buckets", "(512,)"),
]


async def test_drills_stand_in_for_questions_and_workers(tmp_path):
    config = load_config(TINY, SMALL)
    with Workdir(tmp_path / "run") as workdir:
        async with open_parts(config, workdir) as parts, drilled(parts) as practice:
            made = await Demonstrations(practice).batch(0)
            own = {query.id for query in parts.queries(0, 24)}
            worker_ids = set(parts.worker_ids)
    assert len(made) == 24 and {trajectory.mode for trajectory in made} == set(Mode)
    assert not own & {trajectory.query_id for trajectory in made}
    assert all(trajectory.answer == copied_answer(trajectory.calls[-1].output) for trajectory in made)
    assert {call.worker_id for trajectory in made for call in trajectory.calls} <= worker_ids
    booked = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    calls = [record for record in booked if record["kind"] == "call"]
    assert len(calls) == sum(len(trajectory.calls) for trajectory in made) and {call["cost_usd"] for call in calls} == {
        0
    }


async def test_a_warm_start_of_another_config_is_refused_with_each_difference(tmp_path):
    kept = tmp_path / "kept"
    config = load_config(TINY, [*SMALL, ("init.path", str(kept))])
    with Workdir(tmp_path / "run") as workdir:
        async with open_parts(config, workdir) as parts:
            made_with = identity(parts)
            made_with["warmstart"]["steps"] += 7
            save_params(kept, init_params(jax.random.key(0), config.model), made_with)
            with pytest.raises(CheckpointError) as error:
                await warm_start(parts)
    steps = config.warmstart.steps
    assert f"made with another config: warmstart.steps: {steps + 7} → {steps}; take back the change" in str(error.value)


@pytest.mark.parametrize("copying", ["learnt", "wired"])
async def test_the_config_says_what_a_warm_start_begins_with(tmp_path, copying):
    wide = [("model.d_model", "48"), ("model.head_dim", "64"), ("model.rope_theta", "1e6")]
    config = load_config(TINY, [*SMALL, *wide, ("warmstart.copying", copying)])
    with Workdir(tmp_path / "run") as workdir:
        async with open_parts(config, workdir) as parts:
            state, _ = await parts.device.run(open_learner, parts, Optimizer(OptimizerConfig()))
    fresh = init_params(jax.random.key(0), config.model)
    expected = wire_copying(fresh, config.model) if copying == "wired" else fresh
    assert all(np.array_equal(state.params[name], expected[name]) for name in expected)


def test_unknown_ways_to_copy_are_refused():
    with pytest.raises(ConfigError, match="warmstart.copying='magic' is not one of learnt, wired"):
        load_config(TINY, [("warmstart.copying", "magic")])


@pytest.mark.full
async def test_forty_steps_of_drills_teach_copying_recorded_answers(tmp_path):
    """Greedy, in single mode, on questions and replies that no drill has shown: most short answers come out whole."""
    overrides = [("warmstart.steps", "40"), ("evaluation.arms", "('trained',)"), ("log.tensorboard", "false")]
    config = load_config(str(REPLAY), overrides)
    with Workdir(tmp_path / "run") as workdir:
        async with open_parts(config, workdir) as parts:
            params = await make_warm_start(parts)
            router = GreedyRouter(parts, len(parts.test))
            try:
                await router.engine.publish(await parts.device.run(publish, params, config.model, 0))
                modes = [Mode.SINGLE] * len(parts.test)
                groups = await parts.collect(
                    router.engine, parts.test, modes, scope="drills", rollouts_per_query=1, step=0, policy_version=0
                )
            finally:
                await router.close()
    made = [group.rollouts[0].trajectory for group in groups]
    short = [one for one in made if one.calls and len(answer_body(one.calls[0].output) or "x " * 9) < 16]
    copied = [one for one in short if one.answer == copied_answer(one.calls[0].output)]
    assert len(short) >= 5 and len(copied) >= 0.6 * len(short)
