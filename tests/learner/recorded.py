"""Three recorded steps and what fits them: a small router that every mesh of eight devices can hold, and its batches.

Steps 4, 6 and 7 of a run of the quickstart's router against the simulated Workers, as `rw train` wrote them. Of its
calls 5 % were lost, and a response had to fit into 240 tokens:

    rw train --config configs/quickstart.py --config.seed=2 --config.steps=7 --config.queries_per_batch=6 \\
        --config.rollouts_per_query=4 --config.schedule.cold_batches=0 --config.schedule.autonomous_from=9 \\
        --config.workers.lost_call_rate=0.05 --config.protocol.response_budget=240 --config.sampling.temperature=1.0 \\
        --config.reward.efficiency_weight=0.1 --config.optimizer.learning_rate=1e-5 --config.engine.slots=24 \\
        --config.deterministic=true --config.log.trajectories_every=1
"""

import functools
import pathlib

import rw.data
from rw.core.advantages import AdvantageConfig
from rw.core.losses import LossConfig
from rw.learner.batch import BatchConfig
from rw.learner.step import LearnerConfig
from rw.model.config import ModelConfig
from rw.protocol.chat import TokenCodec
from rw.protocol.config import ProtocolConfig
from rw.protocol.dialogue import RouterProtocol
from rw.protocol.prompts import Prompts
from rw.rollout.record import read_groups
from rw.types import Group, WorkerCard

FOLDER = pathlib.Path(__file__).parents[1] / "data" / "recorded_steps"
STEPS = 3
MODEL = ModelConfig(
    vocab_size=1344, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, d_ff=64, rope_theta=1e4, remat="none"
)
LEARNER = LearnerConfig(
    batch=BatchConfig(micro_batch=8, length_buckets=(288,), policy_buckets=(128,), logprob_chunk=64),
    loss=LossConfig(kl_coefficient=0.05),
    advantage=AdvantageConfig(efficiency_weight=0.1),
    reference_cost_usd=3.3e-5,
    support_floor=0.3,  # high enough for the term to act on a random router
    logprob_temperature=1.0,  # as they were sampled
)
SUPPORT = 0.4  # a coefficient λ_b that shows


def recorded_groups(step: int = 0) -> list[Group]:
    """Six queries of four rollouts, forced and free, in all modes, of 40 to 274 tokens, some of them excluded."""
    return read_groups(FOLDER / f"step_{step + 1}.jsonl.xz")


def recorded_mode_candidates(query):
    """What the support term scores of a recorded query: the protocol's own prompt and declarations."""
    return _protocol().mode_candidates(query)


@functools.cache
def _protocol() -> RouterProtocol:
    codec = TokenCodec.from_file(pathlib.Path(rw.data.__file__).parent / "files" / "quickstart_tokenizer.json")
    config = ProtocolConfig(prompt_limit=96, templates="short")
    return RouterProtocol(codec, Prompts.load("short"), [WorkerCard("worker_1", "math expert")], config)
