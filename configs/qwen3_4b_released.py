"""The run of configs/qwen3_4b.py on the terms of the authors' released code, to reproduce its numbers.

    rw train --config configs/qwen3_4b_released.py --workdir runs/qwen3_4b_released

Where paper and released code differ, rw follows the paper, and a switch has the other value. Here each has the released
one; `agentic_rules` and `catalogue`, in which rw's defaults are those of the code, are named all the same.

- Text outside of a turn's tags, the tags' case and a written `<observation` are ignored, not a violation.
- Observations stand bare in the open assistant turn; rules, routing state and a forced mode have a user turn each.
- A multi call does not show its Worker the reply before it.
- The observations of a turn share min(4096, left - 1024) tokens, each at least 256, instead of 2,048 each.
- A response may take 16,384 tokens instead of 12,288, so that rows are longer: up to 22,528 tokens. 8 A100-80G still
  hold them (69.15 GiB of 73.60 a device).
- A router turn that this budget cuts is judged as it stands, which mostly makes it invalid, instead of plainly wrong.
- Of a question that asks for a program, any called Worker's passing program counts (`code_credit`).
- In agentic mode the summarizer's answer counts, too (`answer_from`).
- In agentic mode executors' programs run on the hidden tests, and the router reads how they fared
  (`execution_feedback`). That leaks what its reward is measured by, in the evaluation too: accuracies on Code do not
  compare with those of other routers.
- Failed attempts that reported usage count in a trajectory's cost.
- A batch has 7 questions of SuperGPQA and 6 of SATBench, not 6 and 7: prepare 700 of the one and 600 of the other.
- Two mathematical answers are equal by the code's own rule (sympy on rationals, ±, unordered lists).

What the authors' code does besides, and no switch of rw: it counts the tokens of excluded rollouts in N; gives a lone
retained rollout its reward as advantage; caps k3 at 10; keeps the KL term of rollouts whose cost record is incomplete;
cuts the prompts of the support term to 2,048 tokens; starts the runs of every efficiency weight from one cold start.
Prompts are rw's own words in both configs. The authors' weights need theirs: `protocol.templates` names a directory
with a prompts.toml.
"""

import pathlib
import runpy


def get_config():
    config = runpy.run_path(str(pathlib.Path(__file__).with_name("qwen3_4b.py")))["get_config"]()
    config.protocol.agentic_rules = "released"
    config.protocol.catalogue = "rules"
    config.protocol.outside_text = "ignored"
    config.protocol.framing = "released"
    config.protocol.multi_previous = "none"
    config.protocol.observation_budget = "turn"
    config.protocol.response_budget = 16_384
    config.protocol.exhausted = "judged"
    config.credit.code_credit = "union"
    config.credit.answer_from = "either"
    config.credit.execution_feedback = "hidden"
    config.reward.retry_cost = "reported"
    config.data.quota_knowledge_reason = "7/6"
    config.scoring.math_equality = "released"

    longest = config.protocol.prompt_limit + config.protocol.response_budget
    config.engine.lengths = (*config.engine.lengths[:-1], longest)
    config.batch.length_buckets = (*config.batch.length_buckets[:-1], longest)
    return config
