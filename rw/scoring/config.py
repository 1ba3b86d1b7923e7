"""What verdicts depend on beside answer and question."""

from __future__ import annotations

import dataclasses

from rw.errors import ConfigError

MATH_EQUALITIES = ("math_verify", "released", "string")


@dataclasses.dataclass(frozen=True)
class ScoringConfig:
    """Rules and limits of the scorers (RouteWeaver, Appendix B.2).

    Args:
        math_equality: `math_verify` asks the library of that name; `released` follows the authors' code (sympy on
            rationals, ±, unordered lists); `string` compares texts after normalisation.
        math_s: wall clock of one comparison in s; an answer that takes longer is wrong.
        test_s: CPU time of one test of a program in s.
        memory_mib: memory of a program in MiB.
        allow_weak_sandbox: run programs under resource limits alone where nothing better works. They can then read
            this machine's files and use its network.
    """

    math_equality: str = "math_verify"
    math_s: float = 5.0
    test_s: float = 6.0
    memory_mib: int = 1024
    allow_weak_sandbox: bool = False

    def __post_init__(self):
        if self.math_equality not in MATH_EQUALITIES:
            raise ConfigError(
                f"scoring.math_equality={self.math_equality!r} is not one of {', '.join(MATH_EQUALITIES)}"
            )
        for name in ("math_s", "test_s", "memory_mib"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"scoring.{name}={getattr(self, name)} must be > 0")
