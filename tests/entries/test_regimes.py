"""The regimes of the update in whole runs, and the seam between the sampler's idle moments and the learner."""

import json
import re
import signal
import subprocess
import time

import numpy as np
import pytest

from rw.early_learning import check_regime, lent_while_idle
from rw.errors import ConfigError

SHORT = ("--config.steps=3", "--config.evaluation.every=0", "--config.evaluation.test_queries=0")


class Engine:
    """Notes what it is lent to."""

    def __init__(self):
        self.work, self.woken = None, 0

    def while_idle(self, work):
        self.work = work

    def wake(self):
        self.woken += 1


class Work:
    def __init__(self):
        self.groups = []

    def add(self, group):
        self.groups.append(group)

    def piece(self):
        return False


def test_the_device_is_lent_until_the_rollouts_end_however_they_end():
    engine, work = Engine(), Work()
    with lent_while_idle(engine, work) as on_group:
        assert engine.work == work.piece
        on_group("one")
        on_group("two")
    assert work.groups == ["one", "two"] and engine.woken == 2 and engine.work is None
    with pytest.raises(KeyError), lent_while_idle(engine, work):
        raise KeyError
    assert engine.work is None
    with lent_while_idle(engine, None) as on_group:
        on_group("three")
    assert engine.work is None and work.groups == ["one", "two"]


def test_several_processes_collect():
    check_regime("stream", 1)
    check_regime("collect", 8)
    with pytest.raises(ConfigError, match="for one process, and there are 2.*set regime='collect'"):
        check_regime("stream", 2)


def rows(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def bits_of(workdir, step=3):
    """Of every array of the state in that step's checkpoint."""
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as reader:
        state = reader.restore((workdir / "checkpoints" / str(step) / "state").absolute())
    return {name: np.asarray(leaf).tobytes() for name, leaf in state["params"].items()}


@pytest.mark.full
def test_streamed_runs_are_bitwise_equal_and_learn_what_collected_ones_do(command, environment, run, warm, tmp_path):
    """One without latencies, one with them that is stopped in mid-step and continued, one that collects."""
    begin = (*SHORT, f"--config.init.path={warm}")
    at_once, late, collected = (tmp_path / name for name in ("at_once", "late", "collected"))
    run("train", at_once, *begin, "--config.regime=stream")
    slow = (*begin, "--config.regime=stream", "--config.workers.latency_s=0.2", "--config.workers.latency_seed=7")
    process = subprocess.Popen(
        command("train", late, *slow), env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    while not (late / "metrics.jsonl").exists() or not rows(late):
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.3)  # somewhere in the second step, whose first turns are sampled and journaled
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    done = run("train", late, *slow)
    assert re.search(r"step 1 of 3: 2 to go", done.stdout)
    assert bits_of(late) == bits_of(at_once)
    run("train", collected, *begin, "--config.regime=collect")
    for streamed, whole in zip(rows(at_once), rows(collected), strict=True):
        assert streamed["perf/early_gradient"] <= streamed["perf/early_reference"] and whole["perf/early_gradient"] == 0
    first, other = rows(at_once)[0], rows(collected)[0]  # later steps begin from weights that differ by rounding
    for name in ("grad_norm", "loss/total", "loss/pg_inner", "loss/kl"):
        assert first[name] == pytest.approx(other[name], rel=1e-4, abs=1e-6), name
