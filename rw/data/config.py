"""Which questions a run trains on, validates on and is tested on."""

from __future__ import annotations

import dataclasses

from rw.data.quotas import KNOWLEDGE_REASON, PAPER, Quota, check_quotas, paper_quotas
from rw.errors import ConfigError, DataError

SOURCES = ("simulated", "nq6", "files")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The questions of a run.

    Args:
        source: `simulated`: of the simulated world | `nq6`: recorded Natural Questions | `files`: prepared files, as
            `rw data prepare` writes them.
        split_seed: nq6: which questions are held out for testing.
        test_queries: nq6: how many.
        validation_queries: nq6: how many others are held out to choose the best router by.
        train_files: files: paths of what is trained on.
        validation_files: files: paths of what the best router is chosen by.
        test_files: files: paths of what the final evaluation asks.
        held_out_files: files: paths of other sets, which `rw evaluate` asks, too: how far the router carries.
        quotas: files: how many of each data set a batch holds, as `apps:4`, or `math:4/3` for 4 and 3 in turn; `paper`
            alone for those of the paper; empty: all questions as one pool. Of one's own questions the scorer is what
            counts as their data set.
        quota_knowledge_reason: questions of SuperGPQA and of SATBench among `paper`'s: `6/7` as in the paper, `7/6` as
            in the authors' code.
    """

    source: str = "simulated"
    split_seed: int = 0
    test_queries: int = 120
    validation_queries: int = 40
    train_files: tuple[str, ...] = ()
    validation_files: tuple[str, ...] = ()
    test_files: tuple[str, ...] = ()
    held_out_files: tuple[str, ...] = ()
    quotas: tuple[str, ...] = ()
    quota_knowledge_reason: str = "6/7"

    def __post_init__(self):
        for name, allowed in (("source", SOURCES), ("quota_knowledge_reason", tuple(KNOWLEDGE_REASON))):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"data.{name}={getattr(self, name)!r} is not one of {', '.join(allowed)}")
        for name in ("test_queries", "validation_queries"):
            if getattr(self, name) < 0:
                raise ConfigError(f"data.{name}={getattr(self, name)} must be at least 0")
        if (self.source == "files") != bool(self.train_files):
            raise ConfigError(
                f"data.source={self.source!r} with {len(self.train_files)} data.train_files: source 'files' needs at "
                "least one prepared file, the other sources bring their own questions"
            )
        for name in ("validation_files", "test_files", "held_out_files", "quotas"):
            if self.source != "files" and getattr(self, name):
                raise ConfigError(f"data.{name}={getattr(self, name)} is for data.source='files', not {self.source!r}")

    def mixture(self) -> tuple[Quota, ...]:
        """The quotas as they are meant; ConfigError for one that cannot be read."""
        texts = paper_quotas(self.quota_knowledge_reason) if self.quotas == (PAPER,) else self.quotas
        try:
            return tuple(map(Quota.parse, texts))
        except DataError as error:
            raise ConfigError(f"data.quotas={self.quotas}: {error}; '{PAPER}' stands alone for the paper's") from error

    def check_batch(self, queries_per_batch: int) -> None:
        """Raises ConfigError where the quotas do not make up a batch."""
        if quotas := self.mixture():
            try:
                check_quotas(quotas, queries_per_batch)
            except DataError as error:
                raise ConfigError(f"queries_per_batch={queries_per_batch}: {error}") from error
