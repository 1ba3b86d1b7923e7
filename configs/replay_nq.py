"""Real questions, and what six real models really answered: a tiny router learns whom to ask, nothing to pay.

    rw train --config configs/replay_nq.py --workdir runs/replay_nq
    bash launch/replay_splits.sh

The first command trains on one split of the questions, the second on 20 and lays the runs side by side. The warm start
takes about three minutes of CPU time, a split about four.

The Workers replay recorded answers to 320 Natural Questions (see rw/data/files for source and licence) over the HTTP
path that live Workers take. A call is answered with what that model said to the original question, whatever the
sub-query, so multi and agentic add further opinions here and nothing else. Answers are judged by TriviaQA's rule, which
only short answers pass. 120 questions are held out for the test and 40 to choose the best router by.

What there is to learn: one Worker answers tersely and is right on a third of the questions, twice as often as the next;
the best of the six on each question would be right on 42 %, but nothing in a question's words tells which that is, as
the nearest neighbours show. So a router learns to ask that Worker, once, and to copy its answer. Cost moves the reward
of right answers only (Eq. 5), so a cheaper Worker for questions that none can answer is not learnt.

What differs from the paper, and why:
- A tiny router from scratch with the learning rate that it needs, short prompts, 18 steps of 8 queries × 8 rollouts.
- The copying of text, which a pretrained router brings along, is set by hand in three attention heads
  (rw/model/copying.py); the warm start then teaches the protocol on drills of random words, so that it knows no
  question and no answer of any split and favours no Worker.
- The tokenizer is Qwen3's cut to the 15,817 pieces that these texts use (rw/data/cut_tokenizer.py), with the same
  splits: the logits of all 151,669 would take most of the time.
- KL 0.03, support coefficient 0.3 and floor 0.10, as in configs/quickstart.py; a cold start long enough for the choice
  of the Worker to settle, since until then chance decides between modes.
- efficiency weight 0.3: the modes earn the same here, and only their cost tells them apart. The reference cost is that
  of these records (output tokens only).
"""

from rw.config import default_config


def get_config():
    config = default_config()
    config.steps = 18
    config.queries_per_batch = 8
    config.rollouts_per_query = 8

    config.data.source = "nq6"
    config.workers.kind = "replay"
    config.tokenizer.path = "qwen3_nq6"
    config.model.update(
        vocab_size=15_872, d_model=128, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=64, d_ff=128, rope_theta=1e6
    )
    config.model.attention = "chunked_xla"  # the faster one on CPU
    config.model.remat = "none"

    config.init.source = "warmstart"
    config.warmstart.policy = "drills"
    config.warmstart.copying = "wired"
    config.warmstart.mode_prior = (0.5, 0.25, 0.25)
    config.warmstart.steps = 120
    config.warmstart.learning_rate = 3e-3
    config.warmstart.queries_per_batch = 24

    config.protocol.templates = "short"
    config.protocol.agentic_rules = "paper"
    config.protocol.prompt_limit = 256
    config.protocol.response_budget = 704
    config.protocol.observation_limit = 96

    config.optimizer.learning_rate = 4e-4
    config.loss.kl_coefficient = 0.03
    config.support.coefficient = 0.3
    config.support.floor = 0.10
    config.schedule.cold_batches = 8
    config.schedule.autonomous_from = 14
    config.reward.reference_cost_usd = 0.0002
    config.reward.efficiency_weight = 0.3

    config.engine.slots = 64
    config.engine.lengths = (512, 960)
    config.batch.micro_batch = 8
    config.batch.logprob_chunk = 8
    config.batch.length_buckets = (320, 512, 960)
    config.batch.policy_buckets = (48, 96, 320)
    config.rollout.concurrency = 64
    config.checkpoint.every = 6
    config.evaluation.every = 6
    config.evaluation.validation_queries = 40
    config.evaluation.test_queries = 120
    config.evaluation.arms = ("trained", "warm_start", "scripted", "random", "knn", "oracle")
    config.log.trajectories_every = 6
    return config
