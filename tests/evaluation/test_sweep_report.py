"""The summary of a sweep: means over seeds, units, what is not known, and the plot."""

import csv
import io
import json

import pytest

from rw.evaluation.intervals import Interval, mean_interval, wilson
from rw.evaluation.sweep_plots import pareto_front, write_plot
from rw.evaluation.sweep_report import csv_text, point_table, setting_table, write_sweep
from rw.evaluation.sweep_results import FAILED, FINISHED, WAITING, Measured, PointResult, measured_run, settings


def measured(right: int, cost: float | None, single: float = 0.5) -> Measured:
    shares = {"single": single, "multi": 1 - single, "agentic": 0.0, "none": 0.0}
    interval = None if cost is None else mean_interval([cost, cost])
    return Measured("test", wilson(right, 100), None, interval, shares, 0.01, 0.0)


def point(alpha: float, seed: int, found: Measured | None, status: str = FINISHED) -> PointResult:
    values = {"reward.efficiency_weight": alpha, "seed": seed}
    return PointResult(f"alpha_{alpha}_seed_{seed}", values, status, 4 if found else 0, 4, found)


RESULTS = [
    point(0.0, 0, measured(70, 2e-5, 0.2)),
    point(0.0, 1, measured(80, 4e-5, 0.4)),
    point(0.3, 0, measured(60, 1e-5, 0.9)),
    point(0.3, 1, None, WAITING),
]


def test_seeds_are_averaged_and_others_counted_as_missing():
    plain, weighted = settings(RESULTS)
    assert plain.values == {"reward.efficiency_weight": 0.0} and plain.missing == 0
    assert plain.over_seeds("accuracy") == pytest.approx((0.75, 0.7, 0.8))
    assert plain.over_seeds("cost_usd") == pytest.approx((3e-5, 2e-5, 4e-5))
    assert plain.over_seeds("single") == pytest.approx((0.3, 0.2, 0.4)) and plain.over_seeds("average") is None
    assert (len(weighted.points), weighted.missing) == (1, 1)
    alike = settings([point(0.5, seed, measured(70, 1e-5)) for seed in range(3)])[0]
    assert alike.over_seeds("accuracy") == (0.7, 0.7, 0.7)  # though (0.7 + 0.7 + 0.7) / 3 is less
    failed = [point(0.5, 0, measured(99, 1e-5), FAILED)]
    assert settings(failed)[0].over_seeds("accuracy") is None  # what it measured is of another router than was asked


def test_tables_have_a_line_a_point_and_a_line_a_setting():
    (first, *_, last) = point_table(RESULTS).rows
    assert first == ("alpha_0.0_seed_0", "finished", "4/4", "70.0 (60.4 to 78.1)", "20/80/0", "20.0 ± 0.0", "1.0")
    assert last[1:] == ("waiting", "0/4", "-", "-", "-", "-")
    assert point_table(RESULTS).columns[5] == "cost, 10⁻⁶ USD"
    assert setting_table(settings(RESULTS)).rows == (
        ("1: efficiency_weight 0.0", "2/2", "75.0 (70.0 to 80.0)", "30 (20 to 40)", "30/70/0"),
        ("2: efficiency_weight 0.3", "1/2", "60.0", "10", "90/10/0"),
    )


def test_the_csv_has_numbers_and_nothing_where_nothing_is_known():
    rows = list(csv.DictReader(io.StringIO(csv_text([*RESULTS, point(0.5, 0, measured(50, None))]))))
    assert float(rows[0]["accuracy"]) == 0.7 and float(rows[0]["cost_usd"]) == 2e-5 and rows[0]["split"] == "test"
    assert rows[0]["reward.efficiency_weight"] == "0.0" and rows[1]["seed"] == "1" and rows[0]["questions"] == "100"
    assert (rows[3]["accuracy"], rows[3]["status"]) == ("", "waiting") and rows[4]["cost_usd"] == ""


def test_the_summary_is_whole_and_says_what_failed(tmp_path):
    failed = PointResult("bad", {"reward.efficiency_weight": 0.5, "seed": 0}, FAILED, 1, 4, None, 5, "out of money")
    path = write_sweep(tmp_path, "alpha of tiny", [*RESULTS, failed], ["rw", "sweep"])
    text = path.read_text()
    assert "5 points: 3 finished, 1 waiting, 1 failed" in text and "exit code 5: out of money" in text
    assert "failed (5)" in text and "## Settings" in text and "(sweep.png)" in text
    data = json.loads((tmp_path / "sweep.json").read_text())
    assert data["points"][0]["measured"]["accuracy"]["mean"] == 0.7 and data["command"] == ["rw", "sweep"]
    assert data["settings"][0]["accuracy"]["mean"] == pytest.approx(0.75) and data["settings"][0]["seeds"] == [0, 1]
    assert (tmp_path / "sweep.png").stat().st_size > 10_000


def test_a_plot_is_drawn_of_words_and_of_several_keys_and_goes_where_nothing_is_measured(tmp_path):
    path = tmp_path / "sweep.png"
    words = [
        PointResult(n, {"variant": n}, FINISHED, 1, 1, measured(50, 1e-5)) for n in ("multi", "no_comet", "agentic")
    ]
    many = [
        PointResult(f"{a}{b}", {"a.x": a, "b.y": b}, FINISHED, 1, 1, measured(50 + a, 1e-5))
        for a in (1, 2)
        for b in (1, 2)
    ]
    alike = [point(0.5, seed, measured(70, 1e-5)) for seed in range(3)]
    money = [PointResult(n, {"log.wandb": n}, FINISHED, 1, 1, measured(50, 1e-5)) for n in ("$a_{$", "b")]
    for results in (
        [*words, PointResult("s", {"seed": 0}, FINISHED, 1, 1, measured(50, None))], many, alike, money,
    ):  # fmt: skip
        assert write_plot(settings(results), path, "t") == path and path.stat().st_size > 10_000
    assert write_plot(settings([point(0.0, 0, None, WAITING)]), path, "t") is None and not path.exists()


def test_the_front_is_of_those_that_none_beats():
    assert pareto_front([(3, 9), (1, 5), (2, 4), (4, 9), (2, 7)]) == [(1, 5), (2, 7), (3, 9)]


def test_a_run_without_a_test_is_read_from_its_validation(tmp_path):
    assert measured_run(tmp_path) == (None, 0, False)
    config = {"steps": 2, "evaluation": {"test_queries": 0}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    rows = [
        {"step": step, "eval/accuracy": accuracy, "eval/questions": 20.0, "eval/best_step": 1, "eval/cost_usd": 1e-5,
         "eval/mode_share/single": 1.0, "eval/invalid": 0.05, "eval/excluded": 0.1}
        for step, accuracy in ((1, 0.6), (2, 0.5))
    ]  # fmt: skip
    (tmp_path / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, steps, whole = measured_run(tmp_path)
    assert (found.split, steps, whole) == ("validation", 2, True)
    assert found.accuracy == wilson(12, 20) and found.cost_usd == Interval(1e-5, None, None, 20)
    assert found.mode_shares["single"] == 1.0 and found.lost == pytest.approx(2.0)
    (tmp_path / "validation.jsonl").write_text('{"step": 2, "eval/accuracy": NaN, "eval/questions": 20.0}\n')
    assert measured_run(tmp_path) == (None, 2, True)
