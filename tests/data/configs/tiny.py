"""The smallest real run: simulated Workers over HTTP, a warm start of a few steps, one shape of each kind."""

from rw.config import default_config


def get_config():
    config = default_config()
    config.steps = 4
    config.queries_per_batch = 6
    config.rollouts_per_query = 4
    config.deterministic = True

    config.tokenizer.path = "quickstart"
    config.model.update(
        vocab_size=1344, d_model=48, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=12, d_ff=96, rope_theta=1e4
    )
    config.model.attention = "chunked_xla"  # the faster one on CPU
    config.model.remat = "none"
    config.warmstart.steps = 50
    config.warmstart.queries_per_batch = 24
    config.warmstart.learning_rate = 1e-2
    config.warmstart.mode_prior = (0.4, 0.3, 0.3)

    config.protocol.templates = "short"
    config.protocol.agentic_rules = "paper"
    config.protocol.prompt_limit = 64
    config.protocol.response_budget = 320
    config.protocol.observation_limit = 32
    config.protocol.mode_turn_limit = 12

    config.engine.slots = 24
    config.engine.lengths = (384,)
    config.engine.decode_widths = (24,)
    config.engine.prefill_rows = (4,)
    config.engine.prefill_chunk = 32
    config.sampling.top_p = 1.0
    config.optimizer.learning_rate = 1e-3
    config.schedule.cold_batches = 1
    config.schedule.autonomous_from = 4
    config.support.coefficient = 0.3
    config.support.floor = 0.3  # high enough for the term to act in a few steps
    config.reward.reference_cost_usd = 3.3e-5
    config.reward.efficiency_weight = 0.1

    config.batch.micro_batch = 8
    config.batch.length_buckets = (384,)
    config.batch.policy_buckets = (128,)
    config.rollout.concurrency = 24
    config.checkpoint.every = 1
    config.evaluation.every = 2
    config.evaluation.validation_queries = 5
    config.evaluation.test_queries = 10
    config.evaluation.arms = ("trained", "warm_start", "forced", "scripted", "oracle")
    config.log.tensorboard = False
    return config
