"""Whole runs, each a process of its own: what is written, what continues, and what is bitwise the same."""

import gzip
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from rw.types import Status


def rows(workdir, name="metrics.jsonl"):
    return [json.loads(line) for line in (workdir / name).read_text().splitlines()]


def final_params(workdir, step=4):
    """Leaves of the parameters in the checkpoint of a step, by name."""
    return arrays(restored(workdir / "checkpoints" / str(step) / "state")["params"])


def restored(path):
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as reader:
        return reader.restore(path.absolute())


def arrays(params):
    return {name: np.asarray(leaf) for name, leaf in params.items()}


def assert_same_params(workdir, other, step=4):
    ours, theirs = final_params(workdir, step), final_params(other, step)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert np.array_equal(ours[name].view(np.uint32), theirs[name].view(np.uint32)), name


def assert_same_evaluation(workdir, other):
    """Validations, the choice of the best router, and every outcome of the final evaluation."""
    ours, theirs = (
        [{key: value for key, value in row.items() if key != "time_s"} for row in rows(run, "validation.jsonl")]
        for run in (workdir, other)
    )
    assert ours == theirs
    names = sorted(path.name for path in (other / "evaluation").glob("*.jsonl"))
    assert sorted(path.name for path in (workdir / "evaluation").glob("*.jsonl")) == names
    for name in names:
        ours, theirs = (
            [line | {"latency_s": None} for line in arm_lines(run, name.removesuffix(".jsonl"))[1:]]
            for run in (workdir, other)
        )
        assert ours == theirs


@pytest.fixture(scope="module")
def reference(run, warm, tmp_path_factory):
    """An uninterrupted deterministic run of four steps, one of them traced: it is what others are compared with."""
    workdir = tmp_path_factory.mktemp("reference") / "run"
    done = run("train", workdir, f"--config.init.path={warm}", "--profile=3")
    return workdir, done


def test_a_traced_step_shows_its_phases_and_the_scope_of_every_operation(reference):
    workdir, done = reference
    assert f"step 3: profile in {workdir / 'profile' / 'step_000003'}" in done.stdout
    [trace] = (workdir / "profile").glob("step_000003/plugins/profile/*/*.trace.json.gz")
    names = {event.get("name") for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]}
    assert {"rollout", "train", "publish", "CachePool.run"} <= names
    [planes] = trace.parent.glob("*.xplane.pb")
    operations = set(re.findall(rb"jit\(\w+\)/[\w()/.]+", planes.read_bytes()))
    scopes = {scope.decode() for operation in operations for scope in re.findall(rb"\w+", operation)}
    assert {"decode", "prefill", "gather", "embed", "attention", "mlp", "head", "sample"} <= scopes
    assert {"loss", "policy_gradient", "kl", "support", "optimizer"} <= scopes


def test_a_run_leaves_metrics_trajectories_ledger_and_checkpoints(reference):
    workdir, done = reference
    assert [row["step"] for row in rows(workdir)] == [1, 2, 3, 4]
    assert "step 4/4" in done.stdout and "finished; results in" in done.stdout and " nominal USD in all" in done.stdout
    assert sorted(path.name for path in (workdir / "trajectories").iterdir()) == [
        f"step_{s:06d}.jsonl" for s in (1, 2, 3, 4)
    ]
    records = rows(workdir, "trajectories/step_000002.jsonl")
    assert len(records) == 24 and {record["query_id"] for record in records} == {
        f"sim-train-{i:06d}" for i in range(6, 12)
    }
    assert {path.name for path in (workdir / "checkpoints").iterdir()} >= {"2", "3", "4"}  # the newest three are kept
    assert json.loads((workdir / "config.json").read_text())["steps"] == 4
    booked = {
        (r["step"], r["group"], r["rollout"], r["turn"], r["call"])
        for r in rows(workdir, "ledger.jsonl")
        if r["kind"] == "call"
    }
    called = {(record["step"], len(record["calls"])) for record in records}
    assert any(step == 2 for step, *_ in booked) == any(count for _, count in called)


def arm_lines(workdir, arm):
    return rows(workdir, f"evaluation/{arm}.jsonl")


def test_a_run_validates_its_router_and_tests_the_best_one(reference):
    workdir, _ = reference
    validations = rows(workdir, "validation.jsonl")
    assert [row["step"] for row in validations] == [0, 2, 4]
    best = max(validations, key=lambda row: (row["eval/accuracy"], -row["step"]))["step"]
    assert [path.name for path in (workdir / "best").iterdir()] == [f"step_{best:06d}"]
    arms = {path.stem for path in (workdir / "evaluation").glob("*.jsonl")}
    assert arms == {"trained", "warm_start", "oracle"} | {
        f"{kind}_{mode}" for kind in ("forced", "scripted") for mode in ("single", "multi", "agentic")
    }
    asked = {arm: [line["query_id"] for line in arm_lines(workdir, arm)[1:]] for arm in arms}
    assert all(ids == asked["trained"] for ids in asked.values()) and len(set(asked["trained"])) == 10
    assert arm_lines(workdir, "trained")[0]["step"] == best and arm_lines(workdir, "warm_start")[0]["step"] == 0
    for mode in ("single", "multi", "agentic"):
        assert {line["mode"] for line in arm_lines(workdir, f"forced_{mode}")[1:]} == {mode}
    for arm in arms:
        said = rows(workdir, f"evaluation/trajectories/{arm}.jsonl")
        assert [(one["query_id"], one["mode"], one["answer"]) for one in said] == [
            (line["query_id"], line["mode"], line["answer"]) for line in arm_lines(workdir, arm)[1:]
        ]
        assert all(
            len(one["calls"]) == len(line["workers"])
            for one, line in zip(said, arm_lines(workdir, arm)[1:], strict=True)
        )
    assert sum(line["correct"] for line in arm_lines(workdir, "oracle")[1:]) >= 5  # it knows whom to ask


def test_calls_of_evaluations_are_booked_apart(reference):
    workdir, _ = reference
    booked = {record["run"] for record in rows(workdir, "ledger.jsonl")}
    assert booked >= {"run", "run/test_oracle", "run/test_scripted_multi"}
    spent = sum(record["cost_usd"] for record in rows(workdir, "ledger.jsonl")
                if record["kind"] == "call" and record["accepted"] and record["run"] == "run/test_oracle")  # fmt: skip
    assert spent == pytest.approx(sum(line["cost_usd"] for line in arm_lines(workdir, "oracle")[1:]))


def test_the_schedule_is_the_papers(reference):
    workdir, _ = reference
    table = [(row["data/batch_index"], row["cold_start"], row["rho_b"], row["lambda_b"]) for row in rows(workdir)]
    assert table == [
        (0, 1.0, 1.0, 0.0),
        (1, 0.0, 1.0, pytest.approx(0.3)),
        (2, 0.0, pytest.approx(2 / 3), pytest.approx(0.2)),
        (3, 0.0, pytest.approx(1 / 3), pytest.approx(0.1)),
    ]


def test_metrics_agree_with_the_trajectories(reference):
    workdir, _ = reference
    for row in rows(workdir):
        records = rows(workdir, f"trajectories/step_{row['step']:06d}.jsonl")
        invalid = sum(record["status"] == Status.TERMINAL_INVALID for record in records)
        assert row["invalid/total"] == pytest.approx(invalid / len(records))
        assert row["accuracy"] == pytest.approx(sum(bool(record["correct"]) for record in records) / len(records))
        cost = sum(call["cost_usd"] for record in records for call in record["calls"])
        assert row["cost/per_step"] == pytest.approx(cost)
        policy = sum(length for record in records for code, length in record["arrays"]["segments"] if code in (4, 5))
        assert row["N_KL"] == policy == row["N_mode"] + row["N_inner"]


def test_ratio_is_one_and_the_sampler_agrees_with_the_learner(reference):
    workdir, _ = reference
    for row in rows(workdir):
        assert row["policy/ratio/min"] == row["policy/ratio/max"] == 1.0
        assert row["sampler/logp_diff/max"] < 1e-3


@pytest.mark.full
def test_two_runs_with_shuffled_worker_latencies_are_bitwise_equal(reference, run, warm, tmp_path):
    workdir = tmp_path / "run"
    run(
        "train",
        workdir,
        f"--config.init.path={warm}",
        "--config.workers.latency_s=0.02",
        "--config.workers.latency_seed=7",
        "--config.engine.slots=5",  # of 24 episodes, most wait for their turn
    )
    assert_same_params(workdir, reference[0])


def kill_and_continue(command, environment, run, warm, workdir, delay_s):
    """Kills the run -9 some time after it began its first step, then continues it; whether it was still alive."""
    process = subprocess.Popen(
        command("train", workdir, f"--config.init.path={warm}"),
        env=environment, cwd=workdir.parent, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in process.stdout:
        if line.startswith("step 0 of"):
            break
    time.sleep(delay_s)
    alive = process.poll() is None
    process.kill()
    process.wait()
    process.stdout.close()
    run("train", workdir, f"--config.init.path={warm}")
    return alive


def test_a_run_killed_and_continued_is_bitwise_equal(reference, command, environment, run, warm, tmp_path):
    workdir = tmp_path / "run"
    assert kill_and_continue(command, environment, run, warm, workdir, delay_s=4.0)
    assert_same_params(workdir, reference[0])
    assert_same_evaluation(workdir, reference[0])
    assert [row["step"] for row in rows(workdir)] == [1, 2, 3, 4]


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_ten_random_kill_points_are_bitwise_equal(reference, command, environment, run, warm, tmp_path):
    draw = random.Random(0)
    alive = 0
    for index in range(10):
        workdir = tmp_path / f"run{index}"
        alive += kill_and_continue(command, environment, run, warm, workdir, delay_s=draw.uniform(0.0, 10.0))
        assert_same_params(workdir, reference[0])
        assert_same_evaluation(workdir, reference[0])
    assert alive >= 5  # or the kills came too late to test anything


def test_sigterm_flushes_and_the_same_command_continues(reference, command, environment, run, warm, tmp_path):
    workdir, overrides = tmp_path / "run", (f"--config.init.path={warm}", "--config.evaluation.test_queries=0")
    process = subprocess.Popen(
        command("train", workdir, *overrides, "--config.workers.latency_s=0.3"),
        env=environment, cwd=workdir.parent, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in process.stdout:
        if line.startswith("step 1/"):
            break
    process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    output = process.stdout.read()
    assert process.wait(timeout=20) == 128 + signal.SIGTERM and time.monotonic() - asked < 20
    assert "stopped by SIGTERM; the same command continues the run" in output
    done = rows(workdir)[-1]["step"]
    assert (workdir / "checkpoints" / str(done)).is_dir()
    run("train", workdir, *overrides)
    assert [row["step"] for row in rows(workdir)] == [1, 2, 3, 4]
    assert_same_params(workdir, reference[0])


@pytest.mark.full
def test_a_run_that_diverges_keeps_what_it_has_and_can_go_on(run, warm, tmp_path):
    workdir = tmp_path / "run"
    overrides = (
        f"--config.init.path={warm}",
        "--config.advantage.function=tests.data.advantages_for_tests:broken",
        "--config.checkpoint.every=10",
    )
    failed = run("train", workdir, *overrides, expect=3)
    assert "not finite in 3 steps in a row, the last of them step 3" in failed.stderr.splitlines()[-1]
    assert [row["nonfinite_skips"] for row in rows(workdir)] == [1, 2, 3]
    assert len(list((workdir / "trajectories").iterdir())) == 3
    params, initial = final_params(workdir, 3), arrays(restored(workdir / "reference" / "params"))
    assert all(np.array_equal(params[name], initial[name]) for name in initial)
    assert "step 3 of 4: 1 to go" in run("train", workdir, *overrides, expect=3).stdout


@pytest.mark.full
def test_a_finished_run_says_so_and_more_steps_extend_it(reference, run, warm, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(reference[0], workdir)
    again = run("train", workdir, f"--config.init.path={warm}").stdout
    assert "config.steps=4: 0 to go" in again and "test:" not in again  # no question is answered twice
    longer = ("--config.steps=5", "--config.evaluation.arms=('trained',)")
    run("train", workdir, f"--config.init.path={warm}", *longer)
    assert [row["step"] for row in rows(workdir)] == [1, 2, 3, 4, 5]
    assert rows(workdir)[-1]["rho_b"] == 0.0


@pytest.mark.full
def test_other_test_questions_set_the_old_answers_aside(reference, run, warm, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(reference[0], workdir)
    (workdir / "evaluation" / "oracle.jsonl").write_text("{")
    overrides = (f"--config.init.path={warm}", "--config.evaluation.arms=('trained', 'oracle')")
    done = run("train", workdir, *overrides)
    assert "test: oracle" in done.stdout and "test: trained" not in done.stdout  # what cannot be read is answered again
    kept = {path.name for path in (reference[0] / "evaluation").glob("*.jsonl")}
    assert {path.name for path in (workdir / "evaluation").glob("*.jsonl")} == kept
    for change in ("test_seed=7", "test_queries=11"):
        run("train", workdir, *overrides, f"--config.evaluation.{change}")
        assert {path.name for path in (workdir / "evaluation").glob("*.jsonl")} == {"trained.jsonl", "oracle.jsonl"}
        assert {path.name for path in (workdir / "evaluation" / "superseded").glob("*.jsonl")} == kept, change
        summary = json.loads((workdir / "report" / "summary.json").read_text())
        assert summary["finished"] and summary["accuracy_warm_start"] is None
        assert summary["margins"]["trained_minus_best_forced"] is None


def test_a_deterministic_evaluation_that_needs_more_pages_is_refused_before_the_first_step(run, warm, tmp_path):
    overrides = (f"--config.init.path={warm}", "--config.rollout.concurrency=64", "--config.evaluation.test_queries=30")
    failed = run("train", tmp_path / "run", *overrides, "--config.engine.kv_bytes=4500000", expect=2)
    said = "engine.kv_bytes=4500000: 30 contexts of 384 tokens may take 5185536"  # those of 24 rollouts have room
    assert said in failed.stderr and "step" not in failed.stdout


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("--config.optimizer.learning_rate=0.5", "optimizer.learning_rate: 0.001 → 0.5"),
        ("--config.seed=1", "seed: 0 → 1"),
    ],
)
def test_a_checkpoint_of_another_config_is_refused(reference, run, warm, tmp_path, override, says):
    workdir = tmp_path / "run"
    shutil.copytree(reference[0], workdir)
    before = (workdir / "metrics.jsonl").read_bytes()
    kept = sorted(path.name for path in (workdir / "checkpoints").iterdir())
    failed = run("train", workdir, f"--config.init.path={warm}", override, expect=2)
    assert says in failed.stderr and len(failed.stderr.strip().splitlines()) == 1
    assert (workdir / "metrics.jsonl").read_bytes() == before
    assert sorted(path.name for path in (workdir / "checkpoints").iterdir()) == kept


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["--config.model.d_model=64"], "model.d_model: 48 → 64; use a new workdir"),
        (["--config.tokenizer.path=qwen3", "--config.model.vocab_size=151936"], "tokenizer_fingerprint: "),
        (["--config.init.source=random"], "init.source: warmstart → random"),
    ],
)
def test_a_run_without_a_checkpoint_remembers_its_initial_router(reference, run, warm, tmp_path, overrides, says):
    workdir = tmp_path / "run"
    shutil.copytree(reference[0] / "reference", workdir / "reference")
    failed = run("train", workdir, f"--config.init.path={warm}", *overrides, expect=2)
    assert says in failed.stderr and len(failed.stderr.strip().splitlines()) == 1


def test_parameters_of_another_shape_are_refused(run, warm, tmp_path):
    overrides = (f"--config.init.path={warm}", "--config.init.source=params", "--config.model.d_ff=64")
    failed = run("train", tmp_path / "run", *overrides, expect=2)
    assert "model.layers.mlp.down_proj.weight is (2, 96, 48) there and (2, 64, 48) in the config" in failed.stderr


def test_checkpoints_of_another_config_are_refused_before_a_warm_start_is_made(reference, run, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(reference[0] / "checkpoints", workdir / "checkpoints")
    failed = run("train", workdir, "--config.warmstart.steps=51", expect=2)
    assert "warmstart.steps: 50 → 51" in failed.stderr and "warm start" not in failed.stdout


def test_a_workdir_in_use_is_refused(run, tmp_path):
    from rw.workdir import Workdir

    with Workdir(tmp_path / "run"):
        failed = run("train", tmp_path / "run", expect=2)
    assert f"in use by process {os.getpid()}" in failed.stderr
