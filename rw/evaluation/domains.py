"""How the paper adds questions up: sets, a domain as the mean of its sets, Avg as the mean of the domains.

A question lost to infrastructure counts as wrong. Held-out sets stand apart and are in no domain's mean. Pure functions
of outcomes; no interval is made here and no file is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from rw.evaluation.outcomes import Outcome

PAPER_SETS: Mapping[str, tuple[str, ...]] = {  # RouteWeaver's nine test sets by domain
    "math": ("math", "omni_math"),
    "code": ("apps", "live_code_bench", "taco"),
    "knowledge": ("super_gpqa",),
    "reason": ("sat_bench",),
    "recall": ("trivia_qa", "simple_qa_verified"),
}
HELD_OUT = ("aime", "gpqa_diamond", "bbh")
AVERAGE = "Avg"
SIMULATED = "simulated"


@dataclasses.dataclass(frozen=True, order=True)
class Stratum:
    """The questions of one set in one domain; both names as people read them."""

    domain: str
    dataset: str


def stratum_of(outcome: Outcome) -> Stratum:
    """Where a question counts. A simulated question's kind is its set; files of older runs know the kind alone."""
    kind_is_set = not outcome.dataset or outcome.dataset == SIMULATED
    return Stratum(outcome.domain or outcome.kind, outcome.kind if kind_is_set else outcome.dataset)


def strata(outcomes: Iterable[Outcome]) -> dict[Stratum, list[Outcome]]:
    """The questions of each set, in the paper's order of domains and then in alphabetical order; held-out sets last."""
    found: dict[Stratum, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(stratum_of(outcome), []).append(outcome)
    return {stratum: found[stratum] for stratum in sorted(found, key=_place)}


def _place(stratum: Stratum) -> tuple[bool, int, str, int, str]:
    domains = tuple(PAPER_SETS)
    known = stratum.domain in domains
    sets = PAPER_SETS.get(stratum.domain, ())
    return (
        is_held_out(stratum),
        domains.index(stratum.domain) if known else len(domains),
        stratum.domain,
        sets.index(stratum.dataset) if stratum.dataset in sets else len(sets),
        stratum.dataset,
    )


def is_held_out(stratum: Stratum) -> bool:
    """Whether the set is one that the paper holds out."""
    return stratum.dataset in HELD_OUT


def domain_weights(found: Sequence[Stratum], domain: str) -> dict[Stratum, float]:
    """What the mean of each set counts in the domain's accuracy: the sets of a domain count alike, whatever their size.
    Held-out sets are left out; {} where nothing remains."""
    members = [stratum for stratum in found if stratum.domain == domain and not is_held_out(stratum)]
    return {stratum: 1 / len(members) for stratum in members}


def average_weights(found: Sequence[Stratum]) -> dict[Stratum, float]:
    """What the mean of each set counts in Avg: domains count alike, and in each its sets do. {} for held-out sets
    alone."""
    domains = domains_of(found)
    return {
        stratum: weight / len(domains)
        for domain in domains
        for stratum, weight in domain_weights(found, domain).items()
    }


def domains_of(found: Iterable[Stratum]) -> list[str]:
    """The domains that have a mean, in order."""
    return list(dict.fromkeys(stratum.domain for stratum in found if not is_held_out(stratum)))


def is_the_papers(found: Iterable[Stratum]) -> bool:
    """Whether the sets in the mean are exactly the paper's nine, each in its domain."""
    own = {(stratum.domain, stratum.dataset) for stratum in found if not is_held_out(stratum)}
    return own == {(domain, dataset) for domain, datasets in PAPER_SETS.items() for dataset in datasets}


def aggregation_words(found: Sequence[Stratum]) -> str:
    """A sentence on what Avg is the mean of."""
    domains = domains_of(found)
    if not domains:
        return (
            "There are questions of held-out sets alone, which are in no average." if found else "There is no question."
        )
    if is_the_papers(found):
        return "Avg is the mean of the paper's five domains, a domain the mean of its sets, all nine of them present."
    own = "the domain" if len(domains) == 1 else f"the {len(domains)} domains"
    return (
        f"Avg is the mean of {own} that these questions have ({', '.join(domains)}), a domain the mean of its sets; "
        "the paper's Avg is over nine sets of five domains (math, code, knowledge, reason, recall)."
    )
