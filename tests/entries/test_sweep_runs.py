"""A sweep of real runs, killed in the middle."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

SWEEP = """from rw.sweeps.points import product, seeds, values


def get_sweep():
    return product(values("reward.efficiency_weight", (0.0, 0.5)), seeds(2))
"""


@pytest.mark.full
@pytest.mark.timeout(2400)
def test_a_sweep_of_four_runs_killed_in_the_middle_goes_on(environment, warm, tmp_path):
    (tmp_path / "few.py").write_text(SWEEP)
    workdir = tmp_path / "sweep"
    overrides = [
        "--config.init.source=params", f"--config.init.path={warm}", "--config.steps=3",
        "--config.evaluation.arms=('trained',)",
    ]  # fmt: skip
    tiny = environment["PYTHONPATH"] + "/tests/data/configs/tiny.py"
    command = [sys.executable, "-m", "rw.cli", "sweep", "--config", tiny, "--sweep", str(tmp_path / "few.py"),
               "--workdir", str(workdir), "--processes", "2", *overrides]  # fmt: skip
    first = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    names = [f"efficiency_weight_{weight}_seed_{seed}" for weight in ("0.0", "0.5") for seed in (0, 1)]
    begun = [workdir / name / "metrics.jsonl" for name in names[:2]]
    end = time.monotonic() + 900
    while not all(file.exists() and file.read_text() for file in begun):
        assert time.monotonic() < end and first.poll() is None, "the first steps did not come"
        time.sleep(0.2)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()

    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    summary = json.loads((workdir / "sweep.json").read_text())
    assert [point["status"] for point in summary["points"]] == ["finished"] * 4
    assert [point["name"] for point in summary["points"]] == names
    for name in names:
        rows = [json.loads(line) for line in (workdir / name / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == [1, 2, 3]
        ledger = [json.loads(line) for line in (workdir / name / "ledger.jsonl").read_text().splitlines()]
        calls = [
            (r["run"], r["step"], r["group"], r["rollout"], r["turn"], r["call"])
            for r in ledger
            if r["kind"] == "call" and r["accepted"]
        ]
        assert len(calls) == len(set(calls))  # nothing was paid twice
    assert [len(setting["seeds"]) for setting in summary["settings"]] == [2, 2]

    again = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0 and "4 points, 4 of them finished" in again.stdout
