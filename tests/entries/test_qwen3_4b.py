"""The config of the paper's run: it says what its functions compute, and of the paper it changes nothing."""

import ast
import dataclasses
import pathlib
import re

import pytest

from rw import cli, dry_run
from rw.config import load_config
from rw.data.prepared import write_queries
from rw.data.quotas import paper_quotas
from rw.data.sources import SOURCES
from rw.data.sources.reasoning import BBH_TASKS
from rw.dry_run import count_tokens, run_phases
from rw.estimate import TYPICAL_REPLY, Lengths, WorkerTerms, estimate
from rw.memory import GIB, cache_token_bytes, device_memory
from rw.model.qwen3 import shapes_of
from rw.protocol.config import AGENTIC_CALLS
from rw.run_config import RunConfig
from rw.types import Query
from rw.workers.pricing import PriceTable

ROOT = pathlib.Path(__file__).parent.parent.parent
PATH = "configs/qwen3_4b.py"
DOCSTRING = ast.get_docstring(ast.parse((ROOT / PATH).read_text()))
WORDS = " ".join(DOCSTRING.split())
OTHER_QUESTIONS = [
    ("data.source", "nq6"), ("data.train_files", "()"), ("data.test_files", "()"), ("data.quotas", "()"),
    ("data.held_out_files", "()"), ("evaluation.test_queries", "120"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)  # the Workers' file is named from there


def test_what_the_paper_names_is_as_in_the_paper():
    config, paper = load_config(PATH), RunConfig()
    for name in ("steps", "queries_per_batch", "rollouts_per_query", "sampling", "schedule", "support", "loss"):
        assert getattr(config, name) == getattr(paper, name)
    for name in ("optimizer", "protocol", "reward", "advantage"):
        assert getattr(config, name) == getattr(paper, name)
    numerics = {name: getattr(config.model, name) for name in ("compute_dtype", "attention", "attention_chunk")}
    assert dataclasses.replace(paper.model, **numerics) == config.model
    assert len(config.workers.endpoints) == 6 and config.mesh.data * config.mesh.fsdp * config.mesh.tensor == 8


def rows():
    """(devices, figures, overrides) of each line of the docstring's table."""
    table = DOCSTRING[DOCSTRING.index("devices  ") :].split("\n\n")[0].splitlines()[1:]
    found = []
    for line in table:
        name, *rest = re.split(r"\s{2,}", line.strip())
        if "chips" in name or "A100" in name:
            found.append((name, [float(x) for x in rest[:5]], rest[5].split() if len(rest) > 5 else []))
        else:
            found[-1][2].extend(line.split())
    return found


def test_the_table_of_memory_is_what_is_computed_and_fits():
    assert [name.split(",")[0] for name, _, _ in rows()] == ["8 A100-80G", "v5p-16", "v5e-32"]
    for name, (always, rollouts, learning, most, limit), keys in rows():
        config = load_config(PATH, [tuple(key.split("=", 1)) for key in keys])
        memory = device_memory(config)
        parts = {phase: sum(part.size for part in parts) for phase, parts in memory.phases.items()}
        computed = (memory.held_bytes, parts["rollouts"], parts["learning"], memory.peak_bytes)
        assert [round(size / GIB, 2) for size in computed] == [always, rollouts, learning, most], name
        assert most < limit
        devices = int(re.search(r"(\d+) (A100|chips)", name)[1])
        assert config.mesh.data * config.mesh.fsdp * config.mesh.tensor == devices
    config = load_config(PATH)
    token, rollouts = cache_token_bytes(config.model), config.queries_per_batch * config.rollouts_per_query
    assert f"{token / 2**10:g} KiB" in WORDS
    tokens, longest = config.engine.kv_bytes / token, config.engine.longest
    assert f"{rollouts} rollouts of {round(tokens / rollouts, -2):,.0f} tokens or 100 of {longest:,}" in WORDS
    assert tokens / longest == pytest.approx(100, rel=0.05)


def test_what_one_micro_batch_takes_is_what_is_computed_and_near_what_was_compiled():
    said = re.findall(r"\((\d), (\d)\) ([\d.]+) and ([\d.]+\d)", WORDS)
    assert [(fsdp, tensor) for fsdp, tensor, _, _ in said] == [*zip("124828", "842144", strict=True)]
    for fsdp, tensor, estimated, compiled in said:
        config = load_config(PATH, [("mesh.fsdp", fsdp), ("mesh.tensor", tensor)])
        sum_, *parts = device_memory(config).phases["learning"]
        assert sum_.name == "gradient sum" and round(sum(part.size for part in parts) / GIB, 2) == float(estimated)
        assert float(estimated) == pytest.approx(float(compiled), rel=0.1)


def test_worker_spend_is_what_is_computed(monkeypatch):
    config = load_config(PATH)
    prices = PriceTable.from_endpoints(config.workers.endpoints)
    terms = [WorkerTerms(worker.id, prices[worker.id], worker.max_output_tokens) for worker in config.workers.endpoints]
    mean, longest = (
        float(x.replace(",", "")) for x in re.search(r"have ([\d,]+) .* and ([\d,]+) at most", WORDS).groups()
    )
    frame = count_tokens(load_config(PATH, OTHER_QUESTIONS))[0].frame
    monkeypatch.setattr(dry_run, "held_out_queries", lambda config: ([], range(config.evaluation.test_queries)))
    lengths = Lengths(mean, longest, frame, float(config.protocol.response_budget))
    found = estimate(run_phases(config), terms, lengths, config.protocol.multi_previous == "reply")
    assert f"{round(found.calls.typical, -3):,.0f} calls for {found.usd.typical:.3g} USD" in WORDS
    assert f"(low {found.usd.low:.3g}, worst {found.usd.worst:.3g})" in WORDS
    training = run_phases(config)[0].rollouts
    assert f"{training * config.reward.reference_cost_usd:.0f} USD for all {training:,.0f}" in WORDS
    assert f"{config.budget.run_usd:g} USD (`budget.run_usd`)" in WORDS


def learning_flop(config, length):
    """Reference 2, policy 2, its layers again 2, backward 4, a parameter and token; attention in five such passes."""
    model = config.model
    parameters = sum(leaf.size for leaf in shapes_of(model).values())
    attention = 2 * model.n_layers * model.n_heads * model.head_dim * length  # of a token, half of the keys on average
    tokens = config.queries_per_batch * config.rollouts_per_query * length
    return tokens * (10 * parameters + 5 * attention)


def test_hours_are_what_their_assumptions_give():
    config = load_config(PATH)
    flop = [learning_flop(config, length) for length in (4096, config.batch.length_buckets[-1])]
    assert f"{flop[0]:.1e}".replace("+", "") in WORDS and f"{flop[1]:.1e}".replace("+", "") in WORDS
    learning = [x / (8 * 100e12) for x in flop]
    assert f"{learning[0]:.0f} s and {learning[1]:.0f} s at 100 TFLOP/s" in WORDS
    longest = config.workers.endpoints[0].max_output_tokens
    calls = [AGENTIC_CALLS * tokens / 50 for tokens in (longest * TYPICAL_REPLY, longest)]
    assert f"take {calls[0]:.0f} s, of 4,096 {calls[1]:.0f} s" in WORDS
    own = 154_000 / 2000
    step, worst = (learning[k] + calls[k] + own for k in (0, 1))
    assert f"{own:.0f} s for" in WORDS and f"a step is {step:.0f} s" in WORDS
    assert f"are {config.steps * step / 3600:.1f} hours; {config.steps * worst / 3600:.0f} if" in WORDS
    assert f"{3 * 4 * sum(leaf.size for leaf in shapes_of(config.model).values()) / GIB:.0f} GiB every" in WORDS


def test_questions_are_as_many_as_the_quotas_of_a_hundred_batches():
    config, script = (
        load_config(PATH),
        DOCSTRING[DOCSTRING.index("    prepare()") : DOCSTRING.index("The answers to Code")],
    )
    train = {name: int(count) for name, count in re.findall(r"([a-z_]+):(\d+)", script)}
    quotas = {quota.dataset: sum(quota.counts) / len(quota.counts) for quota in config.data.mixture()}
    assert train == {name: round(100 * count) for name, count in quotas.items()} and sum(train.values()) == 3200
    assert list(train) == [pathlib.Path(path).name.removesuffix(".train.jsonl") for path in config.data.train_files]
    tested = {pathlib.Path(path).name.removesuffix(".test.jsonl") for path in config.data.test_files}
    assert tested == {*train, "simple_qa_verified", "taco"} and tested <= set(SOURCES)
    assert all(name in script for name in tested) and config.evaluation.test_queries == 8 * 120 + 100
    held_out = [pathlib.Path(path).name.removesuffix(".test.jsonl") for path in config.data.held_out_files]
    assert held_out == ["aime", "gpqa_diamond", "bbh"] and set(held_out) <= set(SOURCES)
    drawn = dict(re.findall(r"prepare ([a-z_]+) test (\d+)", script))
    assert [int(drawn[name]) for name in held_out] == [149, 198, 1080 // len(BBH_TASKS)]
    assert f"prepare bbh test {drawn['bbh']} --per task" in script
    assert [str(quota) for quota in config.data.mixture()] == list(paper_quotas())


def test_a_dry_run_without_the_files_says_how_to_make_them(tmp_path, capsys):
    assert cli.main(["train", "--config", PATH, "--workdir", str(tmp_path / "run"), "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "data/prepared/math.train.jsonl" in said and "rw data prepare --dataset NAME" in said


@pytest.fixture
def prepared(tmp_path):
    """Overrides that name files with questions in the place of the paper's."""
    paths = {"train": [], "test": [], "held_out": []}
    for split, sizes in (("train", 8), ("test", 2), ("held_out", 1)):
        for path in getattr(load_config(PATH).data, f"{split}_files"):
            name = pathlib.Path(path).name.split(".")[0]
            queries = [Query(f"{name}/{split}/{k}", name, "any", f"{name} {split} {k}?", "1") for k in range(sizes)]
            paths[split].append(str(tmp_path / pathlib.Path(path).name))
            write_queries(paths[split][-1], queries, {"dataset": name, "split": split})
    files = [f"--config.data.{split}_files={tuple(found)}" for split, found in paths.items()]
    return [*files, f"--config.evaluation.test_queries={2 * len(paths['test'])}"]


def test_a_dry_run_needs_no_weights_and_no_key(tmp_path, capsys, monkeypatch, prepared):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    assert cli.main(["train", "--config", PATH, "--workdir", str(tmp_path / "run"), "--dry-run", *prepared]) == 0
    printed = capsys.readouterr().out
    assert "worker_6" in printed and "mesh.tensor=8" in printed and "64.04" in printed
    assert not (tmp_path / "run").exists()
