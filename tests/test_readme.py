"""Every figure of the README comes from a file in configs/results, which runs wrote; its tables are made from these.

A table that no longer agrees is printed as it should stand.
"""

import json
import math
import pathlib
import re

import pytest

from rw.evaluation.comparison import comparison_table
from rw.workers.endpoint_file import load_endpoints
from rw.workers.pricing import PriceTable

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / "configs" / "results"
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Rows of a comparison that the README shows.
SHOWN = ("% right", "trained minus", "cost, warm start", "cost, trained (after)", "cost, oracle", "majority mode")


def result(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def block(name):
    """What stands between the markers of that name."""
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end -->", README, re.DOTALL)
    assert found, f"the README has no block {name}"
    return found[1]


def runs_table(name):
    """The rows of a comparison that the README shows, as markdown."""
    table = comparison_table(result(name)["runs"], intervals=False)
    rows = tuple(row for row in table.rows if row[0].startswith(SHOWN))
    return type(table)(table.title, table.columns, rows).markdown()


@pytest.mark.parametrize("name", ["quickstart", "replay_nq"])
def test_tables_are_those_of_the_recorded_runs(name):
    expected = runs_table(name)
    assert block(name) == expected, f"it should read\n{expected}"


def plain(text):
    return " ".join(text.split())


def test_sentences_hold_the_recorded_figures():
    quickstart = result("quickstart")
    mean = quickstart["mean"]
    before, after, oracle = (mean[f"accuracy_{arm}"] for arm in ("warm_start", "trained", "oracle"))
    questions = quickstart["runs"][0]["test_queries"]
    assert {run["test_queries"] for run in quickstart["runs"]} == {questions}
    assert f"from {100 * before:.0f} % to {100 * after:.0f} % right" in plain(README)
    assert f"on {questions} test questions each" in plain(README)
    assert f"the oracle's {100 * oracle:.0f} %" in plain(README)


def test_the_plots_are_there():
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README):
        assert (ROOT / path).read_bytes().startswith(b"\x89PNG"), path


def test_workers_of_the_readme_load(tmp_path):
    blocks = re.findall(r"^```yaml\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    for block_text in blocks:
        (tmp_path / "workers.yaml").write_text(block_text, encoding="utf-8")
        (worker,) = load_endpoints(tmp_path / "workers.yaml")
        PriceTable.from_endpoints([worker])


def test_times_are_those_of_the_recorded_runs():
    """Seconds of each part of `launch/quickstart.sh` in fresh clones, by the times of the lines it printed."""
    times = result("quickstart_times")["runs"]
    assert len(times) >= 2
    spans = {}
    for part in ("install_s", "training_s", "evaluation_s", "total_s"):
        least, most = (f"{bound(run[part] for run in times) / 60:.1f}" for bound in (min, max))
        spans[part] = least if least == most else f"{least} to {most}"
    sentence = (
        f"took {spans['total_s']} minutes: installation {spans['install_s']}, training {spans['training_s']}, "
        f"final evaluation and report {spans['evaluation_s']}."
    )
    assert sentence in plain(README)
    (right,) = {run["right_of_600"] for run in times}
    assert f"it got {right} of 600 test questions right, both times" in plain(README)


def test_the_null_result_is_the_recorded_one():
    recorded = result("replay_nq")
    mean, runs = recorded["mean"], recorded["runs"]
    margin, best = mean["margins"]["trained_minus_best_scripted"], mean["accuracy_scripted"]["scripted_worker_1"]
    questions = runs[0]["test_queries"]
    error = math.sqrt(best * (1 - best) / questions)
    costs = [mean["cost_usd_mean"][arm] * 1e6 for arm in ("trained", "scripted_worker_1")]
    assert f"on {len(runs)} splits of the questions, with {questions} questions for the test" in plain(README)
    worst = min(run["margins"]["trained_minus_best_scripted"]["mean"] for run in runs)
    assert f"settled on worker_5 ({-100 * worst:.1f} points below)" in plain(README)
    assert f"ends {-100 * margin:.1f} points below" in plain(README)
    assert f"one standard error of a split is {100 * error:.1f}" in plain(README)
    assert f"at {costs[0]:.1f} against {costs[1]:.1f} ·10⁻⁶ USD" in plain(README)
