"""Configuration at the edge: a Python file with `get_config()`, `--config.a.b=value` on top, frozen dataclasses inside.

A config file starts from `default_config()`, which holds every key with the paper's value (its Appendix C.3), and sets
what differs. An unknown key, wherever it is written, is refused with the nearest known one. This module and the entries
are all that knows ml_collections; each room defines its own dataclass.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import hashlib
import importlib.util
import json
import pathlib
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import ml_collections

from rw.core.losses import LossConfig
from rw.errors import ConfigError
from rw.learner.batch import BatchConfig
from rw.learner.optimizer import OptimizerConfig
from rw.model.config import ModelConfig
from rw.protocol.config import ProtocolConfig
from rw.sampler.engine import EngineConfig
from rw.sampler.interface import SamplingConfig
from rw.workers.config import ClientConfig, WorkerEndpoint

QWEN3_4B = ModelConfig(
    vocab_size=151_936,
    d_model=2560,
    n_layers=36,
    n_heads=32,
    n_kv_heads=8,
    head_dim=128,
    d_ff=9728,
    rope_theta=5e6,
)


def require_one_of(key: str, value: str, allowed: Iterable[str]) -> None:
    """Raises ConfigError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ConfigError(f"{key}={value!r} is not one of {', '.join(allowed)}")


def _require_at_least(section: object, path: str, least: float, *names: str) -> None:
    """Raises ConfigError unless these fields of a section are `least` or more; None is no limit."""
    for name in names:
        value = getattr(section, name)
        if value is not None and not value >= least:
            raise ConfigError(f"{path}{name}={value} must be at least {least}")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which queries a run trains on."""

    source: str = "simulated"  # simulated | nq6
    split_seed: int = 0  # nq6: which questions are held out for testing
    test_queries: int = 120  # nq6: how many

    def __post_init__(self):
        require_one_of("data.source", self.source, ("simulated", "nq6"))
        _require_at_least(self, "data.", 0, "test_queries")


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """The router's tokenizer: `qwen3`, `quickstart`, or the path of a tokenizer.json (.xz allowed)."""

    path: str = "qwen3"


@dataclasses.dataclass(frozen=True)
class InitConfig:
    """Where the initial router comes from; it is also the frozen reference of the KL term."""

    source: str = (
        "warmstart"  # warmstart: made by `rw warmstart`, run first if missing | random | params: a saved directory
    )
    path: str = ""  # of the saved parameters; empty: <workdir>/warmstart

    def __post_init__(self):
        require_one_of("init.source", self.source, ("warmstart", "random", "params"))
        if self.source == "params" and not self.path:
            raise ConfigError("init.source='params' needs init.path, the directory of saved parameters; it is empty")


@dataclasses.dataclass(frozen=True)
class WarmstartConfig:
    """Supervised training on trajectories of scripted routers, run through the same episodes."""

    policy: str = "habits"  # habits: simulated world | opinions: any question set
    steps: int = 170
    queries_per_batch: int = 64
    learning_rate: float = 2e-3
    mode_prior: tuple[float, ...] = ()  # single, multi, agentic; empty: the policy's own habits
    seed: int = 0

    def __post_init__(self):
        require_one_of("warmstart.policy", self.policy, ("habits", "opinions"))
        _require_at_least(self, "warmstart.", 1, "steps", "queries_per_batch")
        _require_at_least(self, "warmstart.", 0, "seed")
        prior = self.mode_prior
        if prior and (len(prior) != 3 or min(prior) < 0 or abs(sum(prior) - 1) > 1e-6):
            raise ConfigError(f"warmstart.mode_prior={prior} must be empty or three shares >= 0 that sum to 1")


@dataclasses.dataclass(frozen=True)
class WorkersConfig:
    """Which Workers answer: a simulated or replayed pool on loopback, or real endpoints."""

    kind: str = "simulated"  # simulated | replay | http
    endpoints: tuple[WorkerEndpoint, ...] = ()  # http only
    world_seed: int = 0  # simulated only
    latency_s: float = 0.0  # simulated and replay: mean of a lognormal latency a call; 0 answers at once
    latency_seed: int = 0
    fault_rate: float = 0.0  # simulated and replay: share of attempts that fail with a 500

    def __post_init__(self):
        require_one_of("workers.kind", self.kind, ("simulated", "replay", "http"))
        if (self.kind == "http") != bool(self.endpoints):
            raise ConfigError(
                f"workers.kind={self.kind!r} with {len(self.endpoints)} workers.endpoints: "
                "kind 'http' needs at least one endpoint, the other kinds bring their own"
            )
        _require_at_least(self, "workers.", 0, "world_seed", "latency_s")
        if not 0 <= self.fault_rate <= 1:
            raise ConfigError(f"workers.fault_rate={self.fault_rate} must lie in [0, 1]")


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    """Eq. 5 and Eq. 7."""

    reference_cost_usd: float = 0.0070716653  # C_ref, Appendix C.1
    efficiency_weight: float = 0.0  # α

    def __post_init__(self):
        if not self.reference_cost_usd > 0:
            raise ConfigError(f"reward.reference_cost_usd={self.reference_cost_usd} must be > 0")
        if not 0 <= self.efficiency_weight <= 1:
            raise ConfigError(f"reward.efficiency_weight={self.efficiency_weight} must lie in [0, 1]")


@dataclasses.dataclass(frozen=True)
class AdvantageChoice:
    """The advantage function: a name of core.advantages.ADVANTAGES or `package.module:function`."""

    function: str = "comet"
    std_epsilon: float = 1e-6
    std_gate: float = 1e-4


@dataclasses.dataclass(frozen=True)
class SupportConfig:
    """Support term of the transition: λ_0 and δ."""

    coefficient: float = 0.002
    floor: float = 0.05

    def __post_init__(self):
        _require_at_least(self, "support.", 0, "coefficient")


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    """Progressive exploration by data-batch index b; `progressive=False` is the paper's ablation (ρ = 0 throughout)."""

    cold_batches: int = 25
    autonomous_from: int = 75
    progressive: bool = True

    def __post_init__(self):
        if not 0 <= self.cold_batches <= self.autonomous_from:
            raise ConfigError(
                f"schedule.cold_batches={self.cold_batches} and schedule.autonomous_from={self.autonomous_from}: "
                "need 0 <= cold_batches <= autonomous_from"
            )


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    """Episodes: how many at once and for how long."""

    concurrency: int = 256
    deadline_s: float | None = 1800.0  # wall clock a rollout; None: no limit; not applied with deterministic=True
    scorer_timeout_s: float = 60.0

    def __post_init__(self):
        _require_at_least(self, "rollout.", 1, "concurrency")
        for name in ("deadline_s", "scorer_timeout_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"rollout.{name}={value} must be > 0")


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When to save and how many to keep."""

    every: int = 10
    keep: int = 3

    def __post_init__(self):
        _require_at_least(self, "checkpoint.", 1, "every", "keep")


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """What a run writes beside its checkpoints."""

    tensorboard: bool = True
    trajectories_every: int = 1  # steps; 0 writes none
    trajectory_arrays: bool = True  # token ids, segments and log-probs, which notebooks need

    def __post_init__(self):
        _require_at_least(self, "log.", 0, "trajectories_every")


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Device mesh; all ones runs on one device."""

    data: int = 1
    fsdp: int = 1
    tensor: int = 1


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything a training run depends on."""

    seed: int = 0
    steps: int = 90
    queries_per_batch: int = 32
    rollouts_per_query: int = 8
    deterministic: bool = False
    data: DataConfig = DataConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = QWEN3_4B
    init: InitConfig = InitConfig()
    warmstart: WarmstartConfig = WarmstartConfig()
    protocol: ProtocolConfig = ProtocolConfig()
    sampling: SamplingConfig = SamplingConfig()
    engine: EngineConfig = EngineConfig()
    workers: WorkersConfig = WorkersConfig()
    client: ClientConfig = ClientConfig()
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig = RewardConfig()
    advantage: AdvantageChoice = AdvantageChoice()
    loss: LossConfig = LossConfig()
    support: SupportConfig = SupportConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    batch: BatchConfig = BatchConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    mesh: MeshConfig = MeshConfig()

    def __post_init__(self):
        _require_at_least(self, "", 1, "steps", "queries_per_batch", "rollouts_per_query")
        _require_at_least(self, "", 0, "seed")
        if max(self.seed, self.warmstart.seed) >= 2**32:
            raise ConfigError(f"seed={self.seed} and warmstart.seed={self.warmstart.seed} must be below 2^32")
        if self.workers.kind != "http" and (self.data.source == "simulated") != (self.workers.kind == "simulated"):
            raise ConfigError(
                f"workers.kind={self.workers.kind!r} cannot answer the questions of data.source={self.data.source!r}: "
                "'simulated' and 'simulated' belong together, and so do 'nq6' and 'replay' or 'http'"
            )
        longest = self.protocol.prompt_limit + self.protocol.response_budget
        for name, buckets in (
            ("batch.length_buckets", self.batch.length_buckets),
            ("engine.lengths", self.engine.lengths),
        ):
            if buckets[-1] < longest:
                raise ConfigError(
                    f"{name}={buckets} ends below protocol.prompt_limit + protocol.response_budget = {longest}: raise "
                    "its last value, or lower the limits"
                )


def default_config() -> ml_collections.ConfigDict:
    """Every key of a run with its default. A key that a config file invents is refused when the file is loaded."""
    return ml_collections.ConfigDict(_as_plain(RunConfig()), type_safe=False)


def load_config(path: str, overrides: Iterable[tuple[str, str]] = ()) -> RunConfig:
    """Reads `get_config()` of a Python file, applies `(dotted key, text)` overrides, checks and freezes."""
    file = pathlib.Path(path)
    if not file.is_file():
        raise ConfigError(f"no config file at {path!r}; the ones that ship with rw are in configs/")
    spec = importlib.util.spec_from_file_location(f"rw_config_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"config file {path!r} is not a Python file: it must end with .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config()
    except Exception as error:  # a user's code: whatever it raises, the file and the reason are what helps
        raise ConfigError(f"config file {path}: {type(error).__name__}: {_one_line(error)}") from error
    if not isinstance(config, ml_collections.ConfigDict):
        raise ConfigError(
            f"config file {path}: get_config() returned {type(config).__name__}; it must return the ConfigDict"
        )
    config = config.to_dict()
    for key, text in overrides:
        _override(config, key, text)
    return freeze(config)


def freeze(config: Mapping[str, Any]) -> RunConfig:
    """Nested mapping -> RunConfig; raises ConfigError on unknown keys and on values of another type."""
    return _build(RunConfig, config, "")


def fingerprint(config: RunConfig) -> str:
    """sha256 over the config as canonical JSON."""
    return hashlib.sha256(json.dumps(_as_plain(config), sort_keys=True).encode()).hexdigest()


def as_dict(config: RunConfig) -> dict[str, Any]:
    """The config as nested plain values, as checkpoints and config.json hold it."""
    return _as_plain(config)


def _as_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _as_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return tuple(_as_plain(item) for item in value)
    return dict(value) if isinstance(value, Mapping) else value


def _override(config: dict[str, Any], key: str, text: str) -> None:
    *parents, last = key.split(".")
    node: Any = config
    for depth, name in enumerate([*parents, last]):
        if not isinstance(node, dict) or name not in node:
            known = list(node) if isinstance(node, dict) else []
            raise ConfigError(_unknown_key(".".join([*parents, last][: depth + 1]), name, known))
        node = node[name] if depth < len(parents) else node
    node[last] = _parse(key, text, node[last])


def _parse(key: str, text: str, current: Any) -> Any:
    if isinstance(current, str):
        return text
    if isinstance(current, dict):
        raise ConfigError(f"config.{key} is a section; set one of its keys: {', '.join(current)}")
    try:
        return ast.literal_eval({"true": "True", "false": "False"}.get(text.lower(), text))
    except (ValueError, SyntaxError) as error:
        if current is None:
            return text
        raise ConfigError(f"config.{key}={text!r} is not of type {type(current).__name__}, like {current!r}") from error


def _build(cls: type, values: Mapping[str, Any], path: str) -> Any:
    hints = typing.get_type_hints(cls)
    for name in values:
        if name not in hints:
            raise ConfigError(_unknown_key(f"{path}{name}", name, hints))
    made = {name: _convert(hints[name], value, f"{path}{name}") for name, value in values.items()}
    try:
        return cls(**made)
    except TypeError as error:
        raise ConfigError(f"config.{path.rstrip('.')}: {_one_line(error)}") from error


def _convert(hint: Any, value: Any, key: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"config.{key}={value!r} must be a section with keys {list(typing.get_type_hints(hint))}")
        return _build(hint, value, f"{key}.")
    if origin is tuple and isinstance(value, (tuple, list)):
        return tuple(_convert(arguments[0], item, f"{key}[{i}]") for i, item in enumerate(value))
    if arguments and origin is not tuple and type(None) in arguments:
        return value if value is None else _convert(next(a for a in arguments if a is not type(None)), value, key)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    expected = origin or hint
    mismatch = isinstance(expected, type) and not isinstance(value, expected)
    if mismatch or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"config.{key}={value!r} must be of type {getattr(hint, '__name__', hint)}")
    return value


def _unknown_key(key: str, name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known keys there: {', '.join(known) or 'none'}"
    return f"unknown config key config.{key}; {hint}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
