"""Several runs side by side: names, mean and range, what differs, and the command."""

import json

import pytest

from rw import cli
from rw.errors import WorkdirError
from rw.evaluation import comparison, comparison_plots
from rw.evaluation.aggregate import summary
from rw.evaluation.history import read_history
from rw.evaluation.report import read_summary


@pytest.fixture(scope="module")
def runs(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [made.whole_run(folder / f"seed_{seed}", seed=seed, steps=20, count=40) for seed in (1, 2)]


def test_mean_and_range_by_hand():
    one = {"run": "a", "accuracy_trained": {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 10}, "accuracy_knn": None}
    two = {"run": "b", "accuracy_trained": {"mean": 0.7, "low": 0.6, "high": 0.8, "n": 10}, "accuracy_knn": None}
    one |= {"invalid": {"trained": 0.1}, "accuracy_forced": {"multi": one["accuracy_trained"]}}
    two |= {"invalid": {"trained": 0.3, "oracle": 0.0}, "accuracy_forced": {"multi": None}}
    found = comparison.over_runs([one, two])
    assert found["runs"] == [one, two]
    assert found["mean"]["accuracy_trained"] == pytest.approx(0.6)
    assert found["range"]["accuracy_trained"] == [0.5, 0.7]
    assert found["mean"]["invalid"] == {"trained": pytest.approx(0.2), "oracle": 0.0}
    assert found["count"]["invalid"] == {"trained": 2, "oracle": 1}
    assert found["mean"]["accuracy_forced"] == {"multi": 0.5} and found["mean"]["accuracy_knn"] is None
    assert "run" not in found["mean"]


def test_runs_beside_each_other_get_their_comparison_there(runs, unpainted):
    path = comparison.write_comparison(runs)
    assert path == runs[0].parent / "comparison" / "report.md"
    assert {file.name for file in path.parent.glob("*.png")} == {"validation.png", "arms.png", "margins.png"}
    found = read_summary(path)
    own = [json.loads((run / "report" / "summary.json").read_text()) for run in runs]
    assert found["runs"] == own
    means = [summary["margins"]["trained_minus_warm_start"]["mean"] for summary in own]
    assert found["mean"]["margins"]["trained_minus_warm_start"] == pytest.approx(sum(means) / 2)
    assert found["range"]["margins"]["trained_minus_warm_start"] == [min(means), max(means)]
    text = path.read_text()
    assert "differ in more than chance" not in text
    for link in ("../seed_1/report/report.md", "../seed_2/report/report.md"):
        assert f"({link})" in text and (path.parent / link).exists()


def test_runs_that_differ_are_shown_and_said_so(made, runs, tmp_path, unpainted):
    other = made.write_config(tmp_path / "other", data={"source": "nq6"}, workers={"kind": "replay"})
    made.write_rows(other, 5)
    path = comparison.write_comparison([runs[0], other], tmp_path / "both")
    text = path.read_text()
    assert "different sources (simulated, nq6)" in text and "different sizes (40, 0)" in text
    assert "different numbers of steps (20, 5)" in text and "not finished: other" in text
    assert "(1 of 2)" in text  # of the means


def test_runs_without_any_result_are_compared_too(made, tmp_path, unpainted):
    workdirs = [made.write_config(tmp_path / name) for name in ("a", "b")]
    path = comparison.write_comparison(workdirs)
    assert not list(path.parent.glob("*.png")) and "not finished: a, b" in path.read_text()


def test_many_runs_are_told_by_their_spread():
    """Eight runs: the values 0.1, …, 0.8 have mean 0.45 and standard deviation 0.2449."""
    runs = []
    for place in range(1, 9):
        interval = {"mean": place / 10, "low": 0.0, "high": 1.0, "n": 10}
        runs.append(
            {
                "run": f"split_{place}", "source": "nq6", "seed": place, "test_queries": 10, "test_draw_seed": 0,
                "steps": 5, "best_step": 5, "accuracy_by_type": {"trained": {}}, "accuracy_trained": interval,
                "accuracy_forced": {}, "accuracy_scripted": {}, "cost_usd_mean": {"trained": interval},
                "margins": dict.fromkeys(comparison.MARGINS),
                "majority_mode": {"recall": "single" if place < 7 else "multi"},
            }
        )  # fmt: skip
    table = comparison.comparison_table(runs)
    assert table.columns == ("", "mean", "standard deviation", "range")
    assert table.rows[0] == ("% right, trained (after)", "45.0", "24.5", "10.0 to 80.0")
    assert ("majority mode, recall", "single (6 of 8)", "", "") in table.rows
    assert all(len(row) == 4 for row in table.rows)
    few = comparison.comparison_table(runs[:2])
    assert few.columns == ("", "split_1", "split_2", "mean", "range")
    assert few.rows[0] == (
        "% right, trained (after)",
        "10.0 (0.0 to 100.0)",
        "20.0 (0.0 to 100.0)",
        "15.0",
        "10.0 to 20.0",
    )


def test_many_runs_are_painted_as_dots(made, tmp_path):
    runs = [made.whole_run(tmp_path / f"seed_{seed}", seed=seed, steps=20, count=40) for seed in range(7)]
    histories = [read_history(run) for run in runs]
    summaries = [summary(history.arms, history.rows, history.identity) for history in histories]
    figure = comparison_plots.arms(summaries)
    [axes] = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert "trained (after)" in names and "oracle" in names
    place = names.index("trained (after)")
    values = [100 * found["accuracy_trained"]["mean"] for found in summaries]
    drawn = [line.get_xdata() for line in axes.lines if len(line.get_xdata()) == 7 and line.get_ydata()[0] == -place]
    assert [sorted(points) for points in drawn] == [pytest.approx(sorted(values))]
    assert f"{sum(values) / 7:.1f}" in [text.get_text() for text in axes.texts]
    written = comparison_plots.write_plots(histories, summaries, tmp_path)
    assert [file for file, _ in written] == ["validation.png", "arms.png", "margins.png"]


def test_runs_of_one_name_are_told_apart(tmp_path):
    paths = [tmp_path / "x" / "run", tmp_path / "y" / "run"]
    assert comparison.run_names(paths) == ["x/run", "y/run"]
    assert comparison.run_names([tmp_path / "x", tmp_path / "y"]) == ["x", "y"]


def test_a_run_counts_once_and_is_no_place_for_the_comparison(runs, tmp_path):
    with pytest.raises(WorkdirError, match="given twice"):
        comparison.write_comparison([runs[0], runs[0].parent / "." / runs[0].name])
    with pytest.raises(WorkdirError, match="is one of the runs"):
        comparison.write_comparison(runs, runs[1])


def test_the_command_prints_one_column_a_run(runs, tmp_path, capsys, unpainted):
    assert cli.main(["report", *map(str, runs), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "seed_1" in said and "seed_2" in said and "mean" in said and str(tmp_path / "out") in said.replace("\n", "")
    assert cli.main(["report", str(runs[0]), str(tmp_path / "absent")]) == 2
    assert "no run in" in capsys.readouterr().err


def test_plots_of_several_runs_are_painted(runs, tmp_path):
    histories = [read_history(run) for run in runs]
    summaries = [summary(history.arms, history.rows, history.identity) for history in histories]
    written = comparison_plots.write_plots(histories, summaries, tmp_path)
    assert [file for file, _ in written] == ["validation.png", "arms.png", "margins.png"]
    assert all((tmp_path / file).read_bytes().startswith(b"\x89PNG") for file, _ in written)
