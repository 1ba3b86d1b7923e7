"""Demonstrations of a warm start: scripted rollouts through the run's own episodes and Workers."""

import pathlib

from rw.config import load_config
from rw.parts import open_parts
from rw.types import Mode, Segment
from rw.warmstart import Demonstrations
from rw.workdir import Workdir

TINY = str(pathlib.Path(__file__).parent.parent / "data" / "configs" / "tiny.py")


async def demonstrations(tmp_path, *overrides):
    config = load_config(TINY, [("warmstart.queries_per_batch", "60"), *overrides])
    with Workdir(tmp_path / "run") as workdir:
        async with open_parts(config, workdir) as parts:
            return await Demonstrations(parts).batch(0)


async def test_assigned_modes_are_balanced_and_teach_no_declaration(tmp_path):
    made = await demonstrations(tmp_path, ("warmstart.forced_share", "0.6"), ("warmstart.mode_prior", "(1., 0., 0.)"))
    forced = [trajectory for trajectory in made if trajectory.forced]
    free = [trajectory for trajectory in made if not trajectory.forced]
    assert len(made) == 60 and 25 <= len(forced) <= 47  # a draw by query id, not a count
    assert {trajectory.mode for trajectory in free} == {Mode.SINGLE}
    counts = [sum(trajectory.mode is mode for trajectory in forced) for mode in Mode]
    assert min(counts) >= len(forced) // 6
    assert not any((trajectory.segments == Segment.MODE).any() for trajectory in forced)
    assert all((trajectory.segments == Segment.MODE).any() for trajectory in free)


async def test_by_default_every_demonstration_declares_its_mode(tmp_path):
    made = await demonstrations(tmp_path)
    assert len(made) == 60 and not any(trajectory.forced for trajectory in made)
