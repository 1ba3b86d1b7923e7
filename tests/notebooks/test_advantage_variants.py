"""The notebook on advantages: what lies in the repository, and that it runs from top to bottom."""

import ast
import importlib
import json
import os
import pathlib
import re
import shutil

import numpy as np
import pytest

from rw.core.advantage_contract import check_advantage, recorded_name
from rw.core.advantages import AdvantageConfig
from rw.learner.batch import group_batch
from rw.rollout.record import read_groups
from rw.types import Mode

ROOT = pathlib.Path(__file__).parent.parent.parent
NOTEBOOK = ROOT / "notebooks" / "advantage_variants.ipynb"
TRAJECTORIES = sorted((ROOT / "notebooks" / "data").glob("step_*.jsonl.xz"))


@pytest.fixture(scope="module")
def cells():
    return json.loads(NOTEBOOK.read_text())["cells"]


@pytest.fixture(scope="module")
def code(cells):
    """The source of each code cell."""
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def variant_cell(code: list[str]) -> str:
    (cell,) = [source for source in code if re.search(r"^def \w+\(batch, config\):", source, re.MULTILINE)]
    return cell


def test_it_is_short_and_small(cells, code):
    assert len(cells) < 25
    assert len(variant_cell(code).splitlines()) <= 20
    assert NOTEBOOK.stat().st_size < 400_000
    assert sum(file.stat().st_size for file in TRAJECTORIES) < 300_000


def test_what_is_stored_comes_from_one_run_of_all_cells_on_no_particular_machine(cells):
    executed = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in executed] == list(range(1, len(executed) + 1))
    assert {output["output_type"] for cell in executed for output in cell["outputs"]} >= {"stream", "display_data"}
    assert not [output for cell in executed for output in cell["outputs"] if output["output_type"] == "error"]
    streams = [output for cell in executed for output in cell["outputs"] if output["output_type"] == "stream"]
    assert {output["name"] for output in streams} == {"stdout"}
    assert "\\u001b" not in NOTEBOOK.read_text()  # no colours and no progress bar: training prints plain lines
    assert not re.search(r"(?<![\w.<])/(root|home|work|tmp|usr|opt|mnt|Users)/", NOTEBOOK.read_text())


def test_every_name_that_it_imports_from_rw_is_there(code):
    imports = [node for source in code for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    wanted = [(node.module, name.name) for node in imports if node.module.split(".")[0] == "rw" for name in node.names]
    assert len(wanted) > 10
    assert [pair for pair in wanted if not hasattr(importlib.import_module(pair[0]), pair[1])] == []


def test_the_stored_trajectories_show_every_case(code):
    (path,) = TRAJECTORIES
    assert any(f'read_groups("{path.relative_to(ROOT)}")' in source for source in code)
    groups = read_groups(path)
    batch = group_batch(groups, reference_cost_usd=1.0, efficiency_weight=0.0, cold_start=False)
    differs = np.ptp(np.where(batch.retained, batch.rewards[..., 0], 0), axis=1) > 0
    assert (differs & batch.forced).any()
    assert {len(set(modes)) for modes in batch.mode[differs & ~batch.forced]} & {2, 3}
    assert set(batch.mode.flat) >= {int(mode) for mode in Mode}
    lone = [(modes[:, None] == modes).sum(axis=1) == 1 for modes in batch.mode[differs & ~batch.forced]]
    assert np.any(lone)  # a rollout alone in its mode, which the variant is about


def test_the_variant_keeps_what_its_text_says(code, monkeypatch):
    (path,) = TRAJECTORIES
    batch = group_batch(read_groups(path), reference_cost_usd=1.0, efficiency_weight=0.0, cold_start=False)
    namespace = {}
    setting = [source for source in code if "from rw" in source and "import" in source][0]
    imports = [node for node in ast.parse(setting).body if isinstance(node, ast.ImportFrom) and "rw." in node.module]
    exec(compile(ast.Module(imports, type_ignores=[]), "imports", "exec"), namespace)
    definition = ast.parse(variant_cell(code)).body[0]
    exec(compile(ast.Module([definition], type_ignores=[]), "variant", "exec"), namespace)
    variant, comet = namespace[definition.name], namespace["comet"]
    config = AdvantageConfig(0.0)
    check_advantage(variant, definition.name, config)
    ours, plain = variant(batch, config), comet(batch, config)
    np.testing.assert_allclose(ours.mode + ours.inner, plain.grpo, atol=1e-5)
    lone = (batch.mode[:, :, None] == batch.mode[:, None, :]).sum(axis=-1) == 1
    np.testing.assert_allclose(np.asarray(ours.mode)[lone], np.asarray(plain.mode)[lone] / 2, atol=1e-5)
    assert np.abs(np.asarray(ours.inner)[lone]).max() > 0.1 and np.abs(np.asarray(plain.inner)[lone]).max() < 1e-6


@pytest.mark.full
@pytest.mark.timeout(2400)
def test_it_runs_from_top_to_bottom(tmp_path):
    """In a copy, so that neither the notebook nor runs of earlier times are touched."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    notebook = nbformat.read(tmp_path / "notebooks" / NOTEBOOK.name, as_version=4)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}
    nbclient.NotebookClient(
        notebook, timeout=2300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path / "notebooks")}}
    ).execute(env=environment)
    runs = sorted((tmp_path / "runs" / "advantage_variants").iterdir())
    assert [run.name.partition("@")[0] for run in runs] == ["comet", "shrunk"]
    rows = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in runs]
    assert [len(own) for own in rows] == [20, 20]
    assert rows[0][0]["accuracy"] == pytest.approx(rows[1][0]["accuracy"], abs=0.05)  # the same draws in the first step
    assert rows[0][0]["adv/mode/std"] > rows[1][0]["adv/mode/std"] > 0
    names = [json.loads((run / "config.json").read_text())["advantage"]["function"] for run in runs]
    assert names[0] == recorded_name(importlib.import_module("rw.core.advantages").comet)
    assert names[1].startswith("__main__:shrunk@")
