"""Accuracy against cost: the paper's four weights of the efficiency reward, three seeds each, 12 runs.

    rw sweep --config configs/quickstart.py --sweep configs/sweeps/alpha.py --processes 2

RouteWeaver, section 1: with α = 0.1 the Workers cost 23 % less and accuracy falls by 1.0 points. As in its Appendix C.3
every run starts from the initial router and has a cold start of its own.
"""

from rw.sweeps.points import product, seeds, values


def get_sweep():
    return product(values("reward.efficiency_weight", (0.0, 0.1, 0.3, 0.5)), seeds(3))
