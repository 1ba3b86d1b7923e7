"""Checkpoints: bit-identical round trips, refusals that name value and remedy, and damage that costs one checkpoint."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rw.errors import CheckpointError
from rw.learner import checkpoint
from rw.learner.checkpoint import Checkpoints, RunIdentity, config_changes, load_params, save_params
from rw.learner.optimizer import Optimizer, OptimizerConfig
from rw.learner.state import fingerprint, init_state

from ..full_disk import room_for

CONFIG = {"optimizer": {"learning_rate": 1e-6}, "steps": 90, "lengths": (256, 512)}
# Orbax's readers complain about a closed event loop after a file turns out to be damaged.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
IDENTITY = RunIdentity(CONFIG, tokenizer_fingerprint="t" * 64, reference_fingerprint="r" * 64, seed=7)


def make_params():
    key = jax.random.key(0)
    return {"a.weight": jax.random.normal(key, (2, 3, 4)), "norm": jnp.linspace(0.1, 1.3, 5)}


def make_state(step):
    """A state whose every leaf is distinctive: `step` applied updates with real gradients."""
    optimizer = Optimizer(OptimizerConfig(learning_rate=1e-3))
    state = init_state(make_params(), optimizer, seed=7)
    for index in range(step):
        grads = jax.tree.map(lambda leaf, index=index: jnp.sin(leaf * (index + 1)), state.params)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = jax.tree.map(jnp.add, state.params, updates)
        state = state._replace(params=params, opt_state=opt_state, step=state.step + 1)
    return state._replace(data_batch_index=state.step + 5, nonfinite_skips=jnp.array([1, 4], jnp.int32))


def assert_bitwise_equal(left, right):
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def largest_file(directory):
    return max((path for path in directory.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def test_round_trip_keeps_moments_counts_and_positions_bit_for_bit(tmp_path):
    state = make_state(3)
    with Checkpoints(tmp_path, IDENTITY) as checkpoints:
        checkpoints.save(state)
    with Checkpoints(tmp_path, IDENTITY) as checkpoints:
        restored = checkpoints.restore(make_state(0))
    assert type(restored) is type(state)
    assert_bitwise_equal(restored, state)
    assert int(restored.step) == 3 and int(restored.data_batch_index) == 8
    assert restored.nonfinite_skips.tolist() == [1, 4] and restored.rng.tolist() == [0, 7]
    assert int(restored.opt_state[1].count) == 3


def test_no_checkpoint_restores_none(tmp_path):
    with Checkpoints(tmp_path / "new", IDENTITY) as checkpoints:
        assert checkpoints.restore(make_state(0)) is None


def test_keeps_the_newest_and_leaves_a_saved_step_alone(tmp_path):
    with Checkpoints(tmp_path, IDENTITY, keep=2) as checkpoints:
        for step in (1, 2, 3, 3):
            checkpoints.save(make_state(step))
        assert checkpoints.steps() == [2, 3]


def test_damaged_newest_falls_back_to_the_one_before_and_says_so(tmp_path, caplog):
    with Checkpoints(tmp_path, IDENTITY) as checkpoints:
        for step in (1, 2):
            checkpoints.save(make_state(step))
    path = largest_file(tmp_path / "2" / "state" / "d")
    path.write_bytes(path.read_bytes()[:50])
    with Checkpoints(tmp_path, IDENTITY) as checkpoints:
        with caplog.at_level("WARNING"):
            restored = checkpoints.restore(make_state(0))
        assert_bitwise_equal(restored, make_state(1))
        assert "checkpoint of step 2 is damaged" in caplog.text and "continuing from step 1" in caplog.text
        checkpoints.save(make_state(2))  # the step is free again, and the damaged files are still there
        assert checkpoints.steps() == [1, 2]
        assert (tmp_path / "damaged-2").is_dir()
    with Checkpoints(tmp_path, IDENTITY) as checkpoints:
        assert_bitwise_equal(checkpoints.restore(make_state(0)), make_state(2))


def test_missing_metadata_counts_as_damage(tmp_path):
    with Checkpoints(tmp_path, IDENTITY) as checkpoints:
        for step in (1, 2):
            checkpoints.save(make_state(step))
    (tmp_path / "2" / "metadata" / "metadata").write_text('{"format_ver')
    with Checkpoints(tmp_path, IDENTITY) as checkpoints:
        assert int(checkpoints.restore(make_state(0)).step) == 1


def test_only_damaged_checkpoints_is_an_error_and_moves_nothing(tmp_path):
    with Checkpoints(tmp_path, IDENTITY) as checkpoints:
        checkpoints.save(make_state(1))
    path = largest_file(tmp_path / "1" / "state" / "d")
    path.write_bytes(b"")
    with Checkpoints(tmp_path, IDENTITY) as checkpoints:
        with pytest.raises(CheckpointError, match=r"no readable checkpoint in .*1 damaged; step 1: .*new workdir"):
            checkpoints.restore(make_state(0))
    assert (tmp_path / "1").is_dir()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"config": {**CONFIG, "optimizer": {"learning_rate": 1e-5}}},
            r"another config: optimizer\.learning_rate: 1e-06 → 1e-05; use a new workdir",
        ),
        ({"config": {**CONFIG, "extra": 1}}, r"extra: absent → 1"),
        ({"tokenizer_fingerprint": "u" * 64}, r"another tokenizer fingerprint: tttttttttttttttt… → uuuuuuuuuuuuuuuu…"),
        ({"reference_fingerprint": "s" * 64}, r"another reference fingerprint"),
        ({"seed": 8}, r"another seed: 7 → 8"),
    ],
)
def test_refuses_a_checkpoint_of_another_run(tmp_path, changed, message):
    with Checkpoints(tmp_path, IDENTITY) as checkpoints:
        checkpoints.save(make_state(1))
    other = RunIdentity(**{**vars(IDENTITY), **changed})
    with Checkpoints(tmp_path, other) as checkpoints:
        with pytest.raises(CheckpointError, match=message) as caught:
            checkpoints.restore(make_state(0))
        assert "\n" not in str(caught.value)
        assert checkpoints.steps() == [1]


def test_refuses_an_unknown_format_version(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT_VERSION", 99)
        with Checkpoints(tmp_path, IDENTITY) as checkpoints:
            checkpoints.save(make_state(1))
        save_params(tmp_path / "params", make_params(), {})
    with Checkpoints(tmp_path, IDENTITY) as checkpoints:
        with pytest.raises(CheckpointError, match="format version 99, this code reads 1"):
            checkpoints.restore(make_state(0))
    with pytest.raises(CheckpointError, match="format version 99, this code reads 1"):
        load_params(tmp_path / "params")


def test_a_key_that_may_change_is_accepted(tmp_path):
    with Checkpoints(tmp_path, IDENTITY) as checkpoints:
        checkpoints.save(make_state(1))
    longer = RunIdentity({**CONFIG, "steps": 200}, "t" * 64, "r" * 64, 7)
    with Checkpoints(tmp_path, longer, may_change=("steps", "workers.*")) as checkpoints:
        assert int(checkpoints.restore(make_state(0)).step) == 1


def test_config_changes_lists_dotted_keys_in_order():
    old = {"b": {"x": 1, "y": [1, 2]}, "a": 1, "gone": None}
    new = {"b": {"x": 2, "y": [1, 2]}, "a": 3}
    assert config_changes(old, new) == ["a: 1 → 3", "b.x: 1 → 2", "gone: None → absent"]
    assert config_changes(old, new, ["b.*", "gone"]) == ["a: 1 → 3"]


def test_listed_things_with_ids_are_compared_each_by_its_fields():
    def pool(*workers):
        return {
            "workers": {"endpoints": [dict(zip(("id", "url", "extra"), worker, strict=True)) for worker in workers]}
        }

    old = pool(("w1", "a", {"url": "x"}), ("w2", "b", {}))
    may_change = ["workers.endpoints.*.url"]
    assert config_changes(old, pool(("w1", "c", {"url": "x"}), ("w2", "d", {})), may_change) == []
    assert config_changes(old, pool(("w1", "a", {"url": "y"}), ("w2", "b", {})), may_change) == [
        "workers.endpoints.w1.extra: {'url': 'x'} → {'url': 'y'}"
    ]
    assert config_changes(old, pool(("w2", "b", {}), ("w1", "a", {"url": "x"})), may_change) == [
        "workers.endpoints: ['w1', 'w2'] → ['w2', 'w1']"
    ]
    assert config_changes(old, pool(("w1", "a", {"url": "x"})))[0] == "workers.endpoints: ['w1', 'w2'] → ['w1']"


def test_params_round_trip_without_a_template(tmp_path):
    params = make_params()
    save_params(tmp_path / "warm", params, {"tokenizer_fingerprint": "abc"})
    loaded, metadata = load_params(tmp_path / "warm")
    assert_bitwise_equal(loaded, params)
    assert metadata["tokenizer_fingerprint"] == "abc"
    assert fingerprint(loaded) == fingerprint(params)
    with pytest.raises(CheckpointError, match="exists; remove it"):
        save_params(tmp_path / "warm", params, {})
    save_params(tmp_path / "warm", {"norm": jnp.zeros(2)}, {}, overwrite=True)
    assert list(load_params(tmp_path / "warm")[0]) == ["norm"]


def test_params_round_trip_in_one_file(tmp_path):
    path = tmp_path / "new" / "warm.safetensors"
    params = {"a.weight": jnp.arange(6.0).reshape(2, 3), "b.weight": jnp.full((2,), 0.1, jnp.bfloat16)}
    save_params(path, params, {"tokenizer_fingerprint": "abc", "nested": {"steps": [1, 2]}})
    loaded, metadata = load_params(path)
    assert_bitwise_equal(loaded, params)
    assert metadata == {"tokenizer_fingerprint": "abc", "nested": {"steps": [1, 2]}, "format_version": 1}
    onto, _ = load_params(path, {name: x.sharding for name, x in params.items()})
    assert onto["b.weight"].sharding == params["b.weight"].sharding
    with pytest.raises(CheckpointError, match="other names: b.weight"):
        load_params(path, {"a.weight": params["a.weight"].sharding})
    with pytest.raises(CheckpointError, match="exists; remove it"):
        save_params(path, params, {})
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match="warm.safetensors cannot be read"):
        load_params(path)


def test_params_that_are_missing_or_damaged_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="no parameters at .*nowhere"):
        load_params(tmp_path / "nowhere")
    save_params(tmp_path / "warm", make_params(), {})
    largest_file(tmp_path / "warm" / "params" / "d").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="warm cannot be read"):
        load_params(tmp_path / "warm")


def test_params_saved_on_a_mesh_load_on_one_device(tmp_path):
    mesh = jax.make_mesh((4,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.NamedSharding(mesh, jax.P("fsdp"))
    params = {"w": jax.device_put(jnp.arange(16.0).reshape(8, 2), sharding)}
    save_params(tmp_path / "warm", params, {})
    loaded, _ = load_params(tmp_path / "warm")
    assert len(loaded["w"].sharding.device_set) == 1
    assert_bitwise_equal(loaded, params)
    onto_mesh, _ = load_params(tmp_path / "warm", {"w": sharding})
    assert onto_mesh["w"].sharding == sharding


def test_fingerprint_sees_values_names_shapes_and_dtypes():
    params = make_params()
    base = fingerprint(params)
    assert fingerprint(jax.tree.map(lambda leaf: leaf + 0, params)) == base
    assert fingerprint({**params, "norm": params["norm"].at[0].add(1e-6)}) != base
    assert fingerprint({"b.weight": params["a.weight"], "norm": params["norm"]}) != base
    assert fingerprint({**params, "a.weight": params["a.weight"].reshape(3, 2, 4)}) != base


@pytest.mark.parametrize("room", [10, 2000])
def test_a_full_disk_is_said_in_one_line_and_a_later_save_is_whole(tmp_path, room):
    params = {"w": jax.random.normal(jax.random.key(0), (64, 64))}
    with room_for(room), pytest.raises(CheckpointError, match=f"cannot write {tmp_path}/params: .*make room") as error:
        save_params(tmp_path / "params", params, {"about": 1})
    assert "\n" not in str(error.value)
    save_params(tmp_path / "params", params, {"about": 1})
    np.testing.assert_array_equal(load_params(tmp_path / "params")[0]["w"], params["w"])
