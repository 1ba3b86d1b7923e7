"""A sweep whose runs are quick: what `rw train` leaves behind, without training. Run by the tests of sweeps.

python fake_sweep.py sweep WORKDIR SECONDS [POINT_THAT_FAILS]     the sweep, two runs at a time
python fake_sweep.py run PARENT_PID WORKDIR CONFIG_FILE SECONDS [FAILS]    one run, a second and a half of it at most
"""

import fcntl
import json
import os
import pathlib
import signal
import sys
import time

from rw.sweeps.child import end_with_parent

ROOT = pathlib.Path(__file__).parent.parent.parent
TINY = str(ROOT / "tests" / "data" / "configs" / "tiny.py")
POINTS = [{"reward.efficiency_weight": weight, "seed": seed} for weight in (0.0, 0.5) for seed in (0, 1)]
OVERRIDES = (("evaluation.arms", "('trained',)"), ("evaluation.test_queries", "4"), ("evaluation.every", "0"))


def planned(workdir):
    from rw.sweep import Sweep
    from rw.sweeps.plan import plan

    points = plan(TINY, POINTS, workdir, OVERRIDES)
    return Sweep("fake of tiny", pathlib.Path(workdir), points, ("rw", "sweep"))


def command(seconds, fails=""):
    """What runs a point; called by the sweep, in whose process its id is right."""
    from rw.sweeps.plan import recorded

    def made(point):
        config = point.workdir / "planned.json"
        config.write_text(json.dumps(recorded(point)))
        return [sys.executable, __file__, "run", str(os.getpid()), str(point.workdir), str(config), str(seconds),
                *(["fails"] if point.name == fails else [])]  # fmt: skip

    return made


def run(parent, workdir, config_file, seconds, fails=""):
    """Steps one after another, continued where they stopped; then answers. Holds the run's lock meanwhile."""
    end_with_parent(int(parent))
    workdir, config = pathlib.Path(workdir), json.loads(pathlib.Path(config_file).read_text())
    lock = open(workdir / "LOCK", "a")  # held until the process ends
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    signal.signal(signal.SIGTERM, lambda *_: stop(workdir))
    with open(workdir / "starts", "a") as file:
        file.write(f"{parent}\n")
    if fails:
        print("rw train: error: the Workers are on strike")
        return 4
    (workdir / "config.json").write_text(json.dumps(config))
    (workdir / "gpus").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    metrics = workdir / "metrics.jsonl"
    done = len(metrics.read_text().splitlines()) if metrics.exists() else 0
    for step in range(done + 1, config["steps"] + 1):
        time.sleep(float(seconds))
        with open(metrics, "a") as file:
            file.write(json.dumps({"step": step}) + "\n")
    weight = config["reward"]["efficiency_weight"]
    answer(workdir, right=3 if weight == 0 else 2, cost=2e-5 if weight == 0 else 1e-5)
    return 0


def stop(workdir):
    (workdir / "terminated").write_text("in order\n")
    sys.exit(143)


def answer(workdir, right, cost):
    """The trained router's answers to four questions."""
    from rw.evaluation.outcomes import ArmResult, Outcome, write_arm

    outcomes = tuple(
        Outcome(f"q{k}", "any", "single" if k else "multi", "answered", None, None, k < right, cost, ("worker_1",))
        for k in range(4)
    )
    write_arm(workdir, ArmResult("trained", {"split": "test"}, outcomes))


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "run":
        sys.exit(run(*rest))
    from rw.sweep import run_here

    workdir, *options = rest
    sys.exit(run_here(planned(workdir), [{}, {}], command(*options)))
