"""Scorers of one's own: functions of a user's module, made into what rw's own scorers are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from rw.errors import ConfigError
from rw.imported import imported_function
from rw.typed_values import did_you_mean
from rw.types import Query, Verdict, VerdictKind


def own_scorers(functions: Mapping[str, str], taken: Collection[str]) -> dict[str, Callable[[str, Query], Verdict]]:
    """The scorers, by name.

    Args:
        functions: `package.module:function` by name; each takes (answer, query) and returns a Verdict, or whether the
            answer is right. One that raises is at fault: its rollout is excluded, never wrong.
        taken: names that mean something else.

    Raises:
        ConfigError: a name that is taken, or a function that is not there.
    """
    for name in functions:
        if name in taken:
            raise ConfigError(f"scoring.own: {name!r} is the name of a scorer of rw; give yours another one")
    return {name: _own(name, function) for name, function in functions.items()}


def _own(name: str, path: str) -> Callable[[str, Query], Verdict]:
    judge = imported_function(path, f"scorer {name}")

    def scored(answer: str, query: Query) -> Verdict:
        verdict = judge(answer, query)
        if isinstance(verdict, bool):
            kind = VerdictKind.PASS if verdict else VerdictKind.WRONG
            return Verdict(verdict, kind=kind.value, scorer=path)
        if not isinstance(verdict, Verdict):
            raise TypeError(f"scorer {name} ({path}) returned {type(verdict).__name__}, not a Verdict or a bool")
        return verdict

    return scored


def no_scorer(name: str, known: Collection[str]) -> str:
    """What to say of a scorer that is not there."""
    return f"no scorer is named {name!r}{did_you_mean(name, known, cutoff=0.5) or '; there are ' + ', '.join(known)}"
