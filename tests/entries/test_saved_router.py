"""Where saved routers lie, how they are read, and what is said of places that hold none."""

import numpy as np
import pytest

from rw.errors import CheckpointError
from rw.model.qwen3 import shapes_of
from rw.saved_router import find_router, open_saved_router
from rw.sharding import make_mesh, param_shardings
from rw.workdir import Workdir

from .test_convert import make_run, tiny


def test_a_run_that_has_only_begun_is_not_taken_for_damaged_parameters(tmp_path):
    with Workdir(tmp_path / "run"):
        with pytest.raises(CheckpointError, match="has not come to its first step yet"):
            open_saved_router(tmp_path / "run")


def test_the_routers_of_a_run_are_read_where_a_mesh_wants_them(tmp_path):
    """A best one is bare parameters, a step's is a part of a training state."""
    config = tiny()
    by_step = make_run(tmp_path / "run", config, best=0)
    mesh = make_mesh((2, 2, 2), n_kv_heads=config.model.n_kv_heads)
    shardings = param_shardings(mesh, shapes_of(config.model))
    for step, about in ((None, "the best by validation, of step 0"), (2, "the checkpoint of step 2")):
        place = find_router(tmp_path / "run", step)
        params, metadata = place.load(shardings)
        assert (place.about, place.step) == (about, step or 0) and place.model(metadata)["d_model"] == 48
        assert {name: leaf.sharding for name, leaf in params.items()} == dict(shardings)
        assert all(np.array_equal(params[name], by_step[step or 0][name]) for name in shardings)
    with pytest.raises(CheckpointError, match="holds parameters of other names: model.norm.weight"):
        place.load({name: sharding for name, sharding in shardings.items() if name != "model.norm.weight"})
