"""Published weights: the sampler's layout, the version, and buffers of their own."""

import jax
import numpy as np

from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.learner.programs import make_update
from rw.learner.publish import publish
from rw.learner.state import init_state

from .conftest import MODEL


def test_published_weights_outlive_the_step_that_gives_their_source_away(params):
    optimizer = Optimizer(OptimizerConfig(learning_rate=0.1))
    state = init_state(params, optimizer, seed=0)
    weights = publish(state.params, MODEL, version=7)
    assert weights.version == 7
    source = state.params
    state, _ = make_update(optimizer)(state, jax.tree.map(lambda leaf: leaf + 1, params), 0.0)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(source))  # donation is real here
    for name, published in weights.params.top.items():
        np.testing.assert_array_equal(published, params[name])
        assert not np.array_equal(published, state.params[name])
    for layer, arrays in enumerate(weights.params.layers):
        for name, published in arrays.items():
            np.testing.assert_array_equal(published, params[f"model.layers.{name}"][layer])
    assert len(weights.params.layers) == MODEL.n_layers
