"""What verdicts depend on beside answer and question."""

from __future__ import annotations

import dataclasses

from rw.errors import ConfigError
from rw.imported import is_import_name

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
        own: scorers of one's own, each `name=package.module:function` with a function (answer, query) -> Verdict or
            bool. A question is judged by the scorer that its data set names.
    """

    math_equality: str = "math_verify"
    math_s: float = 5.0
    test_s: float = 6.0
    memory_mib: int = 1024
    allow_weak_sandbox: bool = False
    own: tuple[str, ...] = ()

    def __post_init__(self):
        if self.math_equality not in MATH_EQUALITIES:
            raise ConfigError(
                f"scoring.math_equality={self.math_equality!r} is not one of {', '.join(MATH_EQUALITIES)}"
            )
        for name in ("math_s", "test_s", "memory_mib"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"scoring.{name}={getattr(self, name)} must be > 0")
        for entry in self.own:
            name, _, function = entry.partition("=")
            if not name.isidentifier() or not is_import_name(function):
                raise ConfigError(f"scoring.own: {entry!r} is not of the form 'name=package.module:function'")
        if len(self.own_functions) < len(self.own):
            raise ConfigError(f"scoring.own={self.own} gives one name two functions")

    @property
    def own_functions(self) -> dict[str, str]:
        """`package.module:function` of one's own scorers, by name."""
        return dict(entry.split("=", 1) for entry in self.own)
