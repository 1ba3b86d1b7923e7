"""`batch.micro_batch=0` in a run: measured once, kept with what it was measured with, refused where it must not be."""

import dataclasses
import json
import pathlib
import types

import pytest

from rw import micro_batch
from rw.config import load_config
from rw.errors import ConfigError
from rw.learner.measured_batch import Choice
from rw.memory import device_memory

TINY = str(pathlib.Path(__file__).parent.parent / "data" / "configs" / "tiny.py")


@pytest.fixture
def config():
    return dataclasses.replace(micro_batch.with_rows(load_config(TINY), 0), deterministic=False)


@pytest.fixture
def parts(config, tmp_path):
    workdir = types.SimpleNamespace(file=lambda name: tmp_path / name)
    return types.SimpleNamespace(config=config, workdir=workdir, mesh=None, processes=types.SimpleNamespace(count=1))


@pytest.fixture
def measured(monkeypatch):
    """The sizes that were handed out to be timed, once for each measurement."""
    calls = []

    def measure(model, batch, loss, mesh, sizes, fits):
        calls.append([size for size in sizes if fits(size)])
        return Choice(4, {2: 100.0, 4: 200.0})

    monkeypatch.setattr(micro_batch, "measure", measure)
    monkeypatch.setattr(micro_batch, "device_limit", lambda: types.SimpleNamespace(size=8))

    def a_byte_a_row(config):
        return types.SimpleNamespace(peak_bytes=config.batch.micro_batch)

    monkeypatch.setattr(micro_batch, "device_memory", a_byte_a_row)
    return calls


def test_a_size_is_measured_once_and_a_restart_takes_the_same(parts, measured, capsys):
    assert micro_batch.with_micro_batch(parts).batch == dataclasses.replace(parts.config.batch, micro_batch=4)
    assert "micro-batches of 4 rows, from tokens/s by rows: 2: 100, 4: 200" in capsys.readouterr().out
    assert micro_batch.with_micro_batch(parts).batch.micro_batch == 4
    assert "micro-batches of 4 rows, as measured before" in capsys.readouterr().out
    assert measured == [[1, 2, 4, 8]]  # of the 24 rows of a batch 16 would not fit


def test_another_model_or_a_damaged_file_is_measured_anew(parts, measured):
    micro_batch.with_micro_batch(parts)
    model = dataclasses.replace(parts.config.model, n_layers=parts.config.model.n_layers + 1)
    parts.config = dataclasses.replace(parts.config, model=model)
    micro_batch.with_micro_batch(parts)
    assert len(measured) == 2
    path = parts.workdir.file(micro_batch.FILE)
    for damaged in ("{", "[]", json.dumps({"micro_batch": 4})):
        path.write_text(damaged)
        micro_batch.with_micro_batch(parts)
    assert len(measured) == 5


def test_a_given_number_is_taken_as_it_is(parts, measured):
    parts.config = micro_batch.with_rows(parts.config, 3)
    assert micro_batch.with_micro_batch(parts) is parts.config and not measured


def test_a_size_by_the_clock_is_refused_where_sums_must_agree(config):
    micro_batch.check_micro_batch(config, 1)
    with pytest.raises(ConfigError, match="deterministic=True asks for the same sums in every run; give a number"):
        micro_batch.check_micro_batch(dataclasses.replace(config, deterministic=True), 1)
    with pytest.raises(ConfigError, match="2 processes must all take the same number"):
        micro_batch.check_micro_batch(config, 2)
    micro_batch.check_micro_batch(micro_batch.with_rows(dataclasses.replace(config, deterministic=True), 8), 2)


def test_memory_before_it_is_measured_is_that_of_one_row_a_device(config):
    assert device_memory(config) == device_memory(micro_batch.with_rows(config, 1))
