"""The regimes of the update in whole runs, and the seam between the sampler's idle moments and the learner."""

import json
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from rw.early_learning import check_regime, lent_while_idle
from rw.errors import ConfigError

TINY = pathlib.Path(__file__).parent.parent / "data" / "configs" / "tiny.py"
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


TWENTY_STEPS = """
import asyncio, contextlib, json, sys, jax
from rw import progress
from rw.config import load_config
from rw.core.advantages import resolve
from rw.initial import initial_router
from rw.parts import open_parts
from rw.train import Trainer
from rw.workdir import Workdir

made = []
def note(event, _, **about):
    if event == "/jax/core/compile/jaxpr_to_mlir_module_duration":
        made.append(about.get("fun_name"))
jax.monitoring.register_event_duration_secs_listener(note)

async def steps(path, workdir, *overrides):
    progress.be_quiet()
    config = load_config(path, [tuple(override.split("=", 1)) for override in overrides])
    async with contextlib.AsyncExitStack() as stack:
        workdir = stack.enter_context(Workdir(workdir))
        parts = await stack.enter_async_context(open_parts(config, workdir))
        trainer = Trainer(parts, await initial_router(parts), resolve(config.advantage.function))
        await stack.enter_async_context(trainer)
        await trainer.resume()
        await parts.device.run(trainer.learner.warm_up, trainer.state)
        await trainer.engine.warm_up()
        await trainer.step()  # the small programs around the large ones, those of the support term among them
        at_start, later, shapes = len(made), [], []
        for _ in range(20):
            await trainer.step()
            later.append(made[at_start:])
            at_start = len(made)
            row = trainer.metrics.last_row
            shapes.append([row["micro_batches"], row["sampler/prefilled_tokens"], row["perf/early_gradient"]])
        print(json.dumps({"warm": at_start, "later": later, "shapes": shapes}))

import pathlib
asyncio.run(steps(sys.argv[1], pathlib.Path(sys.argv[2]), *sys.argv[3:]))
"""


@pytest.mark.full
@pytest.mark.parametrize("regime", ["collect", "stream"])
def test_twenty_steps_of_ragged_lengths_compile_nothing_after_warm_up(regime, environment, warm, tmp_path):
    settings = {
        "regime": regime,
        "init.path": warm,
        "steps": 21,
        "deterministic": False,
        "schedule.cold_batches": 0,
        "schedule.autonomous_from": 12,
        "evaluation.every": 0,
        "evaluation.test_queries": 0,
        "checkpoint.every": 100,
        "engine.lengths": "192,384",
        "engine.decode_widths": "4,24",
        "engine.prefill_rows": "1,4",
        "batch.length_buckets": "192,384",
        "batch.policy_buckets": "128,",
        "batch.packing": "none",
        "workers.latency_s": 0.05,
    }
    overrides = [f"{name}={value}" for name, value in settings.items()]
    done = subprocess.run(
        [sys.executable, "-c", TWENTY_STEPS, str(TINY), str(tmp_path / "run"), *overrides],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["warm"] > 20 and said["later"] == [[]] * 20
    assert len(set(map(tuple, said["shapes"]))) > 5  # they were ragged
    assert any(early for *_, early in said["shapes"]) is (regime == "stream")
