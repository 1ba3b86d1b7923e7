"""What plots are made from: stacks that add up, means over few points, labels that do not cover each other."""

import json

import numpy as np
import pytest

from rw.evaluation import learning_plots, running_plots, style, time_plots
from rw.evaluation.aggregate import summary
from rw.evaluation.history import read_history
from rw.evaluation.table import cost_unit, cost_words, ordered_arms, share_words
from rw.types import Mode


def test_every_mode_has_a_colour_of_its_own_that_nothing_else_has():
    colours = [style.MODE_COLOURS[mode.word] for mode in Mode]
    assert len(set(colours)) == 3 and not set(colours) & {*style.SERIES, style.INK, style.GREY}


def test_running_mean_is_shorter_at_the_ends():
    assert style.running_mean(np.array([1.0, 2.0, 6.0, 3.0]), 3).tolist() == [1.5, 3.0, pytest.approx(11 / 3), 4.5]
    assert style.running_mean(np.array([5.0]), 9).tolist() == [5.0]


def test_labels_are_pushed_apart_and_keep_their_order():
    heights = style.spread([0.5, 0.5, 0.51, 0.9], 0.06)
    assert all(b - a > 0.055 for a, b in zip(heights, heights[1:], strict=False))
    assert heights[3] == 0.9 and np.mean(heights[:3]) == pytest.approx(0.5033, abs=0.02)


def history_of(made, path, rows):
    workdir = made.write_config(path)
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_history(workdir)


def test_parts_of_a_steps_time_add_up_to_it(made, tmp_path):
    row = {"perf/step_s": 3.0, "perf/rollout_s": 1.0, "perf/train_s": 1.5, "perf/publish_s": 0.1}
    split = {"perf/decode_s": 0.2, "perf/prefill_s": 0.1, "perf/wait_s": 0.4, "perf/score_s": 0.2}
    rows = [
        {"step": 1, **row, "sampler/device_s": 0.6, "sampler/idle_s": 9.0},
        {"step": 2, **row, "sampler/device_s": 1.2},  # its clock began before the rollouts'
        {"step": 3, "perf/step_s": 2.0},
        {"step": 4, **row, **split, "sampler/idle_work_s": 0.3, "perf/reference_s": 0.5},
        {"step": 5, **row, **split, "sampler/idle_work_s": 0.9, "perf/reference_s": 1.6},
    ]
    history = history_of(made, tmp_path / "run", rows)
    steps, whole = history.series("perf/step_s")
    layers = np.array(time_plots.time_layers(history, steps, whole))
    assert layers.sum(axis=0) == pytest.approx(whole)
    # decode, prefill, learning meanwhile, waiting, verdicts, reference, update, publishing, other
    assert layers[:, 0] == pytest.approx([0.6, 0, 0, 0.4, 0, 0, 1.5, 0.1, 0.4])  # an older run's
    assert layers[:, 1] == pytest.approx([1.0, 0, 0, 0.0, 0, 0, 1.5, 0.1, 0.4])
    assert layers[:, 2] == pytest.approx([0, 0, 0, 0, 0, 0, 0, 0, 2.0])
    assert layers[:, 3] == pytest.approx([0.2, 0.1, 0.3, 0.1, 0.2, 0.5, 1.0, 0.1, 0.5])
    assert layers[:, 4] == pytest.approx([0.2, 0.1, 0.7, 0.0, 0.0, 1.5, 0.0, 0.1, 0.4])  # clocks differ a little


def test_accuracy_shows_validation_training_and_the_arms_that_matter(made, tmp_path):
    history = read_history(made.whole_run(tmp_path / "run"))
    found = summary(history.arms, history.rows, history.identity)
    [axes] = learning_plots.accuracy(history, found).axes
    words = " / ".join(text.get_text() for text in axes.texts)
    for expected in ("cold", "transition", "free", "kept: step 50", "validation, greedy", "training, as sampled"):
        assert expected in words, expected
    assert f"trained (after) {100 * found['accuracy_trained']['mean']:.1f} %" in words
    validated = [line for line in axes.lines if len(line.get_xdata()) == 7]
    assert any(np.allclose(line.get_ydata(), history.series("eval/accuracy")[1]) for line in validated)


def test_modes_have_a_panel_a_type_and_say_where_it_ended(made, tmp_path):
    history = read_history(made.whole_run(tmp_path / "run"))
    figure = learning_plots.modes(history, summary(history.arms, history.rows, history.identity))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "all, as sampled in training", "code_chain", "know_lookup", "math_chain", "reason_search", "recall_lookup"
    ]  # fmt: skip
    shares = {mode.word: history.series(f"eval/mode_share/code_chain/{mode.word}")[1][-1] for mode in Mode}
    best = max(shares, key=shares.get)
    assert f"last: {best} {100 * shares[best]:.0f} %" in [text.get_text() for text in figure.axes[1].texts]


def test_failures_are_told_apart_by_reason(made, tmp_path):
    rows = [
        {"step": step, "invalid/total": 0.1, "invalid/bad_role": 0.06, "invalid/mode_grammar": 0.04,
         "infra/timeout": 2.0, "infra/internal": 1.0, "infra/excluded_frac": 0.02, "exhausted_frac": 0.0}
        for step in range(1, 5)
    ]  # fmt: skip
    history = history_of(made, tmp_path / "run", rows)
    left, middle, right = running_plots.failures(history, {}).axes
    assert left.get_legend_handles_labels()[1] == ["bad role (6.0 % now)", "mode grammar (4.0 % now)"]
    assert right.get_legend_handles_labels()[1] == ["timeout (8)", "internal (4)"]
    assert [text.get_text() for text in middle.texts] == ["none did"]


def test_arms_stand_in_the_order_in_which_one_reads():
    names = [
        "oracle",
        "scripted_agentic",
        "trained",
        "custom",
        "forced_multi",
        "warm_start",
        "scripted_single",
        "random",
    ]
    assert ordered_arms({"accuracy_by_type": dict.fromkeys(names)}) == [
        "warm_start", "trained", "forced_multi", "scripted_single", "scripted_agentic", "random", "oracle", "custom"
    ]  # fmt: skip


def test_costs_and_shares_in_words():
    assert cost_unit([3.2e-5, 1e-6]) == (1e6, "10⁻⁶ USD") and cost_unit([2.5]) == (1.0, "USD")
    assert cost_unit([]) == cost_unit([0.0]) == (1.0, "USD")
    assert cost_words({"mean": 1.74e-5, "low": 1.66e-5, "high": 1.82e-5, "n": 9}, 1e6) == "17.4 ± 0.8"
    assert cost_words({"mean": 0.5, "low": None, "high": None, "n": 1}) == "0.50" and cost_words(None) == "-"
    assert share_words({"single": 0.701, "multi": 0.2, "agentic": 0.099, "none": 0.0}) == "70/20/10"
    assert share_words({"single": 0.0, "multi": 0.0, "agentic": 0.9, "none": 0.1}) == "0/0/90 (none 10)"
