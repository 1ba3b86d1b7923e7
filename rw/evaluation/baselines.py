"""The single-call baselines by name, and their outcomes on a matrix of test questions.

Names are those of arms without their first word: `baseline_knn` is `knn` here. Learned ones need a matrix of training
questions; nothing here calls, samples or writes.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence

from rw.errors import ConfigError
from rw.evaluation.learned_routers import FITS, LearnedRouter
from rw.evaluation.outcomes import Outcome
from rw.evaluation.response_matrix import ResponseMatrix
from rw.evaluation.selection import NEED_ANSWERS, RULES, always
from rw.types import Mode

PREFIX = "baseline_"
ALWAYS = "always"  # one arm a Worker
PROMPTED: dict[str, Mode | None] = {  # the router before any training, its mode free or forced
    "prompt_llm": None,
    **{f"prompt_{mode.word}": mode for mode in Mode},
}
EPISODES = ("knn_multi", *PROMPTED)  # make calls of their own
NAMES = (ALWAYS, *RULES, *FITS, *EPISODES)


def choose_names(only: Sequence[str], without: Sequence[str], known: Sequence[str] = NAMES) -> tuple[str, ...]:
    """The baselines asked for, in the order of NAMES; `only` empty stands for all.

    Raises:
        ConfigError: a name that is none, with the nearest one, or nothing is left.
    """
    for name in (name.removeprefix(PREFIX) for name in (*only, *without)):
        if name in NAMES and name not in known:
            raise ConfigError(f"baseline {name!r} cannot be had of these records; there are {', '.join(known)}")
        if name not in NAMES:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(known)}"
            raise ConfigError(f"unknown baseline {name!r}; {hint}")
    wanted = {name.removeprefix(PREFIX) for name in only} or set(known)
    left_out = {name.removeprefix(PREFIX) for name in without}
    found = tuple(name for name in known if name in wanted - left_out)
    if not found:
        raise ConfigError("no baseline is left: --without names all that --only does")
    return found


def without_answers(names: Sequence[str] = NAMES) -> tuple[str, ...]:
    """Those of them that recorded scores alone suffice for."""
    return tuple(name for name in names if name not in (*NEED_ANSWERS, *EPISODES))


def single_call_arms(
    names: Sequence[str],
    test: ResponseMatrix,
    seed: int,
    learned: Callable[[str], LearnedRouter],
) -> Iterator[tuple[str, tuple[Outcome, ...]]]:
    """(arm, its outcomes in the order of the test questions), one after the other; names of EPISODES are passed over.

    Args:
        learned: gives the learned router of a name.
    """
    for name in names:
        if name == ALWAYS:
            for place, worker in enumerate(test.workers):
                yield f"{PREFIX}{ALWAYS}_{worker.id}", always(test, place)
        elif name in RULES:
            yield f"{PREFIX}{name}", RULES[name](test, seed)
        elif name in FITS:
            yield f"{PREFIX}{name}", learned(name).outcomes(test)
