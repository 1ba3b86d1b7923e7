"""An example of a random search: how strongly the transition is held open, in eight draws.

    rw sweep --config configs/quickstart.py --sweep configs/sweeps/random_support.py

The draws are those of seed 0: more of them later keep the first eight.
"""

from rw.sweeps.points import log_uniform, random, uniform


def get_sweep():
    return random(
        count=8,
        seed=0,
        draws={
            "support.coefficient": log_uniform(0.03, 1.0),
            "support.floor": uniform(0.05, 0.2),
            "loss.kl_coefficient": log_uniform(0.003, 0.1),
        },
    )
