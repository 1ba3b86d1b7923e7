"""Hugging Face directories read into any sharding and written again: bitwise, within memory, or refused by name."""

import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.flax import load_file, save_file

from rw.errors import CheckpointError, ConfigError
from rw.model import hf, hf_files, qwen3, tensor_files
from rw.model.config import ModelConfig
from rw.model.hf_config import model_config, written_config
from rw.sharding import make_mesh, param_shardings

from .hf_arrays import from_hf, to_hf

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "data" / "model"
# Odd numbers of rows where a mesh allows them, so that pieces do not end where parts do.
TIED = ModelConfig(
    vocab_size=88, d_model=24, n_layers=3, n_heads=4, n_kv_heads=2, head_dim=10, d_ff=28, rope_theta=5e6, tied=True
)
UNTIED = dataclasses.replace(TIED, n_layers=2, rope_theta=1e6, tied=False)


def random_params(config, dtype, seed=0):
    random, dtype = np.random.default_rng(seed), jnp.dtype(dtype)
    params = {name: random.normal(size=shape).astype(dtype) for name, shape in hf.expected_shapes(config).items()}
    return dataclasses.replace(config, param_dtype=dtype.name), params


def make_directory(directory, config, params, max_file_bytes=10**9):
    """By the library and the mapping in memory, neither of which is under test here."""
    directory.mkdir()
    dtype = next(iter(params.values())).dtype.name
    (directory / "config.json").write_text(json.dumps(written_config(config, dtype, {})))
    arrays = {name: jnp.array(x) for name, x in to_hf(params).items()}
    if max_file_bytes >= 10**9:
        save_file(arrays, directory / "model.safetensors", {"format": "pt"})
        return directory
    names = sorted(arrays)
    places = {name: f"model-{1 + index * 3 // len(names):05d}-of-00003.safetensors" for index, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: arrays[name] for name in names if places[name] == file}, directory / file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return directory


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array), name


def test_a_directory_that_transformers_wrote_holds_the_reference_model():
    config = model_config(FOLDER / "hf_tied")
    with safe_open(FOLDER / "qwen3_tied.safetensors", framework="np") as file:
        assert config == ModelConfig(**json.loads(file.metadata()["config"]))
        weights = {n.removeprefix("weights/"): file.get_tensor(n) for n in file.keys() if n.startswith("weights/")}
    found = hf_files.read_hf(FOLDER / "hf_tied", config)
    assert qwen3.HEAD not in found  # a copy of the embedding would go stale
    assert_same(found, from_hf(weights, config))


@pytest.mark.parametrize("max_file_bytes", [10**9, 6000], ids=["one file", "several"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [TIED, UNTIED], ids=["tied", "untied"])
def test_import_export_import_is_bitwise_the_same(tmp_path, monkeypatch, shape, dtype, max_file_bytes):
    monkeypatch.setattr(tensor_files, "PIECE_BYTES", 400)
    config, params = random_params(shape, dtype)
    first = hf_files.read_hf(make_directory(tmp_path / "first", config, params, max_file_bytes), config)
    assert_same(first, params)
    (tmp_path / "second").mkdir()
    hf_files.write_hf(tmp_path / "second", first, config, dtype, max_file_bytes)
    shutil.copy(tmp_path / "first" / "config.json", tmp_path / "second")
    files = sorted(tmp_path.glob("second/*.safetensors"))
    assert (len(files) == 1) == (max_file_bytes == 10**9)
    by_library = {name: array for file in files for name, array in load_file(file).items()}
    assert_same(by_library, to_hf(params))
    assert_same(hf_files.read_hf(tmp_path / "second", config), params)


@pytest.mark.parametrize("mesh", [(8, 1, 1), (1, 4, 2), (2, 2, 2), (1, 8, 1)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_mesh_is_read_into_and_written_from(tmp_path, monkeypatch, mesh, dtype):
    monkeypatch.setattr(tensor_files, "PIECE_BYTES", 300)
    config, params = random_params(UNTIED, dtype)
    shardings = param_shardings(make_mesh(mesh, n_kv_heads=2), params)
    found = hf_files.read_hf(make_directory(tmp_path / "hf", config, params, 6000), config, shardings)
    assert all(found[name].sharding == shardings[name] for name in params)
    assert_same(found, params)
    (tmp_path / "out").mkdir()
    hf_files.write_hf(tmp_path / "out", found, config, dtype, 10**9)
    assert_same(load_file(tmp_path / "out" / "model.safetensors"), to_hf(params))


@pytest.mark.parametrize("stored, wanted", [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_weights_take_the_dtype_of_the_config(tmp_path, stored, wanted):
    config, params = random_params(TIED, stored)
    directory = make_directory(tmp_path / "hf", config, params)
    config = dataclasses.replace(config, param_dtype=wanted, compute_dtype=wanted)
    expected = {name: array.astype(jnp.dtype(wanted)) for name, array in params.items()}
    assert_same(hf_files.read_hf(directory, config), expected)
    unstacked = hf_files.read_hf_unstacked(directory, config)
    for found, known in zip(jax.tree.leaves(unstacked), jax.tree.leaves(qwen3.unstack(expected, config)), strict=True):
        assert found.dtype == wanted and np.array_equal(found, known)


def second_copy(config, params, directory, change):
    arrays = {name: jnp.array(x) for name, x in to_hf(params).items()}
    head = arrays[qwen3.EMBEDDING]
    arrays[qwen3.HEAD] = head.at[-1, 3].add(change)
    save_file(arrays, directory / "model.safetensors")


def test_a_tied_model_ignores_a_second_copy_of_its_embedding_and_refuses_another(tmp_path):
    config, params = random_params(TIED, "float32")
    directory = make_directory(tmp_path / "hf", config, params)
    second_copy(config, params, directory, 0.0)
    assert_same(hf_files.read_hf(directory, config), params)
    second_copy(config, params, directory, 1e-3)
    with pytest.raises(CheckpointError, match="lm_head.weight differs from model.embed_tokens.weight"):
        hf_files.read_hf(directory, config)


def drop(name):
    return lambda arrays: arrays.pop(name)


def put(name, value):
    return lambda arrays: arrays.update({name: value})


def poison(name, value):
    return lambda arrays: arrays.update({name: arrays[name].at[-1].set(value)})


UP, NORM = "model.layers.1.mlp.up_proj.weight", "model.norm.weight"


@pytest.mark.parametrize("max_file_bytes", [10**9, 6000], ids=["one file", "several"])
@pytest.mark.parametrize(
    "spoil, message",
    [
        (drop(UP), f"lacks {UP}"),
        (drop(qwen3.HEAD), "lacks lm_head.weight"),
        (put("model.layers.2.mlp.up_proj.weight", jnp.zeros((28, 24))), "holds model.layers.2.mlp.up_proj.weight"),
        (put("model.layers.0.self_attn.q_proj.bias", jnp.zeros(40)), "holds model.layers.0.self_attn.q_proj.bias"),
        (put(UP, jnp.zeros((24, 28))), rf"{UP} has shape \(24, 28\)"),
        (put(NORM, jnp.zeros(24, jnp.float16)), f"{NORM} is stored as F16"),
        (put(UP, jnp.zeros((28, 24), jnp.float8_e4m3fn)), f"{UP} is stored as F8_E4M3"),
        (poison(UP, jnp.nan), f"{UP} in .* holds NaN or infinity"),
        (poison(NORM, jnp.inf), f"{NORM} in .* holds NaN or infinity"),
        (poison(qwen3.EMBEDDING, -jnp.inf), "embed_tokens.weight in .* holds NaN or infinity"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(tmp_path, spoil, message, max_file_bytes):
    config, params = random_params(UNTIED, "float32")
    arrays = {name: jnp.array(x) for name, x in to_hf(params).items()}
    spoil(arrays)
    directory = make_directory(tmp_path / "hf", config, params)
    (directory / "model.safetensors").unlink()
    half = sorted(arrays)[: len(arrays) // 2] if max_file_bytes < 10**9 else sorted(arrays)
    save_file({name: arrays[name] for name in half}, directory / "a.safetensors")
    if len(half) == len(arrays):
        (directory / "a.safetensors").rename(directory / "model.safetensors")
    else:
        save_file({name: arrays[name] for name in arrays if name not in half}, directory / "b.safetensors")
        places = {name: f"{'a' if name in half else 'b'}.safetensors" for name in arrays}
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(CheckpointError, match=message):
        hf_files.read_hf(directory, config)


def test_too_large_for_bfloat16_is_refused_by_name(tmp_path):
    config, params = random_params(UNTIED, "float32")
    params[NORM][0] = 3.4e38
    directory = make_directory(tmp_path / "hf", config, params)
    with pytest.raises(CheckpointError, match=f"{NORM} in .* holds NaN or infinity"):
        hf_files.read_hf(directory, dataclasses.replace(config, param_dtype="bfloat16"))


def truncate(path, by):
    path.write_bytes(path.read_bytes()[:-by])


def change_index(directory, change):
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


FIRST = "model-00001-of-00003.safetensors"


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda d: truncate(d / FIRST, 1), "ends within .*: the file is truncated"),
        (lambda d: truncate(d / FIRST, (d / FIRST).stat().st_size - 100), "is truncated or no safetensors file"),
        (lambda d: truncate(d / FIRST, (d / FIRST).stat().st_size), "is truncated or no safetensors file: 0 bytes"),
        (lambda d: (d / FIRST).write_bytes((d / FIRST).read_bytes() + b"x"), "1 bytes behind its last tensor"),
        (lambda d: (d / FIRST).unlink(), f"{FIRST} is missing; the index says that it holds lm_head.weight"),
        (lambda d: change_index(d, lambda m: m.update({NORM: "../a.safetensors"})), "not a file beside it"),
        (lambda d: change_index(d, lambda m: m.update({NORM: FIRST})), f"holds {NORM}, for which the index names"),
        (lambda d: change_index(d, lambda m: m.update({"extra": FIRST})), "lacks extra, which the index says"),
        (lambda d: (d / "model.safetensors.index.json").write_text("{}"), "not an index"),
        (lambda d: (d / "model.safetensors.index.json").unlink(), "holds neither model.safetensors nor"),
        (lambda d: shutil.copy(d / FIRST, d / "model.safetensors"), "holds both model.safetensors and"),
    ],
)
def test_damaged_directories_are_refused(tmp_path, spoil, message):
    config, params = random_params(UNTIED, "bfloat16")
    directory = make_directory(tmp_path / "hf", config, params, 6000)
    spoil(directory)
    with pytest.raises(CheckpointError, match=message):
        hf_files.read_hf(directory, config)


def test_headers_that_lie_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"

    def refused(header, data, message):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        with pytest.raises(CheckpointError, match=message):
            tensor_files.open_tensors(tmp_path)

    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    refused(b"not json", b"", "malformed header")
    refused({"a": {**entry, "shape": [3]}}, bytes(8), r"a of shape \(3,\) in F32 has 8 bytes")
    refused({"a": entry, "b": entry}, bytes(8), "b begins at byte .* malformed header")
    refused({"a": {**entry, "data_offsets": [4, 12]}}, bytes(12), "a begins at byte")
    refused({"a": {"dtype": "F32"}}, bytes(8), "malformed header")
    refused({"a": {**entry, "data_offsets": [0.0, 8.0]}}, bytes(8), "not all integers")
    refused({"a": {**entry, "shape": [True, 2]}}, bytes(8), "not all integers")
    refused(b"[" * 100_000, b"", "malformed header")


def test_a_config_of_another_size_is_refused_before_anything_of_that_size_is_made(tmp_path):
    config, params = random_params(UNTIED, "float32")
    directory = make_directory(tmp_path / "hf", config, params)
    for field, message in (("num_hidden_layers", "too few for 1000000000 layers"), ("vocab_size", "1000000000")):
        path = directory / "config.json"
        was = path.read_text()
        path.write_text(json.dumps(json.loads(was) | {field: 10**9}))
        with pytest.raises(CheckpointError, match=message):
            hf_files.open_weights(directory, model_config(directory))
        path.write_text(was)


def test_the_model_of_the_config_is_the_one_of_the_directory(tmp_path):
    config, params = random_params(UNTIED, "float32")
    directory = make_directory(tmp_path / "hf", config, params)
    other = dataclasses.replace(config, rope_theta=5e6)
    with pytest.raises(ConfigError, match="rope_theta is 1000000.0 there and config.model.rope_theta is 5000000.0"):
        hf_files.read_hf(directory, other)


def test_parameters_that_do_not_fit_are_not_written(tmp_path):
    config, params = random_params(UNTIED, "float32")
    with pytest.raises(CheckpointError, match="lm_head.weight is .* in the parameters and absent in the model config"):
        hf_files.write_hf(tmp_path, params, dataclasses.replace(config, tied=True), "float32")
    with pytest.raises(CheckpointError, match=r"lm_head.weight is \(24, 88\) .* and \(24, 96\)"):
        hf_files.write_hf(tmp_path, params, dataclasses.replace(config, vocab_size=96), "float32")
    with pytest.raises(ConfigError, match="float16"):
        hf_files.write_hf(tmp_path, params, config, "float16")
    params["model.layers.mlp.up_proj.weight"][1, 0, 0] = np.nan
    with pytest.raises(CheckpointError, match=re.escape(UP) + " in the parameters holds NaN"):
        hf_files.write_hf(tmp_path, params, config, "float32")


MEASURE = """
import sys
import jax
from rw.model import hf_files
from rw.model.hf_config import model_config

def memory(key):
    # Not getrusage: its peak begins with that of the process that started this one.
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(key))) * 1024

directory, dtype = sys.argv[1:]
config = model_config(directory, param_dtype=dtype, attention="chunked_xla")
hf_files.expected_shapes(config)
jax.numpy.zeros(1).block_until_ready()
before = memory("VmRSS")
params = hf_files.read_hf(directory, config)
print(memory("VmHWM") - before, sum(x.nbytes for x in params.values()))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A directory of 200 MB in four files."""
    shape = dict(vocab_size=30_000, d_model=512, n_layers=20, n_heads=8, n_kv_heads=2, head_dim=64, d_ff=2304)
    config = ModelConfig(**shape, rope_theta=5e6)
    directory = tmp_path_factory.mktemp("large") / "hf"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(written_config(config, "bfloat16", {})))
    shapes, dtype = hf.hf_shapes(config), jnp.dtype("bfloat16")
    tensor_files.write_tensors(directory, shapes, dtype, lambda name: np.ones(shapes[name], dtype), 55_000_000)
    return directory


@pytest.mark.parametrize("dtype", [pytest.param("bfloat16", marks=pytest.mark.full), "float32"])
def test_reading_takes_the_arrays_and_little_more(large, dtype):
    files = [file.stat().st_size for file in large.glob("*.safetensors")]
    assert sum(files) > 180e6 and len(files) == 4
    command = [sys.executable, "-c", textwrap.dedent(MEASURE), str(large), dtype]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    taken, held = map(int, done.stdout.split())
    print(f"{taken / 1e6:.0f} MB for arrays of {held / 1e6:.0f} MB")
    assert held >= sum(files) * (2 if dtype == "float32" else 1) * 0.99
    assert 0.9 * held < taken <= held + 1.3 * max(files)
