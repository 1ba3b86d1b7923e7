"""A warm start on drills: the run's protocol and Worker names, and not one question or Worker of the run itself."""

import json
import pathlib

import jax
import numpy as np
import pytest

from rw.config import load_config
from rw.errors import ConfigError
from rw.interrupts import Interrupts
from rw.model.copying import wire_copying
from rw.model.qwen3 import EMBEDDING, init_params
from rw.parts import open_parts
from rw.simulation.plans import copied_answer
from rw.types import Mode
from rw.warmstart import Demonstrations, drilled, make_warm_start
from rw.workdir import Workdir

TINY = str(pathlib.Path(__file__).parent.parent / "data" / "configs" / "tiny.py")
SMALL = [
    ("warmstart.policy", "drills"),
    ("protocol.prompt_limit", "160"),
    ("protocol.response_budget", "860"),
    ("protocol.observation_limit", "100"),
    ("engine.lengths", "(1024,)"),
    ("batch.length_buckets", "(1024,)"),
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


async def test_a_warm_start_begins_with_the_wired_heads(tmp_path):
    """Two steps change the codes of no token by much."""
    wide = [("model.d_model", "48"), ("model.head_dim", "64"), ("model.rope_theta", "1e6"), ("warmstart.steps", "2")]
    config = load_config(TINY, [*SMALL, *wide, ("warmstart.copying", "wired"), ("warmstart.queries_per_batch", "4")])
    with Workdir(tmp_path / "run") as workdir:
        async with open_parts(config, workdir) as parts:
            params = jax.device_get(await make_warm_start(parts, Interrupts()))
    wired = wire_copying(init_params(jax.random.key(0), config.model), config.model)
    moved = np.abs(params[EMBEDDING] - np.asarray(wired[EMBEDDING]))
    assert 0 < moved.max() <= 0.03  # twice a rate of 0.01, and rounding


def test_unknown_ways_to_copy_are_refused():
    with pytest.raises(ConfigError, match="warmstart.copying='magic' is not one of learnt, wired"):
        load_config(TINY, [("warmstart.copying", "magic")])
