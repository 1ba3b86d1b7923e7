"""How able the simulated Workers are: who they are, what they charge, and how likely each kind of work succeeds.

The numbers are chosen so that routing matters and is visible in the question's text: a specialist is almost sure in its
own domain and near a coin flip elsewhere; no Worker and no mode is much better on average; and every mode is the best
one for some kind of question. Rules that make modes differ:

* A chain asked for in one call needs both steps at once (probability of both, times CHAIN_IN_ONE_CALL).
* A role brief costs attention on lookups and chains (times ROLE_ON_STEPS); a search without a role brief is careless
  (times SEARCH_WITHOUT_ROLE).
* Shown an earlier result, a Worker begins to doubt a lookup (times DOUBT), and repeats what it is shown on a search
  (with probability ANCHORING).
* A summarizer takes the majority of lookups and chains, and recognises a right candidate of a search.
"""

from __future__ import annotations

import dataclasses

from rw.simulation.world import DIFFICULTIES
from rw.types import WorkerCard
from rw.workers.config import WorkerEndpoint

CHAIN_IN_ONE_CALL = 0.35
ROLE_ON_STEPS = 0.6
SEARCH_WITHOUT_ROLE = 0.75
DOUBT = 0.4
ANCHORING = 0.95

# (tricky, simple) probabilities of one step
EXPERT = (0.93, 0.97)
LAYMAN = (0.47, 0.53)
SMALL = (0.42, 0.56)
LARGE = (0.58, 0.64)
SEARCH_SPREAD = 0.03  # a tricky search is this much less likely to succeed than the mean, a simple one this much more

INPUT_PRICE = 0.02  # USD per million tokens, for a Worker of price level 1
OUTPUT_PRICE = 0.08


@dataclasses.dataclass(frozen=True)
class WorkerProfile:
    """One simulated Worker."""

    id: str
    description: str
    price_level: int  # prices are this many times INPUT_PRICE and OUTPUT_PRICE
    expert_in: str | None  # a step's skill, or None for a generalist
    elsewhere: tuple[float, float]  # (tricky, simple) outside its own domain
    search: float  # mean probability that one search with a role brief succeeds
    recognition: float  # probability that it recognises a right candidate of a search

    @property
    def card(self) -> WorkerCard:
        return WorkerCard(self.id, self.description)

    def step_skill(self, skill: str, difficulty: str) -> float:
        """Probability that one step of this skill succeeds."""
        if skill == "reason":
            return self.search + (SEARCH_SPREAD if difficulty == "simple" else -SEARCH_SPREAD)
        pair = EXPERT if skill == self.expert_in else self.elsewhere
        return pair[("tricky", "simple").index(difficulty)]

    def mean_skill(self, skill: str) -> float:
        """Its skill over both difficulties, which are equally frequent."""
        return sum(self.step_skill(skill, difficulty) for difficulty in DIFFICULTIES) / len(DIFFICULTIES)


WORKERS: tuple[WorkerProfile, ...] = (
    WorkerProfile("worker_1", "recall expert", 4, "recall", LAYMAN, search=0.35, recognition=0.80),
    WorkerProfile("worker_2", "small generalist", 1, None, SMALL, search=0.35, recognition=0.70),
    WorkerProfile("worker_3", "code and reason expert", 4, "code", LAYMAN, search=0.60, recognition=0.85),
    WorkerProfile("worker_4", "large generalist", 8, None, LARGE, search=0.50, recognition=0.95),
    WorkerProfile("worker_5", "math expert", 4, "math", LAYMAN, search=0.35, recognition=0.80),
    WorkerProfile("worker_6", "know and reason expert", 4, "know", LAYMAN, search=0.55, recognition=0.85),
)
WORKER_IDS = tuple(profile.id for profile in WORKERS)
PROFILES = {profile.id: profile for profile in WORKERS}


def cards() -> tuple[WorkerCard, ...]:
    """What a router is told of the simulated Workers."""
    return tuple(profile.card for profile in WORKERS)


def endpoints(base_url: str) -> tuple[WorkerEndpoint, ...]:
    """The simulated Workers as the client sees them; one server answers for all and tells them apart by model name."""
    return tuple(
        WorkerEndpoint(
            id=profile.id,
            description=profile.description,
            base_url=base_url,
            model=profile.id,
            input_price=INPUT_PRICE * profile.price_level,
            output_price=OUTPUT_PRICE * profile.price_level,
            send_call_header=True,
            stream="never",  # their replies are short, and one body costs a thousandth of its chunks
        )
        for profile in WORKERS
    )
