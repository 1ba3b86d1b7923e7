"""Memory known from the config alone: against arrays on eight devices, and what is refused before any is made."""

import collections
import dataclasses
import math
import pathlib

import jax
import numpy as np
import pytest

from rw import cli, memory
from rw.config import default_config, freeze, load_config
from rw.core.losses import LossConfig
from rw.errors import ConfigError
from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.learner.programs import GradientSum
from rw.learner.publish import publish
from rw.learner.state import init_state
from rw.memory import (
    GIB,
    Limit,
    cache_token_bytes,
    check_memory,
    device_memory,
    evaluation_memory,
    memory_table,
)
from rw.model.cache import init_cache
from rw.model.qwen3 import init_params, shapes_of
from rw.parts import open_mesh
from rw.processes import Processes
from rw.run_config import QWEN3_4B, MeshConfig
from rw.sharding import param_shardings

TINY = str(pathlib.Path(__file__).parent.parent / "data" / "configs" / "tiny.py")


def tiny(mesh=(1, 1, 1), **model):
    config = load_config(TINY)
    model = dataclasses.replace(config.model, **{"n_kv_heads": 4, "compute_dtype": "bfloat16", **model})
    return dataclasses.replace(config, model=model, mesh=MeshConfig(*mesh))


def sizes(parts):
    return {part.name: part.size for part in parts}


def bytes_of_devices(tree):
    """Bytes on each device; scalars are left out, as in the estimate."""
    held = collections.Counter()
    for leaf in jax.tree.leaves(tree):
        if leaf.ndim > 1:
            for shard in leaf.addressable_shards:
                held[shard.device] += shard.data.nbytes
    return set(held.values())


def without_vectors(config, factor):
    """The estimate's bytes of a tree of parameters without its norms, which are vectors in the layout of no layers."""
    shapes = shapes_of(config.model)
    shardings = param_shardings(memory.abstract_mesh(config.mesh), shapes)
    return factor * sum(
        math.prod(shardings[name].shard_shape(leaf.shape)) for name, leaf in shapes.items() if len(leaf.shape) > 1
    )


def test_what_is_held_lies_on_each_device_as_estimated():
    config = tiny((2, 2, 2))
    devices = open_mesh(config, Processes())
    params = init_params(jax.random.key(0), config.model, param_shardings(devices, shapes_of(config.model)))
    state = init_state(params, Optimizer(OptimizerConfig()), 0)
    found = sizes(device_memory(config).held)
    norms = found["parameters"] - without_vectors(config, 4)
    assert 0 <= norms < 0.02 * found["parameters"]
    assert bytes_of_devices(state.params) == {without_vectors(config, 4)}
    assert bytes_of_devices(state.opt_state) == {without_vectors(config, 8)}
    assert found["Adam's moments"] == 2 * found["parameters"] and found["reference"] == found["parameters"]
    zeros = GradientSum(lambda params, micro: (0.0, None)).zeros(params)
    assert bytes_of_devices(zeros) == {without_vectors(config, 4)}
    weights = publish(params, config.model, 1).params
    (published,) = {
        sum(
            shard.data.nbytes
            for leaf in jax.tree.leaves(weights)
            for shard in leaf.addressable_shards
            if shard.device == d
        )
        for d in jax.devices()
    }
    assert published == found["sampler's weights"] == sizes(device_memory(config).phases["publishing"])["next weights"]


def test_parameters_of_qwen3_4b():
    config = dataclasses.replace(load_config(TINY), model=QWEN3_4B)
    found = device_memory(config)
    assert sizes(found.held)["parameters"] == 4 * 4_022_468_096
    assert (
        found.least_bytes == 6 * 4 * 4_022_468_096
    )  # parameters, two moments, reference, the sampler's copy, gradient
    assert cache_token_bytes(dataclasses.replace(QWEN3_4B, compute_dtype="bfloat16")) == 144 * 2**10


def test_the_pool_is_the_pages_of_all_episodes_or_what_it_may_take():
    config = dataclasses.replace(tiny(), loss=LossConfig(kl_coefficient=0.0))
    engine = dataclasses.replace(config.engine, slots=3, lengths=(96, 384), page_tokens=32)
    config = dataclasses.replace(config, engine=engine, rollout=dataclasses.replace(config.rollout, concurrency=10))
    (pool, beside) = device_memory(config).phases["rollouts"]
    cache = jax.eval_shape(lambda: init_cache(config.model, 1 + 10 * 13, 32))  # 12 pages and one of the prompt
    assert pool.size == sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))
    assert beside.name == "work cache" and beside.size == pool.size * 24 * 12 / 131  # 24 rows a dispatch
    split = device_memory(dataclasses.replace(config, mesh=MeshConfig(1, 1, 4))).phases["rollouts"]
    assert [part.size for part in split] == [pool.size / 4, beside.size / 4]
    engine = dataclasses.replace(engine, kv_bytes=int(pool.size) // 2)
    config = dataclasses.replace(config, deterministic=False, engine=engine)
    assert 0.98 < device_memory(config).phases["rollouts"][0].size / engine.kv_bytes <= 1


def test_what_is_learnt_early_lies_beside_the_caches():
    collect, stream = (
        device_memory(dataclasses.replace(tiny(), regime=regime)).phases for regime in ("collect", "stream")
    )
    early, beside = (sizes(phases["rollouts"]) for phases in (collect, stream))
    learning, work = sizes(collect["learning"]), collect["learning"][-1].name
    assert 0 < early["reference's log-probs"] < learning[work]
    assert beside["gradient sums"] == 2 * learning["gradient sum"] and beside[work] == 2 * learning[work]
    assert beside["kept of all layers"] == learning["kept of all layers"]
    assert sizes(stream["learning"]) == learning
    one_mean = dataclasses.replace(tiny(), regime="stream", loss=LossConfig(reduction="global"))
    assert sizes(device_memory(one_mean).phases["rollouts"])["gradient sums"] == learning["gradient sum"]


def learning(config):
    return sum(part.size for part in device_memory(config).phases["learning"])


def test_what_learning_takes_follows_rows_lengths_layers_and_remat():
    config = tiny(vocab_size=64)  # or the head would take more than a layer
    policies = ("none", "dots_saveable", "attention_saveable", "nothing_saveable")
    taken = [learning(tiny(vocab_size=64, remat=remat)) for remat in policies]
    assert taken[0] >= taken[1] > taken[2] > taken[3]

    def batch(**changes):
        return dataclasses.replace(config, batch=dataclasses.replace(config.batch, **changes))

    fixed = 2 * sizes(device_memory(config).held)["parameters"]
    assert learning(batch(length_buckets=(768,))) - fixed == pytest.approx(2 * (learning(config) - fixed), rel=0.05)
    assert learning(batch(micro_batch=16)) - fixed == pytest.approx(2 * (learning(config) - fixed), rel=0.05)
    kept = [
        sizes(device_memory(tiny(vocab_size=64, n_layers=n)).phases["learning"])["kept of all layers"] for n in (2, 4)
    ]
    assert kept[1] == 2 * kept[0]
    whole, split = (
        sizes(device_memory(tiny(mesh, vocab_size=64, remat="nothing_saveable")).phases["learning"])
        for mesh in ((1, 1, 1), (1, 2, 4))
    )
    # rows over fsdp, and the residual stream of a row over tensor
    assert split["kept of all layers"] == whole["kept of all layers"] / 8


def test_a_model_that_no_device_here_can_hold_is_refused_with_the_figures_and_a_mesh_that_would_do():
    config = freeze(default_config().to_dict())
    with pytest.raises(ConfigError) as refused:
        check_memory(config, Limit(22 * GIB, "free on this machine, for each of 1 devices"))
    message = str(refused.value)
    assert "89.91 GiB (parameters 14.98, Adam's moments 29.97, reference 14.98, sampler's weights 14.98" in message
    assert "there are 22.00 GiB free on this machine" in message and "mesh.data=1 × mesh.fsdp=16" in message
    with pytest.raises(ConfigError, match=r"raise mesh\.tensor, or take a smaller model"):
        check_memory(config, Limit(GIB, "on a device"))
    check_memory(config, Limit(90 * GIB, "on a device"))
    check_memory(dataclasses.replace(config, mesh=MeshConfig(1, 16, 1)), Limit(22 * GIB, "on a device"))


def test_an_evaluation_fits_where_training_does_not():
    config = freeze(default_config().to_dict())
    check_memory(config, Limit(30 * GIB, "on a card here"), evaluation_memory)
    with pytest.raises(ConfigError, match=r"hold 29.97 GiB \(sampler's weights 14.98, parameters 14.98\)"):
        check_memory(config, Limit(22 * GIB, "on a card here"), evaluation_memory)
    caches = evaluation_memory(config).phases["rollouts"]
    assert device_memory(config).phases["rollouts"][: len(caches)] == caches


def test_what_may_not_be_enough_at_its_largest_is_told_with_the_keys_that_help(caplog):
    config = freeze(default_config().to_dict())  # a pool of 256 contexts in float32
    with caplog.at_level("WARNING"):
        check_memory(config, Limit(2000 * GIB, "on a card here"))
        assert not caplog.messages
        check_memory(config, Limit(95 * GIB, "on a card here"))
    (message,) = caplog.messages
    assert message.startswith("rollouts may take up to ") and "there are 95.00 GiB on a card here" in message
    assert "lower rollout.concurrency, " in message and "in a new workdir, engine.kv_bytes" in message
    caplog.clear()
    engine = dataclasses.replace(config.engine, kv_bytes=6 * GIB, decode_widths=(1,))
    narrow = dataclasses.replace(config, engine=engine)
    with caplog.at_level("WARNING"):
        check_memory(narrow, Limit(95 * GIB, "on a card here"))
    assert "lower batch.micro_batch" in caplog.text


def test_limits_come_from_the_devices_or_from_what_is_free(monkeypatch, tmp_path):
    class Device:
        device_kind = "card"

        def __init__(self, limit):
            self.limit = limit

        def memory_stats(self):
            return {"bytes_limit": self.limit}

    assert 0 < memory.device_limit().size < math.inf and "free on this machine" in memory.device_limit().where
    monkeypatch.setattr(memory.jax, "local_devices", lambda: [Device(8), Device(7)])
    assert memory.device_limit() == Limit(7, "on a card here")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    assert memory.free_memory() == math.inf
    (tmp_path / "meminfo").write_text("MemTotal:  10 kB\nMemAvailable:    3 kB\n")
    assert memory.free_memory() == 3072


def test_a_run_that_cannot_fit_ends_before_anything_is_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 1e5)
    assert cli.main(["train", "--config", TINY, "--workdir", str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert "each device would have to hold" in message and len(message.splitlines()) == 1
    assert not (tmp_path / "run" / "warmstart").exists() and not (tmp_path / "run" / "reference").exists()


def test_a_dry_run_prints_the_table_in_80_columns(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["train", "--config", TINY, "--workdir", str(tmp_path / "run"), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "Memory of each device under mesh.data=1" in printed and "key/value pool" in printed
    table = memory_table(load_config(TINY), device_memory(load_config(TINY)))
    widths = np.array([[len(cell) for cell in row] for row in (table.columns, *table.rows)])
    assert widths.max(0).sum() + 3 * 4 + 1 <= 80


def test_the_sum_is_the_least_where_rows_are_to_be_measured():
    config = load_config(TINY)
    measured = dataclasses.replace(config, batch=dataclasses.replace(config.batch, micro_batch=0))
    last = [memory_table(each, device_memory(each)).rows[-1][0] for each in (config, measured)]
    assert last == ["at most", "at least"]


def test_sums_are_those_of_the_parts():
    found = device_memory(tiny((1, 2, 2)))
    assert found.held_bytes == pytest.approx(sum(part.size for part in found.held))
    largest = max(sum(part.size for part in parts) for parts in found.phases.values())
    assert found.peak_bytes == pytest.approx(found.held_bytes + largest)
    assert found.least_bytes == found.held_bytes + found.phases["learning"][0].size
