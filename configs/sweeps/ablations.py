"""The paper's ablations, fixed modes and trained baselines beside the run as it is, three seeds each.

    rw sweep --config configs/ablations/quickstart.py --sweep configs/sweeps/ablations.py --processes 2

configs/ablations/variants.py says what each is. `alpha_0` is the run as it is; the other weights of the efficiency
reward are left to configs/sweeps/alpha.py, and `router_r1`, at α = 0 the same run as `multi`, is left out.
"""

from rw.sweeps.points import product, seeds, values

VARIANTS = ("alpha_0", "no_comet", "no_progressive", "no_support", "single", "multi", "agentic", "plain_grpo")


def get_sweep():
    return product(values("variant", VARIANTS), seeds(3))
