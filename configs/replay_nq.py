"""Real questions, the real Qwen3 tokenizer, and what six real models really answered: a tiny router, nothing to pay.

    rw train --config configs/replay_nq.py --workdir runs/replay_nq

Two CPU cores. The Workers replay recorded answers to 320 Natural Questions (see rw/data/files for source and licence)
over the HTTP path that live Workers take. A call is answered with what that model said to the original question,
whatever the sub-query, so multi and agentic add further opinions here and nothing else. Answers are judged by
TriviaQA's rule.

What differs from the paper: a tiny router from scratch with the learning rate that needs, 8 queries × 4 rollouts, 20
steps, short prompts; the reference cost is that of these records (output tokens only).
"""

from rw.config import default_config


def get_config():
    config = default_config()
    config.steps = 20
    config.queries_per_batch = 8
    config.rollouts_per_query = 4

    config.data.source = "nq6"
    config.workers.kind = "replay"
    config.tokenizer.path = "qwen3"
    config.model.update(
        vocab_size=151_936, d_model=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=16, d_ff=128, rope_theta=1e4
    )
    config.model.attention = "chunked_xla"  # the faster one on CPU
    config.model.remat = "none"

    config.init.source = "warmstart"
    config.warmstart.policy = "opinions"
    config.warmstart.steps = 150
    config.warmstart.learning_rate = 6e-3
    config.warmstart.queries_per_batch = 16

    config.protocol.templates = "short"
    config.protocol.agentic_rules = "paper"
    config.protocol.prompt_limit = 256
    config.protocol.response_budget = 1024
    config.protocol.observation_limit = 160

    config.optimizer.learning_rate = 3e-4
    config.schedule.cold_batches = 6
    config.schedule.autonomous_from = 16
    config.reward.reference_cost_usd = 0.0002

    config.engine.slots = 32
    config.engine.lengths = (512, 1280)
    config.batch.micro_batch = 4
    config.batch.logprob_chunk = 8  # with 151,936 logits a token, 32 tokens at a time are the fastest on CPU
    config.batch.length_buckets = (512, 1280)
    config.batch.policy_buckets = (40, 64, 96, 384)
    config.rollout.concurrency = 32
    config.checkpoint.every = 5
    return config
