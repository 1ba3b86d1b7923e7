"""`rw convert` there and back, runs that begin from what it reads, and targets that survive what goes wrong."""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.flax import load_file, save_file

from rw import convert
from rw.aside import written_aside
from rw.config import as_dict, load_config
from rw.errors import CheckpointError, ConfigError
from rw.initial import initial_router
from rw.learner.checkpoint import Checkpoints, RunIdentity, load_params, save_params
from rw.learner.optimizer import Optimizer
from rw.learner.state import fingerprint, init_state
from rw.metrics import MetricWriter
from rw.model import hf
from rw.model.hf_config import model_config
from rw.model.hf_files import read_hf
from rw.model.qwen3 import EMBEDDING, HEAD
from rw.parts import PACKAGED, load_codec, open_parts
from rw.router_files import CHAT_TEMPLATE
from rw.workdir import Workdir

from ..model.hf_arrays import to_hf

ROOT = pathlib.Path(__file__).parents[2]
TINY = ROOT / "tests" / "data" / "configs" / "tiny.py"
TOKENIZER = PACKAGED / "quickstart_tokenizer.json"
CARRIED = {"generation_config.json": {"temperature": 0.7, "top_k": 20}, "special_tokens_map.json": {"eos": "x"}}


def tiny(**model):
    config = load_config(str(TINY))
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **model))


def random_params(model, seed=0):
    """Rounded to bfloat16, so that they are the same in both dtypes."""
    random, dtype = np.random.default_rng(seed), jnp.dtype(model.param_dtype)
    shapes = hf.expected_shapes(model)
    return {n: (0.1 * random.normal(size=s)).astype(jnp.bfloat16).astype(dtype) for n, s in shapes.items()}


def published(directory, model, dtype="bfloat16"):
    """A Hugging Face directory as a publisher leaves it, with files that we do not know; -> its parameters."""
    model = dataclasses.replace(model, param_dtype=dtype)
    params = random_params(model)
    directory.mkdir()
    save_file({n: jnp.array(x) for n, x in to_hf(params).items()}, directory / "model.safetensors")
    shape = {
        "vocab_size": model.vocab_size, "hidden_size": model.d_model, "num_hidden_layers": model.n_layers,
        "num_attention_heads": model.n_heads, "num_key_value_heads": model.n_kv_heads, "head_dim": model.head_dim,
        "intermediate_size": model.d_ff, "rms_norm_eps": 1e-6, "rope_theta": model.rope_theta,
        "tie_word_embeddings": model.tied,
    }  # fmt: skip
    config = {"model_type": "qwen3", "max_position_embeddings": 1234, "torch_dtype": dtype, **shape}
    for name, values in {"config.json": config, **CARRIED}.items():
        (directory / name).write_text(json.dumps(values))
    (directory / "chat_template.jinja").write_text("{{ 'a template of theirs' }}")
    shutil.copy(TOKENIZER, directory / "tokenizer.json")
    return params


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array), name


def run(*arguments, expect=0):
    assert convert.main([str(argument) for argument in arguments]) == expect


def files_in(directory):
    return {path.relative_to(directory): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_what_is_imported_and_exported_is_what_was_published(tmp_path, tied):
    source, saved, out = tmp_path / "published", tmp_path / "saved", tmp_path / "out"
    params = published(source, tiny(tied=tied).model)
    run("--from-hf", source, "--to", saved)
    found, metadata = load_params(saved)
    assert_same(found, params)
    assert metadata["tokenizer_fingerprint"] == load_codec("quickstart").fingerprint
    run("--from", saved, "--to-hf", out, "--max-file-bytes", 50_000)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2 and (HEAD in index["weight_map"]) != tied
    before, after = files_in(source), files_in(out)
    for name in (*CARRIED, "chat_template.jinja", "tokenizer.json"):
        assert after[pathlib.Path(name)] == before[pathlib.Path(name)], name
    config = json.loads((out / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 1e4
    assert config["tie_word_embeddings"] is tied and config["dtype"] == "bfloat16"
    assert config["max_position_embeddings"] == 1234
    run("--from-hf", out, "--to", tmp_path / "again")
    assert_same(load_params(tmp_path / "again")[0], params)


def test_dtypes_are_what_is_asked_for_and_say_so(tmp_path):
    params = published(tmp_path / "published", tiny().model)
    run("--from-hf", tmp_path / "published", "--to", tmp_path / "saved", "--dtype", "float32")
    assert_same(load_params(tmp_path / "saved")[0], {n: x.astype(np.float32) for n, x in params.items()})
    for dtype in ("bfloat16", "float32"):
        run("--from", tmp_path / "saved", "--to-hf", tmp_path / dtype, "--dtype", dtype)
        stored = load_file(tmp_path / dtype / "model.safetensors")
        assert {x.dtype.name for x in stored.values()} == {dtype}
        config = json.loads((tmp_path / dtype / "config.json").read_text())
        assert config["dtype"] == config["torch_dtype"] == dtype
    assert (tmp_path / "bfloat16" / "model.safetensors").stat().st_size < 0.6 * (
        tmp_path / "float32" / "model.safetensors"
    ).stat().st_size


def make_run(path, config, best=None):
    """A working directory as a run leaves it, with checkpoints of steps 1 and 2; -> parameters by step."""
    codec, optimizer = load_codec(config.tokenizer.path), Optimizer(config.optimizer)
    by_step = {step: random_params(config.model, step) for step in (0, 1, 2)}
    with Workdir(path) as workdir:
        workdir.write_config(as_dict(config))
        identity = RunIdentity(as_dict(config), codec.fingerprint, fingerprint(by_step[0]), config.seed)
        with Checkpoints(workdir.file("checkpoints"), identity) as checkpoints:
            for step in (1, 2):
                state = init_state(jax.tree.map(jnp.array, by_step[step]), optimizer, 0)
                checkpoints.save(state._replace(step=jnp.int32(step)))
        if best is not None:
            about = {"tokenizer_fingerprint": codec.fingerprint, "step": best}
            save_params(path / "best" / f"step_{best:06d}", jax.tree.map(jnp.array, by_step[best]), about)
            with MetricWriter(path, tensorboard=False, name="validation") as rows:
                for step in (0, 1, 2):
                    rows.write(step, {"eval/accuracy": 0.9 if step == best else 0.95, "eval/questions": 5.0})
    return by_step


def test_the_best_router_of_a_run_is_exported_or_else_the_last_or_that_of_a_step(tmp_path, capsys):
    config = tiny()
    validated, by_step = tmp_path / "validated", make_run(tmp_path / "validated", config, best=0)
    make_run(tmp_path / "unvalidated", config)
    for name, source, step, more in (
        ("best", validated, 0, ()),
        ("last", tmp_path / "unvalidated", 2, ()),
        ("first", validated, 1, ("--step", 1)),
        ("direct", validated / "best" / "step_000000", 0, ()),
    ):
        run("--from", source, "--to-hf", tmp_path / name, *more)
        assert_same(read_hf(tmp_path / name, config.model), by_step[step])
    assert "the best by validation, of step 0" in capsys.readouterr().out
    run("--from", validated, "--to-hf", tmp_path / "none", "--step", 7, expect=2)
    assert "keeps only the routers of steps 0, 1, 2" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_router_that_did_not_come_from_there_gets_files_of_its_own(tmp_path):
    run("--from", "quickstart", "--to-hf", tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == TOKENIZER.read_bytes()
    codec = load_codec("quickstart")
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [codec.im_end, codec.endoftext]
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["chat_template"] == CHAT_TEMPLATE
    assert_same(
        read_hf(tmp_path / "out", model_config(tmp_path / "out")),
        load_params(PACKAGED / "quickstart_warmstart.safetensors")[0],
    )


def test_a_checkpoint_that_cannot_be_read_names_itself(tmp_path, capsys):
    make_run(tmp_path / "run", tiny())
    state = tmp_path / "run" / "checkpoints" / "2" / "state"
    for file in state.rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    run("--from", tmp_path / "run", "--to-hf", tmp_path / "out", expect=2)
    error = capsys.readouterr().err
    assert f"{tmp_path / 'run' / 'checkpoints' / '2'} cannot be read" in error and "--step" in error
    metadata = tmp_path / "run" / "checkpoints" / "1" / "metadata" / "metadata"
    metadata.write_text(metadata.read_text().replace('"format_version": 1', '"format_version": 99'))
    run("--from", tmp_path / "run", "--to-hf", tmp_path / "out", "--step", 1, expect=2)
    assert "has format version 99, this code reads 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--from", "{hf}", "--to-hf", "{out}"), "is imported with --from-hf"),
        (("--from", "{none}", "--to-hf", "{out}"), "no parameters at"),
        (("--from", "quickstart", "--to-hf", "{out}", "--step", "3"), "is not the working directory of a run"),
        (("--from", "quickstart", "--to-hf", "{out}", "--tokenizer", "{hf}/config.json"), "config.json"),
        (("--from-hf", "{none}", "--to", "{out}"), "is no directory; name that of config.json"),
        (("--from-hf", "{hf}", "--to", "{out}.safetensors"), "name a directory"),
    ],
)
def test_what_cannot_be_converted_is_refused_in_words(tmp_path, capsys, arguments, message):
    published(tmp_path / "hf", tiny().model)
    places = {name: str(tmp_path / name) for name in ("hf", "none", "out")}
    run(*(argument.format(**places) for argument in arguments), expect=2)
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    "arguments", [(), ("--from-hf", "a"), ("--from", "a", "--to", "b"), ("--from-hf", "a", "--to", "b", "--step", "1")]
)
def test_halves_of_two_conversions_are_no_conversion(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        convert.main(list(arguments))
    assert caught.value.code == 2 and "--from" in capsys.readouterr().err


def test_what_is_there_stays_unless_it_may_go_and_the_new_one_is_whole(tmp_path, capsys):
    params = published(tmp_path / "published", tiny().model)
    run("--from-hf", tmp_path / "published", "--to", tmp_path / "saved")
    run("--from", tmp_path / "saved", "--to-hf", tmp_path / "out")
    before = files_in(tmp_path)
    run("--from", tmp_path / "saved", "--to-hf", tmp_path / "out", expect=2)
    assert "give --overwrite" in capsys.readouterr().err
    run("--from-hf", tmp_path / "published", "--to", tmp_path / "saved", expect=2)
    run("--from-hf", tmp_path / "published", "--to", tmp_path / "out", "--overwrite", expect=2)
    assert "is not what would be written there" in capsys.readouterr().err
    assert files_in(tmp_path) == before

    arrays = load_file(tmp_path / "published" / "model.safetensors")
    arrays["model.norm.weight"] = arrays["model.norm.weight"].at[0].set(jnp.nan)
    save_file(arrays, tmp_path / "published" / "model.safetensors")
    spoilt = {name: jnp.array(x) for name, x in params.items()} | {EMBEDDING: jnp.full_like(params[EMBEDDING], jnp.nan)}
    metadata = load_params(tmp_path / "saved")[1]
    save_params(tmp_path / "spoilt", spoilt, metadata)
    saved, out = files_in(tmp_path / "saved"), files_in(tmp_path / "out")
    run("--from-hf", tmp_path / "published", "--to", tmp_path / "saved", "--overwrite", expect=2)
    assert "model.norm.weight in" in capsys.readouterr().err
    run("--from", tmp_path / "spoilt", "--to-hf", tmp_path / "out", "--overwrite", expect=2)
    assert f"{EMBEDDING} in the parameters holds NaN" in capsys.readouterr().err
    assert files_in(tmp_path / "saved") == saved and files_in(tmp_path / "out") == out
    assert {path.name for path in tmp_path.iterdir()} == {"published", "saved", "out", "spoilt"}

    run("--from", tmp_path / "saved", "--to-hf", tmp_path / "out", "--overwrite", "--dtype", "float32")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"
    assert {path.name for path in tmp_path.iterdir()} == {"published", "saved", "out", "spoilt"}


KILLED = """
import os, sys
from rw.aside import written_aside
with written_aside(sys.argv[1], True, lambda path: True) as aside:
    aside.mkdir()
    (aside / "half").write_text("half")
    os._exit(9)
"""


def test_a_killed_process_leaves_nothing_under_the_final_name(tmp_path):
    target = tmp_path / "out"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for before in ([], ["old"]):
        for name in before:
            target.mkdir()
            (target / name).write_text(name)
        done = subprocess.run([sys.executable, "-c", KILLED, str(target)], env=environment, timeout=60)
        assert done.returncode == 9
        assert ([path.name for path in target.iterdir()] if target.exists() else []) == before
    with written_aside(target, True, lambda path: True) as aside:
        assert not aside.exists()
        aside.mkdir()
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and not list(target.iterdir())


def test_what_was_moved_away_comes_back(tmp_path, monkeypatch):
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").touch()
    rename = pathlib.Path.rename

    def fail(path, to):
        if path.name == "out.partial":
            raise OSError("no more")
        return rename(path, to)

    monkeypatch.setattr(pathlib.Path, "rename", fail)
    with pytest.raises(OSError, match="no more"), written_aside(target, True, lambda path: True) as aside:
        aside.mkdir()
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and (target / "old").exists()
    monkeypatch.undo()
    target.rename(tmp_path / "out.replaced")  # as a process leaves it that is killed between the two renames
    with pytest.raises(CheckpointError, match="exists"), written_aside(target, False, lambda path: True):
        pass
    assert (target / "old").exists()


async def begin(config, path):
    """The initial router of a run, as `rw train` makes or finds it."""
    with Workdir(path) as workdir:
        async with open_parts(config, workdir) as parts:
            return await initial_router(parts)


def beginning_from(path, **model):
    config = tiny(**model)
    return dataclasses.replace(config, init=dataclasses.replace(config.init, source="params", path=str(path)))


@pytest.mark.parametrize("name", [pytest.param("published", marks=pytest.mark.full), "saved"])
async def test_a_run_begins_from_a_directory_or_from_what_was_made_of_it_and_exports_with_its_files(tmp_path, name):
    params = published(tmp_path / "published", tiny().model)
    run("--from-hf", tmp_path / "published", "--to", tmp_path / "saved")
    expected = {name: x.astype(np.float32) for name, x in params.items()}  # master weights, whatever was stored
    config = beginning_from(tmp_path / name)
    assert_same(await begin(config, tmp_path / "run"), expected)
    reference = tmp_path / "run" / "reference"
    shutil.rmtree(reference / "hf")  # as after a kill before they were copied
    assert_same(await begin(config, tmp_path / "run"), expected)
    run("--from", reference, "--to-hf", tmp_path / "out", "--dtype", "bfloat16")
    assert_same(read_hf(tmp_path / "out", dataclasses.replace(config.model, param_dtype="bfloat16")), params)
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "{{ 'a template of theirs' }}"
    by_step = make_run(tmp_path / "run", config, best=1)
    run("--from", tmp_path / "run", "--to-hf", tmp_path / "trained")
    assert_same(read_hf(tmp_path / "trained", tiny().model), by_step[1])
    assert (tmp_path / "trained" / "chat_template.jinja").exists()


async def test_another_model_or_tokenizer_than_the_runs_is_refused(tmp_path):
    published(tmp_path / "published", tiny().model)
    run("--from-hf", tmp_path / "published", "--to", tmp_path / "saved")
    for name in ("published", "saved"):
        with pytest.raises(ConfigError, match="rope_theta is 10000.0 there and config.model.rope_theta is 1000000.0"):
            await begin(beginning_from(tmp_path / name, rope_theta=1e6), tmp_path / "run")
    tokenizer = tmp_path / "published" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    with pytest.raises(CheckpointError, match=f"--config.tokenizer.path={tokenizer}"):
        await begin(beginning_from(tmp_path / "published"), tmp_path / "run")
    assert not (tmp_path / "run" / "reference").exists()


@pytest.mark.full
def test_a_warm_start_goes_out_trains_from_there_and_the_trained_router_goes_out(request, tmp_path):
    warm, train = request.getfixturevalue("warm"), request.getfixturevalue("run")
    run("--from", warm, "--to-hf", tmp_path / "published")
    overrides = ("--config.steps=2", "--config.evaluation.every=1", "--config.evaluation.test_queries=0")
    init = ("--config.init.source=params", f"--config.init.path={tmp_path / 'published'}")
    train("train", tmp_path / "trained", *overrides, *init)
    assert_same(load_params(tmp_path / "trained" / "reference")[0], load_params(warm)[0])
    run("--from", tmp_path / "trained", "--to-hf", tmp_path / "out")
    best = next((tmp_path / "trained" / "best").iterdir())
    assert_same(read_hf(tmp_path / "out", tiny().model), load_params(best)[0])
    for step in (1, 2):
        run("--from", tmp_path / "trained", "--to-hf", tmp_path / f"step_{step}", "--step", step)
    first, last = (load_file(tmp_path / f"step_{step}" / "model.safetensors") for step in (1, 2))
    assert any(not np.array_equal(first[name], last[name]) for name in last)
    assert files_in(tmp_path / "out").keys() == files_in(tmp_path / "published").keys()
    assert (tmp_path / "out" / "tokenizer_config.json").read_text() == (
        tmp_path / "published" / "tokenizer_config.json"
    ).read_text()
