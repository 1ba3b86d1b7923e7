"""The paper's variants of a run: each sets exactly what it says, can be estimated, and trains."""

import ast
import json
import pathlib
import runpy
import types

import pytest

from rw import cli
from rw.batch_plan import plan_batch
from rw.config import as_dict, load_config
from rw.dry_run import run_phases
from rw.errors import ConfigError
from rw.learner.checkpoint import config_changes
from rw.types import Mode, Query

ROOT = pathlib.Path(__file__).parent.parent.parent
FILES = {name: f"configs/ablations/{name}.py" for name in ("quickstart", "qwen3_4b")}
GRPO = {"advantage.function": "comet → grpo", "loss.reduction": "segment → global"}
FREE = {"schedule.progressive": "True → False"}
SAYS = {
    "no_comet": GRPO,
    "no_progressive": FREE,
    "no_support": {"support.coefficient": "{support} → 0.0"},
    "single": {"schedule.only_mode": " → single"},
    "multi": {"schedule.only_mode": " → multi"},
    "agentic": {"schedule.only_mode": " → agentic"},
    "alpha_0": {},  # it is the config's own
    "alpha_0.1": {"reward.efficiency_weight": "0.0 → 0.1"},
    "alpha_0.3": {"reward.efficiency_weight": "0.0 → 0.3"},
    "alpha_0.5": {"reward.efficiency_weight": "0.0 → 0.5"},
    "plain_grpo": GRPO | FREE,
    "router_r1": GRPO | FREE | {"schedule.only_mode": " → multi"},
}


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)  # the Workers' file is named from there


@pytest.mark.parametrize("base", FILES)
def test_each_variant_differs_from_its_config_in_what_it_says_and_in_nothing_else(base):
    original = load_config(f"configs/{base}.py")
    assert set(runpy.run_path(FILES[base])["VARIANTS"]) == set(SAYS)
    for name, said in SAYS.items():
        changes = config_changes(as_dict(original), as_dict(load_config(f"{FILES[base]}:{name}")))
        expected = {f"{key}: {change.format(support=original.support.coefficient)}" for key, change in said.items()}
        assert {change.replace("'", "").replace('"', "") for change in changes} == expected, name


def test_every_variant_is_described():
    text = ast.get_docstring(ast.parse((ROOT / "configs/ablations/variants.py").read_text()))
    described = {
        name for line in text.splitlines() if line.startswith("- ") for name in line[2:].split(":")[0].split(", ")
    }
    assert described == set(SAYS)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (f"{FILES['quickstart']}:no_commet", "has no config 'no_commet'; it has no_comet,"),
        (FILES["qwen3_4b"], "name one, as in configs/ablations/qwen3_4b.py:no_comet; it has no_comet, no_progressive"),
        ("configs/quickstart.py:multi", "holds one config, so configs/quickstart.py:multi is not in it; leave :multi"),
        ("configs/ablations/variants.py", "config file configs/ablations/variants.py has no function get_config()"),
        ("configs/nothing.py:multi", "no config file at 'configs/nothing.py'"),
    ],
)
def test_names_that_are_not_there_are_refused_with_those_that_are(path, said):
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert said in str(error.value)


def test_a_file_without_a_list_of_names_takes_any(tmp_path):
    path = tmp_path / "seeded.py"
    path.write_text(
        "from rw.config import default_config\n\n\ndef get_config(name='0'):\n"
        "    config = default_config()\n    config.seed = int(name)\n    return config\n"
    )
    assert load_config(str(path)).seed == 0 and load_config(f"{path}:7").seed == 7
    with pytest.raises(ConfigError, match="seeded.py: ValueError: invalid literal for int"):
        load_config(f"{path}:seven")


def test_the_workdir_is_named_after_file_and_variant():
    given = cli.parse_arguments("train", ["--config", f"{FILES['quickstart']}:no_comet"])
    assert given.workdir == "runs/quickstart_no_comet"
    assert cli.parse_arguments("train", ["--config", "configs/quickstart.py"]).workdir == "runs/quickstart"


@pytest.mark.parametrize("name", ["router_r1", "no_progressive", "agentic"])
def test_a_dry_run_estimates_a_variant(name, tmp_path, capsys):
    arguments = ["train", "--config", f"{FILES['quickstart']}:{name}", "--workdir", str(tmp_path / "run"), "--dry-run"]
    assert cli.main([*arguments, "--config.evaluation.test_queries=20"]) == 0
    assert "Calls of the whole run" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize("name", SAYS)
@pytest.mark.parametrize("base", FILES)
def test_a_dry_run_of_every_variant(base, name, tmp_path, capsys):
    """Of the large one on other questions, since its own have to be prepared."""
    others = {
        "data.source": "nq6", "data.train_files": "()", "data.test_files": "()", "data.quotas": "()",
        "data.held_out_files": "()", "evaluation.test_queries": "120",
    }  # fmt: skip
    overrides = [f"--config.{key}={value}" for key, value in others.items()] if base == "qwen3_4b" else []
    arguments = ["train", "--config", f"{FILES[base]}:{name}", "--workdir", str(tmp_path / "run"), "--dry-run"]
    assert cli.main([*arguments, *overrides]) == 0
    assert "Calls of the whole run" in capsys.readouterr().out and not (tmp_path / "run").exists()


def plan(config, data_batch_index=0):
    queries = [Query(f"q{k}", "any", "any", "?", "1") for k in range(config.queries_per_batch)]
    return plan_batch(types.SimpleNamespace(config=config, queries=lambda b, n: queries[:n]), data_batch_index)


def test_a_run_with_one_mode_forces_every_group_into_it_and_needs_no_support():
    config = load_config(f"{FILES['quickstart']}:multi")
    for b in (0, config.schedule.cold_batches, config.schedule.autonomous_from):
        planned = plan(config, b)
        assert set(planned.forced_modes) == {Mode.MULTI} and planned.support_coefficient == 0.0
        assert planned.forced_ratio == 1.0 and planned.cold_start == (b < config.schedule.cold_batches)


def test_plain_grpo_is_free_from_the_first_batch():
    planned = plan(load_config(f"{FILES['quickstart']}:plain_grpo"))
    assert set(planned.forced_modes) == {None} and not planned.cold_start and planned.support_coefficient == 0.0
    assert plan(load_config(f"{FILES['quickstart']}:router_r1")).forced_modes == [Mode.MULTI] * 16


def test_calls_are_estimated_for_the_one_mode():
    phases = run_phases(load_config(f"{FILES['quickstart']}:single"))
    assert [phase.mode for phase in phases] == [Mode.SINGLE, Mode.SINGLE, Mode.SINGLE, None]
    free = run_phases(load_config("configs/quickstart.py"))
    assert sum(phase.rollouts for phase in phases) == sum(phase.rollouts for phase in free)


def test_another_mode_than_the_three_is_refused():
    with pytest.raises(ConfigError, match="schedule.only_mode='multiple' is not empty and not one of single, multi"):
        load_config("configs/quickstart.py", [("schedule.only_mode", "multiple")])


SHORT = {
    "steps": 3, "queries_per_batch": 6, "rollouts_per_query": 4,
    "schedule.cold_batches": 1, "schedule.autonomous_from": 3,
    "evaluation.every": 3, "evaluation.validation_queries": 6, "evaluation.test_queries": 6,
    "evaluation.arms": ("trained", "warm_start"), "rollout.concurrency": 24, "log.tensorboard": False,
    "engine.slots": 24, "engine.lengths": (576,), "engine.decode_widths": (24,), "engine.prefill_rows": (4,),
    "batch.length_buckets": (576,), "batch.policy_buckets": (128,),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SAYS)
def test_a_variant_trains_and_is_evaluated(name, run, tmp_path):
    workdir = tmp_path / "run"
    overrides = [f"--config.{key}={value}" for key, value in SHORT.items()]
    run("train", workdir, *overrides, config=f"{ROOT}/{FILES['quickstart']}:{name}", timeout=600)
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    only = json.loads((workdir / "config.json").read_text())["schedule"]["only_mode"]
    assert (rows[-1]["mode/forced_frac"] == 1.0) == bool(only)  # half-way through the transition, or past any
    scores_modes = [False] * 3 if only else [name in ("plain_grpo", "no_progressive"), True, True]  # not in cold start
    assert ["loss/support" in row for row in rows] == scores_modes
    weighs_modes = name not in ("no_support", "plain_grpo", "no_progressive") and not only
    assert [row["lambda_b"] > 0 for row in rows] == [False, weighs_modes, weighs_modes]
    for arm in ("trained", "warm_start"):
        outcomes = [json.loads(line) for line in (workdir / "evaluation" / f"{arm}.jsonl").read_text().splitlines()[1:]]
        assert len(outcomes) == 6
        assert not only or {outcome["mode"] for outcome in outcomes} == {only}
