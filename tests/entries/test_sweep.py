"""`rw sweep`: bad points are refused before anything starts, and runs are started, stopped, continued and counted."""

import importlib.util
import json
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from rw import cli
from rw.core.advantage_contract import recorded_name
from rw.errors import ConfigError
from rw.estimate import Estimate, Phase, Range
from rw.evaluation.sweep_results import FAILED, FINISHED
from rw.sweep import estimate_all, run_here
from rw.sweeps.local import named_gpus, places_of
from rw.sweeps.plan import as_text, plan, point_names, read_sweep, recorded
from rw.sweeps.points import chain, choice, log_uniform, product, random, seeds, uniform, values, zipped
from rw.sweeps.state import check_continues, end_words, is_locked, last_words, read_outcome, result_of

ROOT = pathlib.Path(__file__).parent.parent.parent
FAKE = pathlib.Path(__file__).parent / "fake_sweep.py"
SPEC = importlib.util.spec_from_file_location("fake_sweep", FAKE)
FAKED = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(FAKED)
TINY = str(ROOT / "tests" / "data" / "configs" / "tiny.py")
NAMES = [f"efficiency_weight_{weight}_seed_{seed}" for weight in ("0.0", "0.5") for seed in (0, 1)]


def test_points_are_what_their_functions_say():
    alphas = values("reward.efficiency_weight", (0.0, 0.1))
    assert product(alphas, seeds(2)) == [
        {"reward.efficiency_weight": alpha, "seed": seed} for alpha in (0.0, 0.1) for seed in (0, 1)
    ]
    assert zipped(alphas, seeds(2, first=5))[1] == {"reward.efficiency_weight": 0.1, "seed": 6}
    assert chain(alphas, seeds(1)) == [*alphas, {"seed": 0}]
    with pytest.raises(ConfigError, match="two parts of a sweep set seed"):
        product(seeds(2), seeds(2))
    with pytest.raises(ConfigError, match=r"\[2, 3\] points"):
        zipped(alphas, seeds(3))


def test_random_points_are_the_same_for_a_seed_and_the_first_whatever_the_count():
    draws = {
        "optimizer.learning_rate": log_uniform(1e-4, 1e-2),
        "support.floor": uniform(0.1, 0.2),
        "seed": choice(3, 4),
    }
    points = random(50, 7, draws)
    assert points == random(50, 7, draws) and points[:8] == random(8, 7, draws) and points != random(50, 8, draws)
    assert all(1e-4 <= p["optimizer.learning_rate"] <= 1e-2 and 0.1 <= p["support.floor"] <= 0.2 for p in points)
    assert {p["seed"] for p in points} == {3, 4}
    assert sum(p["optimizer.learning_rate"] < 1e-3 for p in points) in range(15, 36)  # half of them, in the logarithm
    with pytest.raises(ConfigError, match="0 < low <= high"):
        log_uniform(0.0, 1.0)


def test_names_say_what_a_point_sets_and_are_never_shared():
    assert point_names([{"reward.efficiency_weight": 0.1, "seed": 2}]) == ["efficiency_weight_0.1_seed_2"]
    assert point_names([{"variant": "no_comet", "seed": 0}]) == ["no_comet_seed_0"]
    both = point_names([{"support.floor": 0.1, "loss.floor": 0.1}])
    assert both == ["support.floor_0.1_loss.floor_0.1"]
    twins = point_names([{"workers.file": "a/b"}, {"workers.file": "a b"}])
    assert len(set(twins)) == 2 and all(name.startswith("file_a-b_") for name in twins)
    (long,) = point_names([{"data.train_files": tuple(f"data/prepared/set_{k}.jsonl" for k in range(40))}])
    assert len(long) < 140 and "/" not in long
    (long,) = point_names([{"log.wandb": "漢" * 100}])
    assert len(long.encode()) < 140
    with pytest.raises(ConfigError, match="points 0 and 2 of the sweep are alike"):
        point_names([{"seed": 1}, {"seed": 2}, {"seed": 1}])


@pytest.mark.parametrize(
    ("point", "overrides", "said"),
    [
        ({"reward.eficiency_weight": 0.1}, (), "point eficiency_weight_0.1: unknown config key .* 'efficiency_weight'"),
        ({"reward.efficiency_weight": 2.0}, (), "point efficiency_weight_2.0: .*must lie in"),
        ({"reward.efficiency_weight": "much"}, (), "point efficiency_weight_much: .*efficiency_weight"),
        ({"variant": "no_comet"}, (), "holds one config"),
        ({"log.wandb": object()}, (), "object .* in a sweep: a value must be text, a finite number"),
        ({"seed": 1}, (("seed", "2"),), "--config.seed is what the sweep sets for each point"),
    ],
)
def test_a_bad_point_is_refused_by_name(point, overrides, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        plan(TINY, [{"seed": 9} if "seed" not in point else {"seed": 3}, point], tmp_path, overrides)
    assert not list(tmp_path.iterdir())


def test_every_value_reaches_the_config_as_it_is(tmp_path):
    point = {
        "protocol.templates": "short", "evaluation.arms": ["trained", "oracle"], "deterministic": False,
        "rollout.deadline_s": None, "optimizer.learning_rate": 3e-4, "steps": 7,
    }  # fmt: skip
    (planned,) = plan(TINY, [point], tmp_path, [("budget.run_usd", "5")])
    config = recorded(planned)
    assert config["evaluation"]["arms"] == ["trained", "oracle"] and config["rollout"]["deadline_s"] is None
    assert (config["deterministic"], config["optimizer"]["learning_rate"], config["steps"]) == (False, 3e-4, 7)
    assert config["budget"]["run_usd"] == 5 and as_text([1]) == "(1,)"
    (planned_one,) = plan(
        TINY, [{"loss.kl_coefficient": np.float64(0.1), "seed": np.int64(3), "log.wandb": pathlib.Path("a")}], tmp_path
    )
    assert planned_one.name == "kl_coefficient_0.1_seed_3_wandb_a"
    assert planned_one.values == {"loss.kl_coefficient": 0.1, "seed": 3, "log.wandb": "a"}
    assert (planned_one.config.loss.kl_coefficient, planned_one.config.seed) == (0.1, 3)
    assert planned.arguments[:4] == ["--config", TINY, "--workdir", str(tmp_path / planned.name)]


def test_an_advantage_of_ones_own_is_checked_and_planned_as_its_run_records_it(tmp_path):
    key, name = "advantage.function", "rw.core.advantages:grpo"
    (point,) = plan(TINY, [{key: name}], tmp_path)
    assert point.config.advantage.function == name and recorded(point)["advantage"]["function"] == recorded_name(name)
    assert recorded_name(name).startswith(f"{name}@")
    with pytest.raises(ConfigError, match="point function_rw.core.advantages-gpro: advantage .* has no attribute"):
        plan(TINY, [{key: "rw.core.advantages:gpro"}], tmp_path)


def test_variants_are_swept_by_name(monkeypatch):
    monkeypatch.chdir(ROOT)
    points = plan(
        "configs/ablations/quickstart.py", product(values("variant", ["multi", "no_comet"]), seeds(1)), "runs"
    )
    assert [point.config.schedule.only_mode for point in points] == ["multi", ""]
    assert points[1].config_path == "configs/ablations/quickstart.py:no_comet"
    with pytest.raises(ConfigError, match="names a variant, and so does the sweep"):
        plan("configs/ablations/quickstart.py:multi", [{"variant": "no_comet"}], "runs")


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "sweeps").glob("*.py")), ids=lambda path: path.name)
def test_shipped_sweeps_are_runs_of_the_quickstart(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = "configs/ablations/quickstart.py" if path.stem == "ablations" else "configs/quickstart.py"
    points = plan(config, read_sweep(str(path)), "runs")
    assert len(points) == {"alpha": 12, "ablations": 24, "random_support": 8}[path.stem]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "has no function get_sweep"),
        ("def get_sweep():\n    return []\n", "must return a list of mappings"),
        ("def get_sweep():\n    return [{1: 2}]\n", "keys must be text"),
        ("def get_sweep():\n    return 1 / 0\n", "ZeroDivisionError: division by zero"),
        ("import nothing_at_all\n", "ModuleNotFoundError"),
    ],
)
def test_a_sweep_file_that_is_none_says_why(text, said, tmp_path):
    path = tmp_path / "odd.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_sweep(str(path))


def command_line(path, *flags):
    return ["sweep", "--config", TINY, "--sweep", str(path), *map(str, flags)]


@pytest.fixture
def alpha_file(tmp_path):
    path = tmp_path / "few.py"
    path.write_text(
        "from rw.sweeps.points import values\n\n\ndef get_sweep():\n"
        "    return values('reward.efficiency_weight', (0.0, 0.5))\n"
    )
    return path


def test_commands_are_printed_one_a_line(alpha_file, tmp_path, capsys):
    assert (
        cli.main(command_line(alpha_file, "--workdir", tmp_path / "out", "--backend", "print", "--config.steps=7")) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"rw train --config {TINY} --workdir {tmp_path}/out/efficiency_weight_{weight} --config.steps=7 "
        f"--config.reward.efficiency_weight={weight}"
        for weight in ("0.0", "0.5")
    ]
    assert not (tmp_path / "out").exists()


def test_a_sweep_without_processes_or_with_an_odd_option_is_refused(alpha_file, tmp_path, capsys):
    flags = ["--workdir", tmp_path / "out"]
    assert cli.main(command_line(alpha_file, *flags, "--processes", "0")) == 2
    assert "--processes 0 must be at least 1" in capsys.readouterr().err
    assert cli.main(command_line(alpha_file, *flags, "--backend", "slurm", "--slurm", "gpu")) == 2
    assert "must be KEY=VALUE" in capsys.readouterr().err
    assert cli.main(command_line(alpha_file, *flags, "--slurm", "partition=gpu")) == 2
    assert "--slurm is for --backend slurm, this is local" in capsys.readouterr().err
    assert cli.main(command_line(alpha_file, *flags, "--backend", "print", "--gpus", "0")) == 2
    assert "--gpus is for --backend local, this is print" in capsys.readouterr().err
    assert cli.main(command_line(alpha_file, *flags, "--gpus", "0,a")) == 2
    assert "--gpus 0,a: 'a' is no number of a GPU" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_dry_run_adds_all_points_up(alpha_file, tmp_path, capsys):
    assert cli.main(command_line(alpha_file, "--workdir", tmp_path / "out", "--dry-run")) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {cells[1]: cells[2:] for line in lines if len(cells := [cell.strip() for cell in line.split("│")]) > 7}
    calls = [[int(cell.replace(",", "")) for cell in rows[name][:3]] for name in rows]
    assert list(rows) == ["efficiency_weight_0.0", "efficiency_weight_0.5", "all 2"]
    assert calls[2] == pytest.approx([2 * count for count in calls[0]], abs=1) and calls[0] == calls[1]  # rounded
    assert any("nominal" in line for line in lines) and not (tmp_path / "out").exists()


def test_a_cap_that_cannot_be_enough_is_named_with_its_point(tmp_path, capsys):
    estimate = Estimate({}, {}, {}, [(Phase("training", 1, 0), Range(1, 2, 3), Range(0.1, 0.2, 0.3))])
    assert estimate_all(FAKED.planned(tmp_path), lambda *_: (estimate, ["raise budget.run_usd."])) == 2
    assert f"{NAMES[3]}: raise budget.run_usd." in capsys.readouterr().out


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A sweep whose runs are quick, in this process or in one of its own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    workdir = tmp_path / "sweep"

    class Fake:
        path = workdir

        def run(self, seconds, fails="", gpus=()):
            return run_here(FAKED.planned(workdir), places_of(2, gpus), FAKED.command(seconds, fails))

        def start(self, seconds):
            command = [sys.executable, str(FAKE), "sweep", str(workdir), str(seconds)]
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def starts(self):
            files = [workdir / name / "starts" for name in NAMES]
            return [len(file.read_text().splitlines()) if file.exists() else 0 for file in files]

        def summary(self):
            return json.loads((workdir / "sweep.json").read_text())

    return Fake()


def test_a_point_that_fails_keeps_the_others_from_nothing_and_is_tried_again(fake, capsys):
    assert fake.run(0.01, NAMES[1]) == 9
    assert f"{NAMES[1]}: exit code 4: rw train: error: the Workers are on strike" in capsys.readouterr().out
    points = fake.summary()["points"]
    assert [point["status"] for point in points] == [FINISHED, FAILED, FINISHED, FINISHED]
    assert points[1]["last_words"] == "rw train: error: the Workers are on strike" and points[1]["exit_code"] == 4
    assert points[0]["measured"]["accuracy"]["mean"] == 0.75 and points[0]["measured"]["cost_usd"]["mean"] == 2e-5
    text = (fake.path / "sweep.md").read_text()
    assert "4 points: 3 finished, 1 failed" in text and "the Workers are on strike" in text
    assert (fake.path / "sweep.png").stat().st_size > 10_000 and (fake.path / "sweep.csv").exists()

    assert fake.run(0.01, gpus="0123") == 0
    assert (fake.path / NAMES[1] / "gpus").read_text() == "0,1"
    said = capsys.readouterr().out
    assert fake.starts() == [1, 2, 1, 1] and "4 finished" in said and "3 of them finished" in said
    (plain, weighted) = fake.summary()["settings"]
    assert plain["seeds"] == [0, 1] and plain["accuracy"] == {"mean": 0.75, "low": 0.75, "high": 0.75}
    assert weighted["cost_usd"]["mean"] == 1e-5 and weighted["single"]["mean"] == 0.75


def test_a_run_that_cannot_be_started_is_a_failure_of_its_point_alone(fake, capsys):
    (fake.path / NAMES[2] / "sweep.log").mkdir(parents=True)  # no log can be opened
    runs = FAKED.command(0.01)
    sweep = FAKED.planned(fake.path)
    assert run_here(sweep, [{}], lambda p: [str(fake.path / "gone")] if p.name == NAMES[1] else runs(p)) == 9
    said = capsys.readouterr().out
    assert f"{NAMES[1]}: exit code 71: cannot run it: [Errno 2]" in said and f"{NAMES[2]}: exit code 71" in said
    points = fake.summary()["points"]
    assert [point["status"] for point in points] == [FINISHED, FAILED, FAILED, FINISHED]
    assert end_words(-signal.SIGKILL, "") == "killed by SIGKILL" and end_words(-40, "") == "killed by signal 40"


def test_gpus_that_this_machine_does_not_show_are_named(tmp_path, capsys):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert named_gpus("0, 1", str(tmp_path)) == ("0", "1") and named_gpus("") == () and not capsys.readouterr().out
    assert named_gpus("1,2", str(tmp_path)) == ("1", "2")
    assert "--gpus 1,2: this machine shows 2 NVIDIA GPUs; a run that is given 2 finds" in capsys.readouterr().out


def test_gpus_are_divided_among_the_runs_at_a_time():
    assert places_of(2) == [{}, {}]
    assert places_of(2, "4567") == [{"CUDA_VISIBLE_DEVICES": "4,5"}, {"CUDA_VISIBLE_DEVICES": "6,7"}]
    with pytest.raises(ConfigError, match="--gpus 0,1,2: 3 cannot be divided evenly among --processes 2"):
        places_of(2, "012")


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def test_a_killed_sweep_takes_its_runs_with_it_and_goes_on(fake):
    killed = fake.start(2)
    wait_for(lambda: all((fake.path / name / "metrics.jsonl").exists() for name in NAMES[:2]))
    killed.kill()
    killed.communicate(timeout=20)
    wait_for(lambda: not any(is_locked(fake.path / name) for name in NAMES), 20)
    assert (fake.path / NAMES[0] / "terminated").exists() and fake.starts() == [1, 1, 0, 0]
    assert fake.run(0.01) == 0 and fake.starts() == [2, 2, 1, 1]
    rows = [len((fake.path / name / "metrics.jsonl").read_text().splitlines()) for name in NAMES]
    assert rows == [4] * 4  # no step was made twice


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_sweep_stops_its_runs_in_order(fake, number):
    stopped = fake.start(2)
    wait_for(lambda: all((fake.path / name / "metrics.jsonl").exists() for name in NAMES[:2]))
    stopped.send_signal(number)
    said, _ = stopped.communicate(timeout=60)
    assert stopped.returncode == 128 + number and "the same command continues the sweep" in said
    assert [(fake.path / name / "terminated").exists() for name in NAMES] == [True, True, False, False]
    assert [read_outcome(fake.path / name)[0] for name in NAMES] == [143, 143, None, None]
    assert [point["status"] for point in fake.summary()["points"]] == ["stopped", "stopped", "waiting", "waiting"]


def test_a_run_with_another_config_than_planned_is_not_taken_for_finished(tmp_path, capsys):
    sweep = FAKED.planned(tmp_path)
    point = sweep.points[0]
    point.workdir.mkdir()
    FAKED.answer(point.workdir, 4, 1e-5)
    (point.workdir / "metrics.jsonl").write_text(json.dumps({"step": 4}) + "\n")
    config = recorded(point)
    (point.workdir / "config.json").write_text(json.dumps(config))
    assert result_of(point).status == FINISHED
    estimate = Estimate({}, {}, {}, [(Phase("training", 1, 0), Range(1, 2, 3), Range(0.1, 0.2, 0.3))])
    assert estimate_all(sweep, lambda *_: (estimate, [])) == 0
    said = capsys.readouterr().out
    assert NAMES[0] not in said and "all 3" in said and "1 of 4 points are finished, cost nothing more" in said
    (point.workdir / "config.json").write_text(json.dumps({**config, "steps": 3}))
    assert result_of(point).status == "stopped"


def test_a_run_that_a_sweep_cannot_continue_is_named_before_anything_starts(alpha_file, tmp_path, capsys):
    flags = ["--workdir", tmp_path, "--backend", "print"]
    (point, _) = plan(TINY, read_sweep(str(alpha_file)), tmp_path)
    (point.workdir / "checkpoints" / "4").mkdir(parents=True)
    (point.workdir / "config.json").write_text(json.dumps(recorded(point)))
    check_continues(point)
    assert cli.main(command_line(alpha_file, *flags, "--config.steps=7")) == 0  # in which a run may change
    capsys.readouterr()
    assert cli.main(command_line(alpha_file, *flags, "--config.seed=7")) == 2
    error = capsys.readouterr().err
    assert f"point {point.name}: {point.workdir} holds a run of another config: seed: 0 → 7; take" in error


def test_last_words_are_of_this_try(tmp_path):
    log = tmp_path / "log"
    log.write_text("before\n")
    since = log.stat().st_size
    assert last_words(log, since) == ""
    log.write_text("before\nstep 1\n\nrw train: error: no\n\n")
    assert last_words(log, since) == "rw train: error: no"
