"""What a run depends on: one frozen dataclass a section, each with the paper's values (its Appendix C.3) as defaults.

Sections that belong to a room are defined there. Every dataclass refuses values that no run can have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rw.core.losses import LossConfig
from rw.core.schedule import ScheduleConfig
from rw.data.config import DataConfig
from rw.errors import ConfigError
from rw.learner.batch import BatchConfig
from rw.learner.optimizer import OptimizerConfig
from rw.learner.streaming import REGIMES
from rw.model.attention import check_config
from rw.model.config import ModelConfig
from rw.protocol.config import ProtocolConfig
from rw.rollout.credit import CreditConfig
from rw.sampler.engine import EngineConfig
from rw.sampler.interface import SamplingConfig
from rw.scoring.config import ScoringConfig
from rw.types import RETRY_COSTS
from rw.workers.budget import BudgetConfig
from rw.workers.config import ClientConfig, WorkerEndpoint

# Of a Worker: where it is, how it is reached and how fast. None of it changes what is asked or what an answer costs.
WORKER_MAY_CHANGE = (
    "base_url", "key_env", "key_file", "max_concurrent", "requests_per_minute", "tokens_per_minute", "stream"
)  # fmt: skip

# Where and how the same numbers are computed, up to rounding: a run may go on on other machines.
PLACEMENT = (
    "mesh.*",
    "regime",
    "batch.micro_batch",
    "batch.packing",
    "model.attention",
    "model.attention_chunk",
    "model.remat",
)

# Keys in which a continued run may differ from the one that made its checkpoints.
MAY_CHANGE = (
    "steps", "journal.*", "checkpoint.*", "evaluation.*", "log.*", "rollout.*", "client.*", "budget.*",
    "workers.latency_*", "workers.fault_rate", "workers.lost_call_rate", "workers.file", "workers.cassette*",
    "workers.allow_live", "data.test_files", "data.held_out_files", "scoring.allow_weak_sandbox", *PLACEMENT,
    *(f"workers.endpoints.*.{name}" for name in WORKER_MAY_CHANGE),
)  # fmt: skip

# Which workers.kind can answer the questions of which data.source.
ANSWERED_BY = {"simulated": ("simulated", "http"), "nq6": ("replay", "http"), "files": ("http",)}

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
class TokenizerConfig:
    """The router's tokenizer: `qwen3`, `quickstart`, or the path of a tokenizer.json (.xz allowed)."""

    path: str = "qwen3"


@dataclasses.dataclass(frozen=True)
class InitConfig:
    """Where the initial router comes from; it is also the frozen reference of the KL term."""

    source: str = "warmstart"  # warmstart: made by `rw warmstart`, run first if missing | random | params: a directory
    path: str = ""  # of saved parameters or a Hugging Face Qwen3; `quickstart`: rw's own; empty: <workdir>/warmstart

    def __post_init__(self):
        require_one_of("init.source", self.source, ("warmstart", "random", "params"))
        if self.source == "params" and not self.path:
            raise ConfigError(
                "init.source='params' needs init.path, a directory of saved parameters or of Hugging Face; it is empty"
            )
        if self.source == "warmstart" and self.path == "quickstart":
            raise ConfigError("init.path='quickstart' names parameters that come with rw: set init.source='params'")


@dataclasses.dataclass(frozen=True)
class WarmstartConfig:
    """Supervised training on trajectories of scripted routers, run through the same episodes."""

    policy: str = "habits"  # habits: simulated world | opinions: any question set | drills: random words, any run
    copying: str = "learnt"  # learnt: from random weights | wired: begins with heads set by hand (rw/model/copying.py)
    steps: int = 170
    queries_per_batch: int = 64
    learning_rate: float = 2e-3
    mode_prior: tuple[float, ...] = ()  # single, multi, agentic; empty: the policy's own habits
    forced_share: float = 0.0  # of demonstrations with an assigned mode: they teach every mode, and none to declare
    seed: int = 0

    def __post_init__(self):
        require_one_of("warmstart.policy", self.policy, ("habits", "opinions", "drills"))
        require_one_of("warmstart.copying", self.copying, ("learnt", "wired"))
        _require_at_least(self, "warmstart.", 1, "steps", "queries_per_batch")
        _require_at_least(self, "warmstart.", 0, "seed")
        if not 0 <= self.forced_share < 1:
            raise ConfigError(f"warmstart.forced_share={self.forced_share} must lie in [0, 1): 1 teaches no mode turn")
        prior = self.mode_prior
        if prior and (len(prior) != 3 or min(prior) < 0 or abs(sum(prior) - 1) > 1e-6):
            raise ConfigError(f"warmstart.mode_prior={prior} must be empty or three shares >= 0 that sum to 1")


@dataclasses.dataclass(frozen=True)
class WorkersConfig:
    """Which Workers answer: a simulated or replayed pool on loopback, or real endpoints."""

    kind: str = "simulated"  # simulated | replay | http
    endpoints: tuple[WorkerEndpoint, ...] = ()  # http only
    file: str = ""  # http only, instead of endpoints: a YAML file of them, which is read when the config is
    world_seed: int = 0  # simulated only
    latency_s: float = 0.0  # simulated and replay: mean of a lognormal latency a call; 0 answers at once
    latency_seed: int = 0
    fault_rate: float = 0.0  # simulated and replay: share of attempts that fail with a 500
    lost_call_rate: float = 0.0  # simulated and replay: share of calls that fail whatever is tried
    cassette: str = ""  # file in which calls are recorded or from which they are replayed
    cassette_mode: str = "off"  # off | record | replay: replies come from the cassette, and nothing is spent
    allow_live: bool = False  # replay only: a call that the cassette lacks is asked and paid for, and recorded

    def __post_init__(self):
        require_one_of("workers.kind", self.kind, ("simulated", "replay", "http"))
        if self.file:
            raise ConfigError(f"workers.file={self.file!r} has not been read: rw.config.freeze does that")
        if (self.kind == "http") != bool(self.endpoints):
            raise ConfigError(
                f"workers.kind={self.kind!r} with {len(self.endpoints)} workers.endpoints: "
                "kind 'http' needs at least one endpoint, the other kinds bring their own"
            )
        self._check_cassette()
        _require_at_least(self, "workers.", 0, "world_seed", "latency_s")
        for name in ("fault_rate", "lost_call_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"workers.{name}={getattr(self, name)} must lie in [0, 1]")

    def _check_cassette(self) -> None:
        require_one_of("workers.cassette_mode", self.cassette_mode, ("off", "record", "replay"))
        if (self.cassette_mode != "off") != bool(self.cassette):
            raise ConfigError(
                f"workers.cassette_mode={self.cassette_mode!r} with workers.cassette={self.cassette!r}: set both, the "
                "mode to record or replay and the path of a file"
            )
        if self.allow_live and self.cassette_mode != "replay":
            raise ConfigError(
                f"workers.allow_live (--allow-live) is for workers.cassette_mode='replay'; it is {self.cassette_mode!r}"
            )


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    """Eq. 5 and Eq. 7."""

    reference_cost_usd: float = 0.0070716653  # C_ref, Appendix C.1
    reference_cost_file: str = ""  # instead: what `rw calibrate` wrote, which is read when the config is
    efficiency_weight: float = 0.0  # α
    retry_cost: str = "accepted"  # C(τ): of accepted attempts | reported: and of rejected ones that reported usage

    def __post_init__(self):
        require_one_of("reward.retry_cost", self.retry_cost, RETRY_COSTS)
        if self.reference_cost_file:
            raise ConfigError(
                f"reward.reference_cost_file={self.reference_cost_file!r} has not been read: rw.config.freeze does that"
            )
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
class RolloutConfig:
    """Episodes: how many at once and for how long."""

    concurrency: int = 256  # each keeps its cache meanwhile (engine.kv_bytes)
    deadline_s: float | None = 1800.0  # wall clock a rollout; None: no limit; not applied with deterministic=True
    scorer_timeout_s: float = 60.0  # beyond a scorer's own limits: one that takes longer is at fault, not the answer
    scorer_processes: int | None = None  # that score side by side; None: half of the cores, and 2 at least
    max_lost: float = 0.5  # share of a batch's rollouts lost to infrastructure beyond which the run stops; 1: never

    def __post_init__(self):
        _require_at_least(self, "rollout.", 1, "concurrency", "scorer_processes")
        if not 0 <= self.max_lost <= 1:
            raise ConfigError(f"rollout.max_lost={self.max_lost} must lie in [0, 1]")
        for name in ("deadline_s", "scorer_timeout_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"rollout.{name}={value} must be > 0")


@dataclasses.dataclass(frozen=True)
class JournalConfig:
    """The record from which a killed run goes on in mid-step. It cannot be switched off: it keeps what was paid for."""

    segment_s: float = 5.0  # what a lost machine, or a bucket as workdir, can lose; a killed process loses nothing

    def __post_init__(self):
        if not self.segment_s > 0:
            raise ConfigError(f"journal.segment_s={self.segment_s} must be > 0")


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When to save and how many to keep."""

    every: int = 10
    keep: int = 3

    def __post_init__(self):
        _require_at_least(self, "checkpoint.", 1, "every", "keep")


ARMS = ("trained", "warm_start", "forced", "scripted", "random", "oracle", "knn")


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Greedy evaluation: on validation questions while training, of the best router on test questions at the end."""

    every: int = 10  # steps between two validations; 0: none, and the last router counts as the best
    validation_queries: int = 40  # 0: as every=0
    test_queries: int = 120  # 0: no final evaluation
    test_seed: int | None = None  # simulated: draw of the test questions; None: the run's seed
    arms: tuple[str, ...] = ("trained", "warm_start", "forced")  # who answers the test questions: of ARMS
    router_input_price: float | None = None  # USD per million of the router's own tokens, for reports; None: unpriced
    router_output_price: float | None = None

    def __post_init__(self):
        _require_at_least(self, "evaluation.", 0, "every", "validation_queries", "test_queries", "test_seed")
        _require_at_least(self, "evaluation.", 0, "router_input_price", "router_output_price")
        for arm in self.arms:
            require_one_of("evaluation.arms", arm, ARMS)

    @property
    def validates(self) -> bool:
        """Whether routers are validated while they are trained."""
        return bool(self.every and self.validation_queries)


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """What a run writes beside its checkpoints."""

    tensorboard: bool = True
    wandb: str = ""  # project on Weights & Biases that the rows go to, too; "": nothing is sent
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

    def __post_init__(self):
        _require_at_least(self, "mesh.", 1, "data", "fsdp", "tensor")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything a training run depends on."""

    seed: int = 0
    steps: int = 90
    queries_per_batch: int = 32
    rollouts_per_query: int = 8
    deterministic: bool = False
    regime: str = "collect"  # collect: the update begins when all rollouts have ended | stream: with the first group
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
    budget: BudgetConfig = BudgetConfig()
    rollout: RolloutConfig = RolloutConfig()
    scoring: ScoringConfig = ScoringConfig()
    credit: CreditConfig = CreditConfig()
    reward: RewardConfig = RewardConfig()
    advantage: AdvantageChoice = AdvantageChoice()
    loss: LossConfig = LossConfig()
    support: SupportConfig = SupportConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    batch: BatchConfig = BatchConfig()
    journal: JournalConfig = JournalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    log: LogConfig = LogConfig()
    mesh: MeshConfig = MeshConfig()

    def __post_init__(self):
        _require_at_least(self, "", 1, "steps", "queries_per_batch", "rollouts_per_query")
        _require_at_least(self, "", 0, "seed")
        require_one_of("regime", self.regime, REGIMES)
        if max(self.seed, self.warmstart.seed) >= 2**32:
            raise ConfigError(f"seed={self.seed} and warmstart.seed={self.warmstart.seed} must be below 2^32")
        if self.workers.kind not in ANSWERED_BY[self.data.source]:
            raise ConfigError(
                f"workers.kind={self.workers.kind!r} cannot answer the questions of data.source={self.data.source!r}: "
                f"it must be {' or '.join(map(repr, ANSWERED_BY[self.data.source]))}"
            )
        self.data.check_batch(self.queries_per_batch)
        if self.rollout.scorer_timeout_s < 4 * self.scoring.math_s:
            raise ConfigError(
                f"rollout.scorer_timeout_s={self.rollout.scorer_timeout_s:g} is less than four times scoring.math_s="
                f"{self.scoring.math_s:g}: a slow answer would be lost where it must count as wrong; raise it"
            )
        check_arms(self)
        check_config(self.model, packed=self.batch.packing == "packed")
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


def check_arms(config: RunConfig) -> None:
    """Raises ConfigError for arms of the final evaluation that nobody can answer for, for more questions than are held
    out, and for a draw that would draw nothing."""
    known = {"simulated": {"scripted", "random", "oracle"}, "replay": {"scripted", "random", "oracle", "knn"}}
    baselines = set(config.evaluation.arms) - {"trained", "warm_start", "forced"}
    if unknown := sorted(baselines - known.get(config.workers.kind, set())):
        raise ConfigError(
            f"evaluation.arms={config.evaluation.arms}: {', '.join(unknown)} cannot be had with workers.kind="
            f"{config.workers.kind!r}; leave it out"
        )
    if config.data.source != "simulated" and config.evaluation.test_seed is not None:
        raise ConfigError(
            "evaluation.test_seed draws simulated questions only; set data.split_seed (nq6) or data.test_files (files)"
        )
    for name in ("validation_queries", "test_queries"):
        wanted = getattr(config.evaluation, name)
        if not wanted or not (name == "test_queries" or config.evaluation.validates):
            continue
        if config.data.source == "nq6" and wanted > (held_out := getattr(config.data, name)):
            raise ConfigError(f"evaluation.{name}={wanted} is more than data.{name}={held_out}, which are held out")
        files, off = name.replace("queries", "files"), "every" if name == "validation_queries" else name
        if config.data.source == "files" and not getattr(config.data, files):
            raise ConfigError(f"evaluation.{name}={wanted} without data.{files}: name some, or set evaluation.{off}=0")
