"""Every figure of the README comes from a file in configs/results, which runs wrote; its tables are made from these.

A table that no longer agrees is printed as it should stand.
"""

import json
import math
import pathlib
import re

import pytest

from rw.evaluation.comparison import comparison_table
from rw.evaluation.table import Table, cost_unit, cost_words, interval_words, share_words
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


def arms_table(name, with_modes):
    """The arms of an experiment as markdown: % right on the test questions by seed, mode shares in brackets."""
    arms = result("experiments")[name]
    seeds = sorted({run["seed"] for arm in arms for run in arm["runs"]})
    rows = [["", *(f"seed {seed}" for seed in seeds), "mean"]]
    for arm in arms:
        by_seed = {run["seed"]: run for run in arm["runs"]}
        cells = []
        for seed in seeds:
            run = by_seed.get(seed)
            right = "-" if run is None else f"{100 * run['right'] / run['questions']:.1f}"
            shares = "" if run is None or not with_modes else " (" + "/".join(
                f"{100 * run['mode_share'][mode]:.0f}" for mode in ("single", "multi", "agentic")
            ) + ")"  # fmt: skip
            cells.append(right + shares)
        mean = sum(run["right"] for run in arm["runs"]) / sum(run["questions"] for run in arm["runs"])
        rows.append([arm["name"], *cells, f"{100 * mean:.1f}"])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "| --- |" + " ---: |" * (len(rows[0]) - 1), *lines[1:]])


@pytest.mark.parametrize(("name", "with_modes"), [("advantages", False), ("prior_98", True)])
def test_tables_of_experiments_are_the_recorded_ones(name, with_modes):
    expected = arms_table(name, with_modes)
    assert block(name) == expected, f"it should read\n{expected}"


def baselines_table():
    """The trained router and whom it has to beat, on the same questions."""
    recorded = result("baselines")
    factor, unit = cost_unit(arm["cost_usd"]["mean"] for arm in recorded["arms"])
    rows = [
        (
            arm["title"],
            interval_words(arm["average"]),
            interval_words(arm.get("minus_trained"), signed=True),
            cost_words(arm["cost_usd"], factor, recorded["questions"]),
            share_words(arm["mode_share"]),
        )
        for arm in recorded["arms"]
    ]
    columns = ("", "% right", "minus the trained router, points", f"cost, {unit}", "s/m/a, %")
    return Table("", columns, tuple(rows)).markdown()


def test_the_table_of_baselines_is_the_recorded_one():
    expected = baselines_table()
    assert block("baselines") == expected, f"it should read\n{expected}"
    recorded = result("baselines")
    oracle = next(arm for arm in recorded["arms"] if arm["arm"] == "baseline_oracle_cheapest")
    assert f"one call cannot earn more than {100 * oracle['average']['mean']:.1f} %" in plain(README)


def alpha_table():
    """Weights of the efficiency reward: % right and cost a question, by seed."""
    arms = result("experiments")["alpha"]
    seeds = [run["seed"] for run in arms[0]["runs"]]
    words = [f"seed {seed}" for seed in seeds] + ["mean"]
    rows = [("", *(f"% right, {w}" for w in words), *(f"cost, 10⁻⁶ USD, {w}" for w in words))]
    for arm in arms:
        right = [100 * run["right"] / run["questions"] for run in arm["runs"]]
        cost = [1e6 * run["cost_usd"] for run in arm["runs"]]
        cells = [f"{x:.1f}" for x in (*right, sum(right) / len(right), *cost, sum(cost) / len(cost))]
        rows.append((arm["name"], *cells))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "| --- |" + " ---: |" * (len(rows[0]) - 1), *lines[1:]])


def test_the_table_of_efficiency_weights_is_the_recorded_one():
    expected = alpha_table()
    assert block("alpha") == expected, f"it should read\n{expected}"
    runs = [run for arm in result("experiments")["alpha"] for run in arm["runs"]]
    assert all(run["mode_share"] == runs[0]["mode_share"] for run in runs)
    assert "every run chose its modes alike" in plain(README)


def test_experiments_are_said_with_their_switches_and_exclusions():
    experiments = result("experiments")
    for arm in experiments["advantages"][1:]:
        assert f"`{arm['overrides']}`" in plain(README)
    excluded = [run["excluded"] for run in experiments["advantages"][-1]["runs"]]
    shares = [
        100 * sum(run[mode] for run in excluded) / len(excluded) for mode in ("all", "single", "multi", "agentic")
    ]
    sentence = "{:.0f} % of the rollouts were excluded ({:.0f}/{:.0f}/{:.0f} % of single, multi and agentic ones)"
    assert sentence.format(*shares) in plain(README)


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
    assert len(blocks) == 5
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
    later = result("quickstart_times")["shared_rows"]
    minutes, right = later["training_to_report_s"] / 60, later["right_of_600"]
    assert f"seed 0 then got {right} right, in {minutes:.1f} minutes without installation" in plain(README)


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
