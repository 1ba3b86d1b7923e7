"""The variants of a run that the paper compares, each as the keys in which it differs: one table for every config.

    rw train --config configs/ablations/quickstart.py:no_comet     # into runs/quickstart_no_comet
    rw train --config configs/ablations/qwen3_4b.py:alpha_0.3
    rw sweep --config configs/ablations/quickstart.py --sweep configs/sweeps/ablations.py    # all, 3 seeds each

Whatever a variant does not name is its config's own: steps, questions, Workers, learning rate, KL term.

Of the paper (its ablations and its trade-off of accuracy and cost):
- no_comet: without COMET-GRPO. Schedule and support term stay; every policy token gets A_GRPO, over one global mean.
- no_progressive: without progressive exploration. ρ = 0 from the first batch, COMET-GRPO from there on. The support
  coefficient is λ_0 ρ_b, so that this term is off as well.
- alpha_0, alpha_0.1, alpha_0.3, alpha_0.5: the weight of the efficiency reward after cold start.

Ours, to tell parts apart:
- no_support: the schedule without the support term.
- single, multi, agentic: that mode alone, in training, validation and test. It is injected, so there is no mode token
  to learn, COMET-GRPO is ordinary GRPO, and the support term is off. Cold start is then only the time that α waits.

Baselines to train:
- plain_grpo: standard GRPO from the first batch to the last, both ablations at once: modes are free, every policy token
  gets A_GRPO over one global mean, no schedule, no support term, α counts from the first batch.
- router_r1: a router in the manner of Router-R1: several rounds always, standard GRPO, α counts from the first batch.
  Where α is 0 that is `multi` by another name, since nothing else tells the two apart. It has our prompts, grammar and
  rewards, not Router-R1's own, which thinks aloud in its turns and is trained with its own reward.
"""

_GRPO = {"advantage.function": "grpo", "loss.reduction": "global"}
_FREE = {"schedule.progressive": False}

VARIANTS = {
    "no_comet": _GRPO,
    "no_progressive": _FREE,
    "no_support": {"support.coefficient": 0.0},
    "single": {"schedule.only_mode": "single"},
    "multi": {"schedule.only_mode": "multi"},
    "agentic": {"schedule.only_mode": "agentic"},
    "alpha_0": {"reward.efficiency_weight": 0.0},
    "alpha_0.1": {"reward.efficiency_weight": 0.1},
    "alpha_0.3": {"reward.efficiency_weight": 0.3},
    "alpha_0.5": {"reward.efficiency_weight": 0.5},
    "plain_grpo": {**_GRPO, **_FREE},
    "router_r1": {**_GRPO, **_FREE, "schedule.only_mode": "multi"},
}


def vary(config, name):
    """`config` with the keys of that variant set."""
    config.update_from_flattened_dict(VARIANTS[name])
    return config
