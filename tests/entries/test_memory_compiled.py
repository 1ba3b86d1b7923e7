"""What learning takes, as estimated and as the compiler lays it out for eight devices."""

import dataclasses
import pathlib

import jax
import numpy as np
import pytest

from rw.config import load_config
from rw.core.advantages import ADVANTAGES, AdvantageConfig
from rw.learner.batch import empty_micro_batch
from rw.learner.optimizer import Optimizer
from rw.learner.programs import GradientSum
from rw.learner.step import LOSS_TERMS, Learner, LearnerConfig
from rw.memory import device_memory
from rw.model.qwen3 import shapes_of
from rw.parts import open_mesh
from rw.processes import Processes
from rw.run_config import MeshConfig
from rw.sharding import batch_sharding, param_shardings
from rw.types import TokenCounts

TINY = str(pathlib.Path(__file__).parent.parent / "data" / "configs" / "tiny.py")
SHAPE = {"d_model": 256, "n_layers": 8, "n_heads": 8, "n_kv_heads": 8, "head_dim": 32, "d_ff": 1024}


def compiled_bytes(config):
    """Of each device, besides parameters and the sum so far."""
    mesh, shapes = open_mesh(config, Processes()), shapes_of(config.model)
    shardings = param_shardings(mesh, shapes)
    params = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=shardings[name]) for name, x in shapes.items()}
    micro = empty_micro_batch(config.batch.length_buckets[-1], 128, config.batch)
    rows = batch_sharding(mesh)
    micro = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype, sharding=rows), micro)
    arguments = TokenCounts(*(np.float32(1),) * 3), np.zeros(len(LOSS_TERMS), np.float32)
    learning = LearnerConfig(config.batch, config.loss, AdvantageConfig(0.0), ADVANTAGES["comet"])
    with jax.set_mesh(mesh):
        learner = Learner(config.model, Optimizer(config.optimizer), {}, learning)
        program = GradientSum(learner.loss.divided, shardings)._add.lower(params, params, micro, *arguments).compile()
    return program.memory_analysis().temp_size_in_bytes


@pytest.mark.full
@pytest.mark.parametrize("mesh", [(1, 8, 1), (1, 2, 4), (1, 1, 8)])
def test_the_estimate_is_near_what_the_compiler_needs(mesh):
    if jax.device_count() != 8:
        pytest.skip("needs eight devices")
    config = load_config(TINY)
    config = dataclasses.replace(
        config,
        mesh=MeshConfig(*mesh),
        model=dataclasses.replace(config.model, **SHAPE, remat="nothing_saveable"),
        batch=dataclasses.replace(config.batch, length_buckets=(2048,)),
    )
    _, *parts = device_memory(config).phases["learning"]
    assert sum(part.size for part in parts) == pytest.approx(compiled_bytes(config), rel=0.15)
