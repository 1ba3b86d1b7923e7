"""The engine on weights that are split over `tensor`: same turns, and a cache of which each device holds its heads."""

import jax
import numpy as np
import pytest

from rw.model.cache import init_cache
from rw.sampler.pool import _placed_like
from rw.sharding import make_mesh, sampler_shardings
from rw.types import PublishedWeights

NAMES = [("one", k) for k in range(3)]


@pytest.fixture
def mesh(model_config):
    if jax.device_count() != 8:
        pytest.skip("needs eight devices")
    return make_mesh({"data": 2, "fsdp": 2, "tensor": 2}, n_kv_heads=model_config.n_kv_heads)


def has_its_heads(cache):
    for array in jax.tree.leaves(cache):
        (shape,) = {shard.data.shape for shard in array.addressable_shards}
        assert shape == (array.shape[0], array.shape[1] // 2, *array.shape[2:])


def test_a_new_pool_lies_as_the_weights_do(mesh, model_config, weights):
    params = jax.device_put(weights.params, sampler_shardings(mesh, weights.params))
    has_its_heads(_placed_like(init_cache(model_config, 3, 16), params))


@pytest.mark.full
async def test_heads_of_the_cache_lie_where_those_of_the_weights_do(mesh, make_engine, weights, episodes):
    split = PublishedWeights(2, jax.device_put(weights.params, sampler_shardings(mesh, weights.params)))
    engine = await make_engine()
    want = await episodes.run_all(engine, NAMES)
    await engine.publish(split)
    await engine.warm_up()
    engine.stats()
    got = await episodes.run_all(engine, NAMES)
    assert engine.stats()["compiled"] == 0
    for name, record in want.items():
        np.testing.assert_array_equal(got[name].tokens, record.tokens)
        for (_, turn), (_, before) in zip(got[name].turns, record.turns, strict=True):
            np.testing.assert_allclose(turn.logprobs, before.logprobs, atol=1e-5)
    has_its_heads(engine._pool._cache)
