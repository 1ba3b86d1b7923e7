"""Plots of results: what they show of a summary, and that their words do not lie on one another."""

import itertools

import matplotlib.text
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from rw.evaluation import results_plots
from rw.evaluation.outcomes import ArmResult, read_arms
from rw.evaluation.results_summary import results_summary


@pytest.fixture(scope="module")
def arms(made, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("plots")
    made.write_arms(workdir, 60)
    return read_arms(workdir)


@pytest.fixture(scope="module")
def summary(arms):
    return results_summary("run", arms, {})


def point(average, cost, title):
    interval = {"mean": average, "low": average - 0.05, "high": average + 0.05, "n": 100}
    mean = None if cost is None else {"mean": cost, "low": cost, "high": cost, "n": 100}
    return {"title": title, "accuracies": {"average": interval, "domains": {}}, "cost_usd": {"mean": mean}}


def frontier(figure):
    dashed = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    return [tuple(np.round(pair, 6)) for pair in zip(*dashed[0].get_data(), strict=True)]


def test_the_frontier_joins_what_nobody_beats_and_passes_oracles_over():
    arms = {
        "baseline_smallest": point(0.3, 1e-3, "cheap"), "trained": point(0.6, 3e-3, "router"),
        "warm_start": point(0.5, 4e-3, "beaten"), "baseline_largest": point(0.7, 9e-3, "dear"),
        "baseline_oracle": point(0.9, 2e-3, "oracle"), "baseline_mf": point(0.95, None, "cost unknown"),
    }  # fmt: skip
    made = results_plots.pareto({"arms": arms})
    assert frontier(made) == [(1.0, 30.0), (3.0, 60.0), (9.0, 70.0)]
    assert made.axes[0].get_xscale() == "log"
    assert {text.get_text() for text in made.axes[0].texts} == {"cheap", "router", "beaten", "dear", "oracle"}


def test_thirty_arms_close_together_have_words_that_do_not_overlap():
    random = np.random.default_rng(3)
    arms = {
        f"baseline_always_worker_{i}": point(0.3 + 0.3 * random.random(), 1e-3 * 10 ** random.random(), f"worker {i}")
        for i in range(30)
    }
    made = results_plots.pareto({"arms": arms})
    renderer = FigureCanvasAgg(made).get_renderer()
    boxes = [matplotlib.text.Text.get_window_extent(text, renderer) for text in made.axes[0].texts]
    inside = made.axes[0].get_window_extent(renderer)
    assert len(boxes) == 30
    assert not [1 for one, other in itertools.combinations(boxes, 2) if one.overlaps(other)]
    assert all(inside.x0 <= box.x0 and box.x1 <= inside.x1 for box in boxes)


def test_kinds_of_arms_have_a_colour_each():
    assert len(set(results_plots.KIND_COLOURS.values())) == len(results_plots.KINDS)


def test_bars_are_the_shares_and_accuracies_of_the_summary(summary):
    made = results_plots.modes(summary)
    trained = summary["arms"]["trained"]["mode_share"]["overall"]
    first = [bar.get_width() for bar in made.axes[0].patches if bar.get_y() < 0]  # the row of all domains
    assert first == pytest.approx([100 * share for share in trained.values()])
    assert [axes.get_title(loc="left") for axes in made.axes] == ["trained router", "initial router"]
    made = results_plots.chosen_or_forced(summary)
    heights = [bar.get_height() for bar in made.axes[0].patches]
    wanted = [summary["arms"][name]["accuracies"] for name in ("trained", *results_plots.FORCED)]
    assert len(heights) == 4 * (1 + len(summary["domains"]))
    assert heights[0] == wanted[0]["average"]["mean"]
    assert heights[-1] == wanted[-1]["domains"][summary["domains"][-1]]["mean"]


def test_what_was_not_measured_is_not_drawn_and_an_older_plot_of_it_goes(arms, tmp_path, unpainted):
    (tmp_path / "results_modes.png").write_bytes(b"old")
    alone = results_summary("run", {"oracle": ArmResult("oracle", {}, arms["oracle"].outcomes)}, {})
    drawn = results_plots.write_plots(alone, tmp_path)
    assert [name for name, _, _ in drawn] == ["results_pareto"]
    assert [path.name for path in tmp_path.iterdir()] == ["results_pareto.png"]


def test_without_the_router_the_best_fixed_worker_is_what_others_are_compared_with(arms):
    names = {"baseline_always_a": "random", "baseline_always_b": "trained", "baseline_oracle": "oracle"}
    made = {name: ArmResult(name, {}, arms[like].outcomes) for name, like in names.items()}
    assert results_summary("run", made, {})["reference"] == "baseline_always_b"
