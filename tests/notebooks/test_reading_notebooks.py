"""The notebooks that read what runs leave behind: small, run once from top to bottom, and on any machine."""

import ast
import importlib
import json
import lzma
import os
import pathlib
import re
import shutil
import tarfile

import numpy as np
import pytest

from rw.evaluation.history import read_history
from rw.rollout.record import read_groups

ROOT = pathlib.Path(__file__).parent.parent.parent
DATA = ROOT / "notebooks" / "data"
NAMES = ("trajectories", "training_curves")


def cells_of(name):
    return json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text())["cells"]


def sources(name):
    return ["".join(cell["source"]) for cell in cells_of(name) if cell["cell_type"] == "code"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_stored_comes_from_one_run_of_all_cells_on_no_particular_machine(name):
    path = ROOT / "notebooks" / f"{name}.ipynb"
    executed = [cell for cell in cells_of(name) if cell["cell_type"] == "code"]
    assert len(cells_of(name)) < 20 and path.stat().st_size < 200_000
    assert [cell["execution_count"] for cell in executed] == list(range(1, len(executed) + 1))
    outputs = [output for cell in executed for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} >= {"stream", "display_data"}
    assert {output["name"] for output in outputs if output["output_type"] == "stream"} == {"stdout"}
    assert not re.search(r"(?<![\w.<])/(root|home|work|tmp|usr|opt|mnt|Users)/", path.read_text())


@pytest.mark.parametrize("name", NAMES)
def test_every_name_that_it_imports_from_rw_is_there(name):
    imports = [node for source in sources(name) for node in ast.walk(ast.parse(source))]
    imports = [node for node in imports if isinstance(node, ast.ImportFrom) and node.module.startswith("rw.")]
    wanted = [(node.module, alias.name) for node in imports for alias in node.names]
    assert len(wanted) >= 3
    assert [pair for pair in wanted if not hasattr(importlib.import_module(pair[0]), pair[1])] == []


@pytest.fixture
def curves(tmp_path):
    """Directories of the runs that the curves are of."""
    with tarfile.open(DATA / "quickstart_curves.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    return sorted(tmp_path.iterdir())


def test_the_stored_runs_are_whole_and_of_the_configs_that_the_text_names(curves):
    assert sum(file.stat().st_size for file in DATA.iterdir()) < 100_000
    histories = {path.name: read_history(path) for path in curves}
    assert list(histories) == [f"{label}_seed_{seed}" for label in ("comet", "no_comet") for seed in (11, 12)]
    for name, history in histories.items():
        assert history.steps == 180 and history.unreadable == 0 and len(history.series("eval/accuracy")[0]) == 10
        function, reduction = ("grpo", "global") if name.startswith("no_comet") else ("comet", "segment")
        assert (history.setting("advantage", "function"), history.setting("loss", "reduction")) == (function, reduction)
        assert history.config["seed"] == int(name[-2:]) and [phase for phase, _, _ in history.phases()][-1] == "free"


def test_both_have_what_the_cells_ask_of_them(curves):
    history = read_history(curves[0])
    code = "\n".join(sources("training_curves"))
    asked = set(re.findall(r'"((?:loss|policy|adv|invalid|cost|mode|eval)/[\w/]+)"', code)) | {"accuracy", "grad_norm"}
    assert len(asked) >= 7 and [name for name in asked if not len(history.series(name)[0])] == []
    groups = read_groups(DATA / "step_000060.jsonl.xz")
    calls = [len(scored.trajectory.calls) for group in groups for scored in group.rollouts]
    assert max(calls) >= 4 and np.mean([group.forced_mode is None for group in groups]) not in (0.0, 1.0)
    record = json.loads(lzma.decompress((DATA / "step_000060.jsonl.xz").read_bytes()).splitlines()[0])
    assert {"turns", "calls", "mode", "correct", "cost_usd", "status"} <= record.keys()


def run_copy(name, folder, change=lambda source: source):
    """The outputs of the notebook, run in a copy: neither it nor runs of earlier times are touched."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    for copied in ("configs", "notebooks"):
        shutil.copytree(ROOT / copied, folder / copied)
    notebook = nbformat.read(folder / "notebooks" / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = change(cell.source)
    where = {"metadata": {"path": str(folder / "notebooks")}}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}
    done = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where)
    done.execute(env=environment)
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_from_top_to_bottom(name, tmp_path):
    made = run_copy(name, tmp_path)
    kept = [output for cell in cells_of(name) for output in cell.get("outputs", [])]
    assert [output["output_type"] for output in made] == [output["output_type"] for output in kept]
    text = [["".join(o["text"]) for o in outputs if o["output_type"] == "stream"] for outputs in (made, kept)]
    assert text[0] == text[1]  # the numbers that the text speaks of


@pytest.mark.full
@pytest.mark.timeout(400)
def test_trajectories_of_an_evaluation_are_shown_too(tmp_path):
    """They have no arrays, and one rollout a question."""
    lines = lzma.decompress((DATA / "step_000060.jsonl.xz").read_bytes()).decode().splitlines()
    records = [json.loads(line) for line in lines][::8]
    for record in records:
        del record["arrays"]
    path = tmp_path / "trained.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    made = run_copy(
        "trajectories", tmp_path, lambda source: source.replace("notebooks/data/step_000060.jsonl.xz", str(path))
    )
    assert sum(output["output_type"] == "display_data" for output in made) == 2  # two graphs and no strips


@pytest.mark.full
@pytest.mark.timeout(400)
def test_curves_of_runs_that_were_never_validated_and_of_many_labels(tmp_path):
    def change(source):
        others = 'for file in UNPACKED.glob("no_comet*/validation.jsonl"):\n    file.unlink()\n'
        others += 'RUNS |= {f"again {k}": RUNS["without it"] for k in range(4)}\n'
        return source.replace("COLOURS = (", f"{others}COLOURS = (")

    made = run_copy("training_curves", tmp_path, change)
    text = "".join("".join(output["text"]) for output in made if output["output_type"] == "stream")
    assert text.count("180 steps  no validation") == 10 and text.count("best validation") == 2
