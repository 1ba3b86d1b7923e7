"""Config files: every key has a default, unknown keys and values are refused in one line, overrides are typed."""

import copy
import dataclasses
import importlib
import pathlib
import sys

import pytest

from rw import config as configs
from rw.errors import ConfigError, DataError
from rw.learner.checkpoint import config_changes
from rw.questions import held_out_queries, query_batches
from rw.run_config import MAY_CHANGE, WORKER_MAY_CHANGE
from rw.workers.config import WorkerEndpoint

ROOT = pathlib.Path(__file__).parent.parent.parent
TINY = str(ROOT / "tests" / "data" / "configs" / "tiny.py")


def test_defaults_are_the_papers_run():
    config = configs.freeze(configs.default_config().to_dict())
    assert (config.steps, config.queries_per_batch, config.rollouts_per_query) == (90, 32, 8)
    assert (config.optimizer.learning_rate, config.optimizer.b1, config.optimizer.b2) == (1e-6, 0.9, 0.999)
    assert (config.optimizer.epsilon, config.optimizer.weight_decay, config.optimizer.clip_norm) == (1e-8, 0.01, 1.0)
    assert (config.sampling.temperature, config.sampling.top_p) == (0.8, 0.95)
    assert (config.loss.clip_low, config.loss.clip_high, config.loss.dual_clip) == (0.2, 0.2, 3.0)
    assert (config.loss.kl_coefficient, config.support.coefficient, config.support.floor) == (0.001, 0.002, 0.05)
    assert (config.schedule.cold_batches, config.schedule.autonomous_from) == (25, 75)
    assert config.reward.reference_cost_usd == 0.0070716653
    assert (config.protocol.prompt_limit, config.protocol.response_budget) == (6144, 12288)
    assert (config.protocol.mode_turn_limit, config.protocol.observation_limit) == (64, 2048)
    assert (config.model.n_layers, config.model.d_model, config.model.head_dim) == (36, 2560, 128)
    assert config.model.rope_theta == 5e6


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.py")), ids=lambda path: path.name)
def test_shipped_configs_load(path):
    assert configs.load_config(str(path)).steps >= 1


@pytest.mark.parametrize("name", ["validation_queries", "test_queries"])
def test_no_more_recorded_questions_are_evaluated_than_are_held_out(name):
    recorded = [("data.source", "nq6"), ("workers.kind", "replay"), ("evaluation.arms", "('trained',)")]
    with pytest.raises(ConfigError, match=rf"evaluation.{name}=7 is more than data.{name}=6, which are held out"):
        configs.load_config(TINY, [*recorded, (f"data.{name}", "6"), (f"evaluation.{name}", "7")])


def test_a_draw_of_recorded_test_questions_is_refused():
    recorded = [("data.source", "nq6"), ("workers.kind", "replay"), ("evaluation.arms", "('trained',)")]
    with pytest.raises(ConfigError, match="evaluation.test_seed draws simulated questions only"):
        configs.load_config(TINY, [*recorded, ("evaluation.test_seed", "1")])


def test_evaluation_never_sees_a_training_question():
    config = configs.load_config(str(ROOT / "configs" / "quickstart.py"), [("evaluation.test_queries", "2000")])
    validation, test = held_out_queries(config)
    assert (len(validation), len(test)) == (200, 2000)
    trained = {query.prompt for b in range(180) for query in query_batches(config)(b, 16)}
    assert len({query.prompt for query in (*validation, *test)} | trained) == 2200 + len(trained)


def test_more_test_questions_than_the_world_has_are_refused():
    config = configs.load_config(str(ROOT / "configs" / "quickstart.py"), [("evaluation.test_queries", "5000")])
    with pytest.raises(DataError, match="5000 different test questions of the simulated world: there are at most"):
        held_out_queries(config)


def test_mappings_are_overridden_whole():
    config = configs.load_config(TINY, [("budget.workers_usd", "{'worker_1': 0.5}")])
    assert dict(config.budget.workers_usd) == {"worker_1": 0.5}
    with pytest.raises(ConfigError, match="config.budget.workers_usd='0.5' must be|budget.workers_usd=0.5 must be"):
        configs.load_config(TINY, [("budget.workers_usd", "0.5")])


def test_overrides_take_the_type_of_their_key():
    config = configs.load_config(
        TINY,
        [
            ("steps", "7"),
            ("optimizer.learning_rate", "1"),
            ("deterministic", "false"),
            ("data.source", "nq6"),
            ("workers.kind", "replay"),
            ("rollout.deadline_s", "None"),
            ("warmstart.mode_prior", "(0.98, 0.01, 0.01)"),
            ("client.call_deadline_s", "None"),
        ],
    )
    assert config.steps == 7 and config.deterministic is False and config.data.source == "nq6"
    assert config.optimizer.learning_rate == 1.0 and isinstance(config.optimizer.learning_rate, float)
    assert config.warmstart.mode_prior == (0.98, 0.01, 0.01)
    assert config.client.call_deadline_s is None and config.rollout.deadline_s is None


@pytest.mark.parametrize(
    ("key", "text", "says"),
    [
        ("stps", "7", "unknown config key config.stps; did you mean 'steps'?"),
        ("loss.kl_coeficient", "7", "did you mean 'kl_coefficient'?"),
        ("los.kl_coefficient", "7", "did you mean 'loss'?"),
        ("steps.foo", "7", "unknown config key config.steps.foo"),
        ("steps", "seven", "config.steps='seven' is not of type int"),
        ("steps", "2.5", "config.steps=2.5 must be of type int"),
        ("steps", "True", "config.steps=True must be of type int"),
        ("steps", "0", "steps=0 must be at least 1"),
        ("loss", "7", "config.loss is a section"),
        ("warmstart.forced_share", "1.0", "warmstart.forced_share=1.0 must lie in [0, 1)"),
        ("evaluation.every", "-1", "evaluation.every=-1 must be at least 0"),
        ("evaluation.validation_queries", "-1", "evaluation.validation_queries=-1 must be at least 0"),
        ("evaluation.arms", "('trained', 'best')", "evaluation.arms='best' is not one of trained, warm_start, forced"),
        ("evaluation.arms", "('knn',)", "knn cannot be had with workers.kind='simulated'"),
        ("workers.kind", "real", "workers.kind='real' is not one of simulated, replay, http"),
        ("workers.kind", "http", "kind 'http' needs at least one endpoint"),
        ("init.source", "params", "needs init.path"),
        ("init.path", "quickstart", "names parameters that come with rw: set init.source='params'"),
        ("reward.efficiency_weight", "1.5", "reward.efficiency_weight=1.5 must lie in [0, 1]"),
        ("reward.reference_cost_usd", "0", "must be > 0"),
        ("schedule.autonomous_from", "0", "need 0 <= cold_batches <= autonomous_from"),
        ("warmstart.mode_prior", "(1, 1, 1)", "three shares"),
        ("model.n_kv_heads", "3", "model.n_kv_heads=3"),
        ("model.attention", "cudnn", "model.attention='cudnn' does not compute in float32: set model.compute_dtype"),
        ("batch.packing", "all", "batch.packing='all' is not one of none, packed, shared"),
        ("protocol.prompt_limit", "65", "batch.length_buckets=(384,) ends below"),
        ("batch.length_buckets", "(1024, 383)", "in ascending order"),
        ("seed", "-1", "seed=-1 must be at least 0"),
        ("seed", "4294967296", "seed=4294967296 and warmstart.seed=0 must be below 2^32"),
        ("support.coefficient", "-1", "support.coefficient=-1.0 must be at least 0"),
        ("optimizer.learning_rate", "-1", "optimizer.learning_rate=-1.0 must be a number of at least 0"),
        ("checkpoint.every", "0", "checkpoint.every=0 must be at least 1"),
        ("checkpoint.keep", "0", "checkpoint.keep=0 must be at least 1"),
        ("log.trajectories_every", "-1", "log.trajectories_every=-1 must be at least 0"),
        ("data.test_queries", "-1", "data.test_queries=-1 must be at least 0"),
        ("warmstart.steps", "0", "warmstart.steps=0 must be at least 1"),
        ("warmstart.queries_per_batch", "0", "warmstart.queries_per_batch=0 must be at least 1"),
        ("workers.latency_s", "-0.1", "workers.latency_s=-0.1 must be at least 0"),
        ("workers.lost_call_rate", "-0.1", "workers.lost_call_rate=-0.1 must lie in [0, 1]"),
        ("workers.fault_rate", "2", "workers.fault_rate=2.0 must lie in [0, 1]"),
        (
            "workers.file",
            "w.yaml",
            "workers.file='w.yaml' with workers.kind='simulated': set config.workers.k",
        ),
        ("workers.cassette_mode", "play", "workers.cassette_mode='play' is not one of off, record, replay"),
        ("workers.cassette_mode", "record", "workers.cassette_mode='record' with workers.cassette='': set both"),
        ("workers.cassette", "a.jsonl", "workers.cassette_mode='off' with workers.cassette='a.jsonl': set both"),
        ("workers.allow_live", "true", "(--allow-live) is for workers.cassette_mode='replay'; it is 'off'"),
        ("rollout.concurrency", "0", "rollout.concurrency=0 must be at least 1"),
        ("rollout.deadline_s", "0", "rollout.deadline_s=0.0 must be > 0"),
        ("rollout.scorer_timeout_s", "-1", "rollout.scorer_timeout_s=-1.0 must be > 0"),
        ("data.source", "nq6", "workers.kind='simulated' cannot answer the questions of data.source='nq6'"),
        ("workers.kind", "replay", "workers.kind='replay' cannot answer the questions of data.source='simulated'"),
    ],
)
def test_illegal_overrides_are_refused_in_one_line(key, text, says):
    with pytest.raises(ConfigError) as error:
        configs.load_config(TINY, [(key, text)])
    assert says in str(error.value) and "\n" not in str(error.value)


def test_packed_rows_are_refused_where_attention_would_mix_them():
    overrides = [("model.compute_dtype", "bfloat16"), ("model.head_dim", "16"), ("batch.packing", "packed")]
    for name in ("chunked_xla", "splash", "pallas_gpu"):
        assert configs.load_config(TINY, [*overrides, ("model.attention", name)]).batch.packing == "packed"
    with pytest.raises(ConfigError, match="'cudnn' with batch.packing='packed': .*set batch.packing='none'"):
        configs.load_config(TINY, [*overrides, ("model.attention", "cudnn")])


def test_config_files_that_cannot_be_used(tmp_path):
    with pytest.raises(ConfigError, match="no config file at"):
        configs.load_config(str(tmp_path / "none.py"))
    invents = tmp_path / "invents.py"
    invents.write_text(
        "from rw.config import default_config\n"
        "def get_config():\n    config = default_config()\n    config.loss.kl_coeff = 1\n    return config\n"
    )
    with pytest.raises(ConfigError, match="^unknown config key config.loss.kl_coeff; did you mean 'kl_coefficient'.$"):
        configs.load_config(str(invents))
    forgets = tmp_path / "forgets.py"
    forgets.write_text("def get_config():\n    pass\n")
    with pytest.raises(ConfigError, match="returned NoneType; it must return the ConfigDict"):
        configs.load_config(str(forgets))
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    with pytest.raises(ConfigError, match="get_config"):
        configs.load_config(str(empty))
    broken = tmp_path / "broken.py"
    broken.write_text("def get_config(:\n")
    with pytest.raises(ConfigError, match="broken.py"):
        configs.load_config(str(broken))


def test_endpoints_come_from_plain_dicts():
    plain = configs.as_dict(configs.load_config(TINY))
    plain["workers"] |= {
        "kind": "http",
        "endpoints": [
            {"id": "w", "description": "d", "base_url": "http://localhost:1/v1", "model": "m", "input_price": 1}
        ],
    }
    plain["evaluation"]["arms"] = ["trained"]
    (endpoint,) = configs.freeze(plain).workers.endpoints
    assert endpoint.id == "w" and endpoint.input_price == 1.0 and endpoint.key_env is None
    plain["workers"]["endpoints"][0]["modle"] = "m"
    with pytest.raises(ConfigError, match=r"workers.endpoints\[0\].modle; did you mean 'model'"):
        configs.freeze(plain)


HTTP = [("workers.kind", "http"), ("evaluation.arms", "('trained',)")]


def test_workers_come_from_a_yaml_file(monkeypatch):
    monkeypatch.chdir(ROOT)
    config = configs.load_config(TINY, [*HTTP, ("workers.file", "configs/workers/paper_six.yaml")])
    assert [endpoint.id for endpoint in config.workers.endpoints] == [f"worker_{i}" for i in range(1, 7)]
    assert config.workers.file == ""  # what a run records is what was in it
    assert configs.freeze(configs.as_dict(config)) == config


def test_workers_of_a_file_and_of_the_config_are_refused_together(monkeypatch):
    monkeypatch.chdir(ROOT)
    plain = configs.as_dict(configs.load_config(TINY))
    plain["workers"] |= {"kind": "http", "file": "configs/workers/paper_six.yaml", "endpoints": [{"id": "w"}]}
    with pytest.raises(ConfigError, match="workers.file=.* and config.workers.endpoints are both set; leave one out"):
        configs.freeze(plain)
    with pytest.raises(ConfigError, match="no file of Workers at 'none.yaml'"):
        configs.load_config(TINY, [*HTTP, ("workers.file", "none.yaml")])


def test_scorers_of_ones_own_are_recorded_with_what_they_do(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    config, recorded = configs.load_config(TINY, [("scoring.own", "('lengths=my_lengths:close',)")]), []
    for tolerance in (0.5, 0.25):
        (tmp_path / "my_lengths.py").write_text(f"T = {tolerance}\ndef close(a, q):\n    return float(a) < T\n")
        monkeypatch.delitem(sys.modules, "my_lengths", raising=False)
        importlib.invalidate_caches()
        recorded.append(configs.as_dict(config))
    assert recorded[0]["scoring"]["own"][0].startswith("lengths=my_lengths:close@")
    assert [change.partition(":")[0] for change in config_changes(*recorded, MAY_CHANGE)] == ["scoring.own"]


def test_what_may_change_of_a_worker_is_there():
    assert set(WORKER_MAY_CHANGE) < {field.name for field in dataclasses.fields(WorkerEndpoint)}


def test_what_a_worker_is_asked_stays_and_how_it_is_reached_may_change(monkeypatch):
    monkeypatch.chdir(ROOT)
    old = configs.as_dict(configs.load_config(TINY, [*HTTP, ("workers.file", "configs/workers/paper_six.yaml")]))
    new = copy.deepcopy(old)
    first = new["workers"]["endpoints"][0]
    first |= {"base_url": "http://elsewhere:1/v1", "key_env": "OTHER_KEY", "max_concurrent": 1}
    assert config_changes(old, new, MAY_CHANGE) == []
    asked = {
        "model": "m",
        "description": "d",
        "input_price": 9.0,
        "extra_body": {"a": 1},
        "temperature": 1.0,
        "seed": 1,
    }
    for name, value in asked.items():
        changed = copy.deepcopy(new)
        changed["workers"]["endpoints"][0][name] = value
        (change,) = config_changes(old, changed, MAY_CHANGE)
        assert change.startswith(f"workers.endpoints.worker_1.{name}: ")
