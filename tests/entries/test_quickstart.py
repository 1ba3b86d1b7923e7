"""What the quickstart promises of its world and its config."""

import dataclasses
import pathlib

import pytest

from rw.config import load_config
from rw.evaluation.arms import scripted_routers
from rw.evaluation.outcomes import outcomes
from rw.greedy import roll_out
from rw.initial import check_shapes
from rw.learner.checkpoint import load_params
from rw.parts import open_parts, params_path
from rw.run_config import InitConfig
from rw.sampler.scripted import ScriptedSampler
from rw.simulation.policies import script
from rw.types import Status
from rw.warmstart import warm_start_path
from rw.workdir import Workdir

QUICKSTART = str(pathlib.Path(__file__).parent.parent.parent / "configs" / "quickstart.py")


@pytest.mark.parametrize("arm", ["scripted_single", "scripted_multi", "scripted_agentic", "oracle"])
async def test_scripted_routers_have_room_for_their_best_plans(tmp_path, arm):
    """A bar that its budget cuts short would be no bar."""
    config = load_config(QUICKSTART, [("evaluation.test_queries", "25")])
    policy = scripted_routers(("scripted", "oracle"))[arm]
    with Workdir(tmp_path / "run") as workdir:
        async with open_parts(config, workdir) as parts:
            by_id = {query.id: query for query in parts.test}
            sampler = ScriptedSampler(parts.codec, script(policy, by_id.__getitem__))
            found = outcomes(await roll_out(parts, sampler, parts.test, arm, arm))
    assert {outcome.status for outcome in found} == {Status.ANSWERED}
    assert len(found) == 25 and len({outcome.kind for outcome in found}) == 5


def test_the_packaged_warm_start_is_the_configs():
    config = load_config(QUICKSTART)
    path = pathlib.Path(params_path(config.init.path))
    params, metadata = load_params(path)
    assert path.stat().st_size <= 2e6
    check_shapes(path, params, config.model)
    now = {**dataclasses.asdict(config.warmstart), "mode_prior": []}
    assert metadata["warmstart"].items() <= now.items()  # a key that came later has the value that was meant before


async def test_a_warm_start_of_ones_own_goes_into_the_workdir(tmp_path):
    """`init.path` names what the quickstart begins from, which must not be written to."""
    config = load_config(QUICKSTART, [("evaluation.test_queries", "0"), ("evaluation.every", "0")])
    with Workdir(tmp_path / "run") as workdir:
        async with open_parts(config, workdir) as parts:
            assert warm_start_path(parts) == str(tmp_path / "run" / "warmstart")
    elsewhere = dataclasses.replace(config, init=InitConfig("warmstart", str(tmp_path / "other")))
    with Workdir(tmp_path / "run") as workdir:
        async with open_parts(elsewhere, workdir) as parts:
            assert warm_start_path(parts) == str(tmp_path / "other")
