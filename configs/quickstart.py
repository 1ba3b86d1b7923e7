"""A tiny router learns on a laptop: simulated Workers, no key, no GPU, no spend.

    rw train --config configs/quickstart.py --workdir runs/quickstart

Two CPU cores. It begins with the warm start that comes with rw (`launch/quickstart.sh --rebuild` makes one anew, from
random weights) and ends with a report. The Workers are programs that answer over real HTTP on loopback: six of them,
good at different things, at different prices.

What differs from the paper's constants, and why:
- 2 layers of width 96 from scratch instead of Qwen3-4B: it must learn in minutes, so the learning rate is 3e-4, not
  1e-6.
- top-p 1.0, not 0.95: a mode whose share falls under 5 % can drop out of the nucleus and is then never sampled again.
- KL 0.03, support coefficient 0.3 and floor 0.10 instead of 0.001, 0.002 and 0.05: against settling on the mode that
  is best on average before the query is read. Chosen together; which of the three is needed was not separated.
- 16 queries a batch, 180 steps: cold start 20, transition to 120.
- agentic_rules "paper": a summarizer is not compulsory, and the same route may stand twice in a layer.
- the reference cost is this world's own, about the 95th percentile of a trajectory's cost.
"""

from rw.config import default_config


def get_config():
    config = default_config()
    config.steps = 180
    config.queries_per_batch = 16

    config.data.source = "simulated"
    config.workers.kind = "simulated"
    config.tokenizer.path = "quickstart"
    config.model.update(
        vocab_size=1344, d_model=96, n_layers=2, n_heads=2, n_kv_heads=1, head_dim=48, d_ff=192, rope_theta=1e4
    )  # wide heads: normalised queries and keys reach logits of sqrt(head_dim), and copying needs sharp attention
    config.model.attention = "chunked_xla"  # the faster one on CPU
    config.model.remat = "none"

    config.init.source = "params"
    config.init.path = "quickstart"
    config.warmstart.policy = "habits"
    config.warmstart.steps = 240  # copying the answer of the last reply forms late, around step 120
    config.warmstart.learning_rate = 8e-3

    config.protocol.templates = "short"
    config.protocol.agentic_rules = "paper"
    config.protocol.prompt_limit = 96
    config.protocol.response_budget = 480  # the best team for a search, seven calls, takes 470
    config.protocol.observation_limit = 48
    config.protocol.mode_turn_limit = 16

    config.sampling.top_p = 1.0
    config.optimizer.learning_rate = 3e-4
    config.loss.kl_coefficient = 0.03
    config.support.coefficient = 0.3
    config.support.floor = 0.10
    config.schedule.cold_batches = 20
    config.schedule.autonomous_from = 120
    config.reward.reference_cost_usd = 3.3e-5

    config.engine.slots = 128
    config.engine.lengths = (256, 576)
    config.engine.prefill_chunk = 32
    config.batch.micro_batch = 1  # the fastest: a row alone skips all that its own tokens do not see
    config.batch.packing = "shared"  # nearly half of a rollout's tokens are its prompt
    config.batch.length_buckets = (192, 576)
    config.batch.policy_buckets = (128, 256)
    config.rollout.concurrency = 128
    config.checkpoint.every = 20
    config.evaluation.every = 20
    config.evaluation.validation_queries = 200
    config.evaluation.test_queries = 600
    config.evaluation.arms = ("trained", "warm_start", "forced", "scripted", "random", "oracle")
    config.log.trajectories_every = 10
    return config
